"""Stable-Baselines3's DQN on CartPole with rl-zoo's settings, until a greedy evaluation reaches a return.

    python benchmarks/cartpole/sb3_dqn.py --seed 1      # prints one JSON object

Settings: DLR-RM/rl-baselines3-zoo, hyperparams/dqn.yml, CartPole-v1. Run by ``run.py``.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

ZOO_TIMESTEPS, ZOO_EXPLORATION_FRACTION = 50_000, 0.16
EPISODES, PERIOD_SECONDS = 20, 1.0


def evaluate(model: DQN, seed: int) -> float:
    """Mean return of 20 greedy episodes, one in each of 20 environments stepped together."""
    envs = gym.make_vec("CartPole-v1", num_envs=EPISODES, vectorization_mode="vector_entry_point")
    observations, _ = envs.reset(seed=seed)
    returns, running = np.zeros(EPISODES), np.ones(EPISODES, np.bool_)
    while running.any():
        actions, _ = model.predict(observations, deterministic=True)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


class StopAtReturn(BaseCallback):  # type: ignore[misc]  # where SB3 is not installed
    """Evaluates about every second of wall clock, and stops."""

    def __init__(self, goal: float, limit: float, seed: int) -> None:
        super().__init__()
        self._goal, self._limit = goal, limit
        self._seed = 10_000 * seed
        self._began = self._due = 0.0
        self.evaluations: list[tuple[float, float]] = []  # seconds, mean return
        self.evaluating = 0.0

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()
        self._due = self._began + PERIOD_SECONDS

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if now < self._due:
            return True
        self._seed += 1
        mean = evaluate(self.model, self._seed)
        end = time.perf_counter()
        self.evaluating += end - now
        self._due = max(now + PERIOD_SECONDS, end)
        self.evaluations.append((end - self._began, mean))
        return mean < self._goal and end - self._began < self._limit

    @property
    def seconds(self) -> float:
        return self.evaluations[-1][0] if self.evaluations else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--goal", type=float, default=475.0, help="mean return of 20 greedy episodes")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch; 1 is the fastest with networks this small")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    steps = 100 * ZOO_TIMESTEPS  # no end but the return; exploration still falls over the zoo's 8000 steps
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1_000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=ZOO_EXPLORATION_FRACTION * ZOO_TIMESTEPS / steps,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=options.seed,
        device="cpu",
    )
    callback = StopAtReturn(options.goal, options.limit, options.seed)
    model.learn(steps, callback=callback)
    best = max(mean for _, mean in callback.evaluations)
    training = callback.seconds - callback.evaluating
    print(
        json.dumps(
            {
                "solved": best >= options.goal,
                "wall_seconds": callback.seconds,
                "best_eval_return": best,
                "final_eval_return": evaluate(model, 10_000 * options.seed + 9_999),
                "env_steps": model.num_timesteps,
                "env_steps_per_second": model.num_timesteps / training,
                "updates_per_second": model._n_updates / training,
            }
        )
    )


if __name__ == "__main__":
    main()
