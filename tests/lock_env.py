"""A lock that random actions do not open, and episodes of who knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

TURNS = 8
NUMBERS = 4
CODE = (2, 0, 3, 3, 1, 0, 2, 1)


class Lock(gym.Env[NDArray[np.float32], Any]):
    """Eight turns, each to one of four numbers: the first wrong one ends the episode, the last right one pays 1.

    Random actions open it once in 65,536 episodes. With ``box`` an action is a number of −1 … 1, of which each quarter
    stands for one of the four.
    """

    def __init__(self, box: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (TURNS,), np.float32)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(NUMBERS)
        if box:
            self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._box, self._turn = box, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._turn = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        number = min(int((float(action[0]) + 1.0) * NUMBERS / 2.0), NUMBERS - 1) if self._box else int(action)
        right = number == CODE[self._turn]
        opened = right and self._turn == TURNS - 1
        seen = self._seen()
        if right and not opened:
            self._turn += 1
            seen = self._seen()
        return seen, float(opened), opened or not right, False, {}

    def _seen(self) -> NDArray[np.float32]:
        return np.eye(TURNS, dtype=np.float32)[self._turn]


gym.register("Lock-v0", entry_point="lock_env:Lock")


def write_episodes(folder: Path, count: int, box: bool, errs: float = 0.1) -> str:
    """A Minari dataset of who knows the code and turns to any number with the probability ``errs``."""
    from apexrl.datasets.episode import Episode
    from apexrl.datasets.minari_files import write

    env, rng, found = gym.make("Lock-v0", box=box), np.random.default_rng(0), []
    assert env.spec is not None
    for _ in range(count):
        seen, actions, rewards, over = [env.reset()[0]], list[Any](), list[float](), False
        while not over:
            number = int(rng.integers(NUMBERS)) if rng.random() < errs else CODE[int(seen[-1].argmax())]
            action: Any = number
            if box:
                action = ((number + rng.uniform(0.1, 0.9, 1)) * 2.0 / NUMBERS - 1.0).astype(np.float32)
            observation, reward, over, _, _ = env.step(action)
            seen.append(observation)
            actions.append(action)
            rewards.append(float(reward))
        ends = np.arange(len(actions)) == len(actions) - 1
        kind = np.float32 if box else np.int64
        shown = {"observation": np.array(seen)}
        found.append(
            Episode(shown, np.array(actions, kind), np.array(rewards, np.float32), ends, np.zeros_like(ends), None)
        )
    write(folder, "lock/test-v0", found, env.observation_space, env.action_space, env.spec.to_json(), {})
    env.close()
    return str(folder)
