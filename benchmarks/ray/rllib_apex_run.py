"""RLlib's old Ape-X (ray 2.6.3) on the DQN case of ``cases.py``: steps made and samples learned from, per second.

    PYTHON_OF_OLD_RAY benchmarks/ray/rllib_apex_run.py --case rate      # prints one JSON object

It is run by ``rllib_apex.py``, in an interpreter of its own. Counted is what the algorithm says that it has
sampled from the environment, and trained on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.ray.cases import ALPHA, BETA, CAPACITY, DQN_CASES, N_STEP, Setting

SHARDS = 1  # replay actors


def configured(setting: Setting, seed: int) -> Any:
    from ray.rllib.algorithms.apex_dqn import ApexDQNConfig

    case = setting.case
    config = ApexDQNConfig()
    config.environment(case.env)
    config.framework("torch")
    config.resources(num_gpus=0)
    config.rollouts(num_rollout_workers=case.workers, num_envs_per_worker=case.envs)
    config.training(
        model={"fcnet_hiddens": list(case.hidden), "fcnet_activation": "relu"}, hiddens=[], double_q=True,
        dueling=True, n_step=N_STEP, lr=1e-4, train_batch_size=case.batch_steps,
        num_steps_sampled_before_learning_starts=setting.learning_starts,
        training_intensity=int(setting.samples_per_step), optimizer={"num_replay_buffer_shards": SHARDS},
        replay_buffer_config={
            "type": "MultiAgentPrioritizedReplayBuffer", "capacity": CAPACITY, "no_local_replay_buffer": True,
            "replay_buffer_shards_colocated_with_driver": True, "prioritized_replay_alpha": ALPHA,
            "prioritized_replay_beta": BETA, "prioritized_replay_eps": 1e-6, "worker_side_prioritization": True,
        },
    )  # fmt: skip
    config.reporting(min_time_s_per_iteration=1, min_sample_timesteps_per_iteration=0)
    config.debugging(seed=seed, log_level="ERROR")
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=DQN_CASES, default="rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds after the first update")
    parser.add_argument("--window", type=float, default=30.0, help="seconds that count")
    options = parser.parse_args()
    os.environ.update(RAY_worker_niceness="0", RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")

    import ray
    import torch

    torch.set_num_threads(1)  # the learner is a thread of this process
    setting = DQN_CASES[options.case]
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            num_cpus=setting.case.workers + SHARDS + 2, object_store_memory=300 * 2**20, include_dashboard=False,
            log_to_driver=False, _temp_dir=folder,
        )  # fmt: skip
        algorithm = configured(setting, options.seed).build()
        began = 0.0
        points: list[tuple[float, float, float]] = []  # seconds, steps made, samples learned from
        while not points or points[-1][0] < points[0][0] + options.window:
            result = algorithm.train()
            now, trained = time.monotonic(), float(result["num_env_steps_trained"])
            began = began or (now if trained else 0.0)
            if began and now >= began + options.warm_up:
                points.append((now, float(result["num_env_steps_sampled"]), trained))
        algorithm.stop()
        ray.shutdown()
    (first, made, learned), (last, made_then, learned_then) = points[0], points[-1]
    found = {
        "made_per_second": (made_then - made) / (last - first),
        "steps_per_second": (learned_then - learned) / (last - first),
        "seconds": last - first,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
