"""RLlib's IMPALA, APPO or DQN on ``cases.py``: how many steps its learner consumes, or the seconds until 475.

    PYTHON_OF_RAY benchmarks/ray/rllib_run.py dqn --measure goal      # prints one JSON object

It is run by ``rllib.py``, in RLlib's own interpreter. Counted is what its learner reports as environment steps
trained, as in ``topologies/rllib_run.py``, which configures IMPALA and APPO here too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.ray.cases import (
    ALGORITHMS,
    ALPHA,
    BETA,
    CAPACITY,
    CPUS_EACH,
    EPISODES,
    GOAL,
    N_STEP,
    SETTINGS,
    Setting,
    windowed,
)
from benchmarks.ray.nodes import nodes
from benchmarks.topologies.cases import Counted
from benchmarks.topologies.rllib_run import configured, trained

QUIET = {
    "RAY_worker_niceness": "0",  # as apexrl's
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # a cluster of its own, of this machine alone
}
# Of RLlib's own CartPole examples (rllib/examples/algorithms): step size, and what goes with it. APPO's leaves the
# step size at RLlib's default, which is this one. What ``cases.py`` sets alike is not theirs.
EXAMPLES: dict[str, dict[str, Any]] = {
    "impala": {
        "lr": 5e-4,
        "grad_clip": 40.0,
        "grad_clip_by": "global_norm",
        "vf_loss_coeff": 0.05,
        "entropy_coeff": 0.0,
    },
    "appo": {"lr": 5e-4, "vf_loss_coeff": 0.05, "entropy_coeff": 0.0},
    "dqn": {"lr": 5e-4, "epsilon": [(0, 1.0), (25_000, 0.02)]},
}


def dqn(setting: Setting, seed: int, learners: int) -> Any:
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    case = setting.case
    config = DQNConfig()
    config.environment(case.env)
    config.env_runners(num_env_runners=case.workers, num_envs_per_env_runner=case.envs)
    config.learners(num_learners=learners, num_gpus_per_learner=0)
    config.rl_module(
        model_config=DefaultModelConfig(fcnet_hiddens=list(case.hidden), fcnet_activation="relu", head_fcnet_hiddens=[])
    )
    config.training(
        train_batch_size_per_learner=case.batch_steps, lr=1e-4, double_q=True, dueling=True, n_step=N_STEP,
        training_intensity=setting.samples_per_step, num_steps_sampled_before_learning_starts=setting.learning_starts,
        replay_buffer_config={
            "type": "PrioritizedEpisodeReplayBuffer", "capacity": CAPACITY, "alpha": ALPHA, "beta": BETA,
        },
    )  # fmt: skip
    config.evaluation(evaluation_interval=None)
    config.reporting(min_time_s_per_iteration=1)
    config.debugging(seed=seed, log_level="ERROR")
    return config


def made(name: str, setting: Setting, seed: int, learners: int, goal: bool) -> Any:
    config = dqn(setting, seed, learners) if name == "dqn" else configured(name, setting.case, seed, learners)
    if goal:
        config.training(**EXAMPLES[name])
        config.evaluation(
            evaluation_interval=1, evaluation_num_env_runners=1, evaluation_parallel_to_training=True,
            evaluation_duration=EPISODES, evaluation_duration_unit="episodes",
            evaluation_config=type(config).overrides(explore=False),
        )  # fmt: skip
    return config


def greedy(result: dict[str, Any]) -> float:
    """Mean return of the newest evaluation; −∞ before the first."""
    runners = (result.get("evaluation") or {}).get("env_runners") or {}
    mean = runners.get("episode_return_mean")
    return float("-inf") if mean is None or mean != mean else float(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=ALGORITHMS)
    parser.add_argument("--measure", choices=SETTINGS, default="rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--learners", type=int, default=1, help="learner processes; 0: in the driver (default: RLlib's)"
    )
    parser.add_argument("--nodes", type=int, default=1, help="of Ray (default: 1)")
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--minutes", type=float, default=10.0, help="that the goal may take")
    options = parser.parse_args()
    began = time.monotonic()
    os.environ.update(QUIET)

    import ray

    goal = options.measure == "goal"
    setting = windowed(SETTINGS[options.measure][options.algorithm], options.warm_up, options.window)
    found: dict[str, Any]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if options.nodes > 1:
            ray.init(stack.enter_context(nodes(options.nodes, CPUS_EACH)).address, log_to_driver=False)
        else:
            ray.init(
                num_cpus=setting.case.workers + 3, object_store_memory=300 * 2**20, include_dashboard=False,
                log_to_driver=False, _temp_dir=folder,
            )  # fmt: skip
        algorithm = made(options.algorithm, setting, options.seed, options.learners, goal).build_algo()
        built = time.monotonic()
        if goal:
            result: dict[str, Any] = {}
            while greedy(result) < GOAL and time.monotonic() - built < 60.0 * options.minutes:
                result = algorithm.train()
            now = time.monotonic()
            found = {
                "solved": greedy(result) >= GOAL,
                "seconds": now - built,
                "with_start": now - began,
                "env_steps": float(result.get("num_env_steps_sampled_lifetime") or 0.0),
                "final": greedy(result),
            }
        else:
            counted = Counted(setting.case)
            while not counted.add(time.monotonic(), trained(algorithm.train())):
                pass
            found = counted.result()
        algorithm.stop()
        ray.shutdown()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
