"""Small datasets made in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import apexrl.envs.toy  # noqa: F401  (registers the environments)
from apexrl.datasets.episode import Episode
from apexrl.datasets.minari_files import write

CORRIDOR = "apexrl.envs.toy:Corridor-v0"


def corridor_episodes(count: int, seed: int = 0, right: float = 0.5, limit: int = 100) -> list[Episode]:
    """Of the corridor, by a policy that goes right with the probability ``right``."""
    env, rng, found = gym.make(CORRIDOR, max_episode_steps=limit), np.random.default_rng(seed), []
    for number in range(count):
        seen = [env.reset(seed=seed + number)[0]]
        steps: list[tuple[int, float, bool, bool]] = []
        while not steps or not (steps[-1][2] or steps[-1][3]):
            action = int(rng.random() < right)
            observation, reward, terminated, truncated, _ = env.step(np.int64(action))
            seen.append(observation)
            steps.append((action, float(reward), terminated, truncated))
        actions, rewards, terminated_, truncated_ = zip(*steps, strict=True)
        chosen = np.array(actions, np.int64)
        found.append(
            Episode(
                {"observation": np.array(seen, np.int64)},
                chosen,
                np.array(rewards, np.float32),
                np.array(terminated_, np.bool_),
                np.array(truncated_, np.bool_),
                np.log(np.where(chosen == 1, right, 1.0 - right)),
            )
        )
    env.close()
    return found


def write_corridor(folder: Path, episodes: list[Episode], **about: Any) -> Path:
    env = gym.make(CORRIDOR)
    assert env.spec is not None
    write(folder, "corridor/test-v0", episodes, env.observation_space, env.action_space, env.spec.to_json(), about)
    env.close()
    return folder
