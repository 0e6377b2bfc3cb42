"""Environments and an agent that tell where every decision was made, and whether it came to where it belongs."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.protocols import Acted
from apexrl.spec import Field


class Numbered(gym.Env[np.ndarray, np.int64]):
    """Observes (number, episode, step): every row says which environment it is of. Episodes have 2 to 7 steps.

    The reward says the number, the step and which action arrived. A step takes up to ``slowest`` seconds, in an
    order that no seed decides.
    """

    observation_space = gym.spaces.Box(0.0, 10_000.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, numbers: Any = None, slowest: float = 0.0) -> None:
        self.slowest = slowest
        self.number = next(numbers) if numbers else 0
        self.episode, self.t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.slowest:
            time.sleep(random.random() * self.slowest)
        self.t += 1
        ended = self.t == 2 + (self.number + self.episode) % 6
        odd = self.episode % 2 == 1
        return self._look(), 100.0 * self.number + self.t + 0.125 * int(action), ended and odd, ended and not odd, {}

    def _look(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)


class Teller:
    """An agent whose state counts an episode's decisions.

    Its actions differ from decision to decision, unless it is ``steady``: then an observation decides them.
    """

    step_spec = {"told": Field((), "int64"), "explored": Field((), "float32")}  # noqa: RUF012

    def __init__(self, steady: bool = False) -> None:
        self.steady = steady
        self.batches: list[int] = []  # sizes
        self.version = -1
        self.acted = 0

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        rows = len(exploration)
        newest = observations["observation"].reshape(rows, -1)[:, -3:]
        count = np.zeros(rows, np.int64) if state is None else state["count"]
        self.batches.append(rows)
        actions = (newest.astype(np.int64) @ np.array([1, 3, 7]) + self.acted) % 4
        self.acted += not self.steady
        told = newest[:, 0].astype(np.int64) * 1_000_000 + count
        return Acted(actions, {"told": told, "explored": exploration}, {"count": count + 1})

    def load(self, weights: Any) -> None:
        self.version = int(weights["w"][0])

    def priorities(self, items: Any) -> Any:
        return np.ones(len(items["reward"]), np.float32)
