"""Sample Factory's APPO on a case of ``cases.py``: how many environment steps its learner consumes.

    PYTHON_OF_SAMPLE_FACTORY benchmarks/topologies/sample_factory_run.py --case cartpole      # prints one JSON object

It is run by ``peers.py``, in Sample Factory's own interpreter. Counted is what its learner reports after
every training batch (``env_steps``: emulator frames on Atari).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.topologies.cases import CASES, Case, Counted

PONG = "atari_pong"  # as Sample Factory calls it


def make(name: str, config: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """An environment, in whichever process. ale-py 0.12 does not register itself with gymnasium 0.29."""
    import gymnasium

    if name != PONG:
        return gymnasium.make(name, render_mode=render_mode)
    from sf_examples.atari.atari_utils import make_atari_env

    if "PongNoFrameskip-v4" not in gymnasium.registry:
        gymnasium.register(
            "PongNoFrameskip-v4",
            "ale_py.env:AtariEnv",
            kwargs={"game": "pong", "obs_type": "rgb", "frameskip": 1, "repeat_action_probability": 0.0},
            max_episode_steps=108_000 * 4,
        )
    return make_atari_env(name, config, env_config, render_mode)


def words(case: Case, folder: str, seed: int) -> list[str]:
    """The case as Sample Factory's command line."""
    given: dict[str, Any] = {
        "algo": "APPO",
        "env": PONG if case.atari else case.env,
        "experiment": "benchmark",
        "train_dir": folder,
        "restart_behavior": "overwrite",
        "device": "cpu",
        "seed": seed,
        "async_rl": True,
        "serial_mode": False,
        "num_workers": case.workers,
        "num_envs_per_worker": case.envs,
        "worker_num_splits": 2,
        "policy_workers_per_policy": 1,
        "rollout": case.unroll,
        "recurrence": 1,
        "use_rnn": False,
        "nonlinearity": "relu",
        "batch_size": case.batch_steps // case.minibatches,  # Sample Factory's is a minibatch
        "num_batches_per_epoch": case.minibatches,
        "num_epochs": case.epochs,
        "with_vtrace": False,
        "normalize_input": False,
        "normalize_returns": False,
        "save_every_sec": 36_000,
        "save_best_every_sec": 36_000,
        "experiment_summaries_interval": 36_000,
        "decorrelate_experience_max_seconds": 0,
        "default_niceness": os.nice(0),
    }
    if case.atari:
        given |= {
            "encoder_conv_architecture": "convnet_atari", "obs_scale": 255.0, "env_frameskip": case.frames,
            "env_framestack": 4, "max_grad_norm": 0.5,
        }  # fmt: skip
    layers = ["--encoder_conv_mlp_layers" if case.atari else "--encoder_mlp_layers", *map(str, case.hidden)]
    return [f"--{name}={value}" for name, value in given.items()] + layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="cartpole")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the case's")
    options = parser.parse_args()
    case = CASES[options.case]
    case = dataclasses.replace(case, warm_up=options.warm_up or case.warm_up, window=options.window or case.window)

    from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    counted = Counted(case)

    def heard(runner: Any, message: dict[str, Any], policy: int) -> None:
        if counted.add(time.monotonic(), message[LEARNER_ENV_STEPS]):
            runner.cfg.train_for_env_steps = 0  # it stops after this training batch

    register_env(PONG if case.atari else case.env, make)
    with tempfile.TemporaryDirectory() as folder:
        given = words(case, folder, options.seed)
        parser_of_sf, _ = parse_sf_args(argv=given)
        _, runner = make_runner(parse_full_cfg(parser_of_sf, given))
        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(heard)
        runner.init()
        runner.run()
    print(json.dumps(counted.result()), flush=True)


if __name__ == "__main__":
    main()
