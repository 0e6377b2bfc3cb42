"""An agent of Stable-Baselines3 or sb3-contrib with its defaults on a task of the suite; prints one JSON object.

    PEER/bin/python benchmarks/generality/sb3_run.py CartPole-v1 dqn --env-steps 50000 --seed 1

Every ``--evaluations``-th part of the steps is followed by 10 greedy episodes. At the end the weights that did best in
these, and the last ones, play 20 greedy episodes on fresh seeds. Seconds are those of training alone.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import gymnasium as gym
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.generality.random_play import made
from benchmarks.generality.tasks import TASKS

UNROLL_ENVS = 4  # as the examples on the pages of SB3's PPO and A2C have it
ALONGSIDE, FINAL = 10, 20  # episodes
SEEDS_ALONGSIDE, SEEDS_FINAL = 1_000_000, 2_000_000  # far from those of training


def learner(env: str, agent: str, seed: int) -> Any:
    """The agent with nothing set but environment, policy and seed."""
    classes: dict[str, Any] = {"dqn": DQN, "ppo": PPO, "a2c": A2C, "sac": SAC, "td3": TD3}
    if agent == "qr_dqn":
        from sb3_contrib import QRDQN

        classes["qr_dqn"] = QRDQN
    vector = make_vec_env(lambda: made(env), UNROLL_ENVS if agent in ("ppo", "a2c") else 1, seed=seed)
    policy = "MultiInputPolicy" if isinstance(vector.observation_space, gym.spaces.Dict) else "MlpPolicy"
    return classes[agent](policy, vector, seed=seed, device="cpu")


class Evaluations(BaseCallback):  # type: ignore[misc]  # where SB3 is not installed
    """Greedy episodes along the run, on a clock that stands still meanwhile."""

    def __init__(self, env: str, every: int) -> None:
        super().__init__()
        self._env, self._every, self._due = env, every, every
        self._began = 0.0
        self._evaluating = 0.0
        self.curve: list[tuple[int, float, float]] = []
        self.best = -float("inf")
        self.best_weights = io.BytesIO()

    @property
    def seconds(self) -> float:
        """Of training, so far."""
        return time.monotonic() - self._began - self._evaluating

    def _on_training_start(self) -> None:
        self._began = time.monotonic()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._due:
            self._due += self._every
            self.evaluate()
        return True

    def evaluate(self) -> None:
        """A point of the curve, of the weights as they are now."""
        trained, began = self.seconds, time.monotonic()
        mean = score(self.model, self._env, ALONGSIDE, SEEDS_ALONGSIDE + self.num_timesteps)
        self.curve.append((self.num_timesteps, round(trained, 3), mean))
        if mean > self.best:
            self.best, self.best_weights = mean, io.BytesIO()
            torch.save(self.model.policy.state_dict(), self.best_weights)
        self._evaluating += time.monotonic() - began


def score(model: Any, env: str, episodes: int, seed: int) -> float:
    """The mean return of so many greedy episodes."""
    vector = make_vec_env(lambda: made(env), 10, seed=seed)
    mean, _ = evaluate_policy(model, vector, n_eval_episodes=episodes, deterministic=True)
    vector.close()
    return float(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("agent", choices=["dqn", "qr_dqn", "ppo", "a2c", "sac", "td3"])
    parser.add_argument("--env-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluations", type=int, default=20, help="along the run")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    env = TASKS[options.task].env
    model = learner(env, options.agent, options.seed)
    along = Evaluations(env, max(1, options.env_steps // options.evaluations))
    model.learn(options.env_steps, callback=along)
    seconds = along.seconds
    if not along.curve or along.curve[-1][0] < model.num_timesteps:
        along.evaluate()
    last = score(model, env, FINAL, SEEDS_FINAL)
    along.best_weights.seek(0)
    model.policy.load_state_dict(torch.load(along.best_weights))
    print(
        json.dumps(
            {
                "steps": model.num_timesteps,
                "seconds": seconds,
                "best": along.best,
                "final": score(model, env, FINAL, SEEDS_FINAL),
                "last": last,
                "curve": along.curve,
            }
        )
    )


if __name__ == "__main__":
    main()
