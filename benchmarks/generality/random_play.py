"""Mean returns of random actions over 100 episodes, as ``tasks.py`` records them.

python benchmarks/generality/random_play.py [TASK ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import gymnasium as gym

from benchmarks.generality.tasks import TASKS

EPISODES = 100


def made(env: str) -> gym.Env[Any, Any]:
    """The environment that ``--env`` means."""
    if env.startswith("MinAtar/") and env not in gym.registry:
        from minatar import gym as minatar_gym

        minatar_gym.register_envs()
    return gym.make(env, disable_env_checker=True)


def random_return(env: str, episodes: int = EPISODES) -> float:
    """The mean return of so many episodes; episode i is seeded with i, the actions with 0."""
    environment = made(env)
    environment.action_space.seed(0)
    total = 0.0
    for episode in range(episodes):
        environment.reset(seed=episode)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
            total += float(reward)
            over = terminated or truncated
    environment.close()
    return total / episodes


def main() -> None:
    for name in sys.argv[1:] or TASKS:
        print(f"{name:<36}{random_return(TASKS[name].env):.6g}", flush=True)


if __name__ == "__main__":
    main()
