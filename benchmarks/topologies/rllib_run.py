"""RLlib's IMPALA or APPO on a case of ``cases.py``: how many environment steps its learner consumes.

    PYTHON_OF_RAY benchmarks/topologies/rllib_run.py impala --case cartpole      # prints one JSON object

It is run by ``peers.py``, in Ray's own interpreter. Counted is what its learner reports as environment steps
trained (``num_env_steps_trained_lifetime``; it counts one step more for every piece of an episode in a batch, the one
it bootstraps from). APPO's circular buffer gives every batch once, as everybody's queue here.
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


def configured(name: str, case: Case, seed: int, learners: int) -> Any:
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = (APPOConfig if name == "appo" else IMPALAConfig)()
    config.environment(case.env)
    config.env_runners(
        num_env_runners=case.workers, num_envs_per_env_runner=case.envs, rollout_fragment_length=case.unroll
    )
    config.learners(num_learners=learners, num_gpus_per_learner=0)
    config.rl_module(
        model_config=DefaultModelConfig(fcnet_hiddens=list(case.hidden), fcnet_activation="relu", vf_share_layers=True)
    )
    config.training(train_batch_size_per_learner=case.batch_steps, num_epochs=case.epochs, lr=1e-4)
    config.training(minibatch_size=case.batch_steps // case.minibatches)
    if name == "appo":
        config.training(circular_buffer_num_batches=1, circular_buffer_iterations_per_batch=1)
    config.evaluation(evaluation_interval=None)
    config.reporting(min_time_s_per_iteration=1)
    config.debugging(seed=seed, log_level="ERROR")
    return config


def trained(result: dict[str, Any]) -> float:
    """Environment steps that the learner has trained on, of one report; 0 before the first."""
    learners = result.get("learners") or {}
    everything = learners.get("__all_modules__") or {}
    return float(everything.get("num_env_steps_trained_lifetime") or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=("impala", "appo"))
    parser.add_argument("--case", choices=[name for name, case in CASES.items() if not case.atari], default="cartpole")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--learners", type=int, default=1, help="learner processes; 0: in the driver (default: RLlib's)"
    )
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the case's")
    options = parser.parse_args()
    case = CASES[options.case]
    case = dataclasses.replace(case, warm_up=options.warm_up or case.warm_up, window=options.window or case.window)
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a cluster of its own, of this machine alone

    import ray

    counted = Counted(case)
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            num_cpus=case.workers + 2, object_store_memory=300 * 2**20, include_dashboard=False, log_to_driver=False,
            _temp_dir=folder,
        )  # fmt: skip
        algorithm = configured(options.algorithm, case, options.seed, options.learners).build_algo()
        while not counted.add(time.monotonic(), trained(algorithm.train())):
            pass
        algorithm.stop()
        ray.shutdown()
    print(json.dumps(counted.result()), flush=True)


if __name__ == "__main__":
    main()
