"""Environments whose steps a test lets go one by one, and that show where each answer comes from."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np

WAIT_SECONDS = 30.0  # so that a test which fails does not hang


class Gated(gym.Env[np.ndarray, np.int64]):
    """Every step waits until ``gate`` is open. Observes (number, episode, step); episodes have ``length`` steps.

    The reward is the step's number plus a tenth of the action.
    """

    observation_space = gym.spaces.Box(-1000.0, 1000.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(3, start=1)

    def __init__(self, number: int = 0, length: int = 3, info: dict[str, Any] | None = None) -> None:
        self.number, self.length, self.info = number, length, info or {}
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.episode, self.t = -1, 0
        self.threads = {threading.get_ident()}
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.threads.add(threading.get_ident())
        self.episode, self.t = self.episode + 1, 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.gate.wait(WAIT_SECONDS)
        self.t += 1
        return self._look(), self.t + 0.1 * int(action), self.t == self.length, False, self.info

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed = True

    def _look(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)


class Jittered(gym.Wrapper[Any, Any, Any, Any]):
    """Steps take between nothing and a millisecond, in an order that no seed decides."""

    def step(self, action: Any) -> Any:
        time.sleep(random.random() * 0.001)
        return self.env.step(action)


def jittered(env: str, **kwargs: Any) -> gym.Env[Any, Any]:
    return Jittered(gym.make(env, **kwargs))
