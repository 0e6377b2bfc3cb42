"""An R2D2 that counts how often it was given a state that does not belong to its observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.agents.r2d2 import R2D2
from apexrl.protocols import Acted, Arrays, State


class Clock(gym.Env[Any, Any]):
    """Shows how many steps its episode has; they last 2, 7, 12, 2 … steps and end in either way."""

    observation_space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._episode = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        ended, odd = self._step == 2 + 5 * (self._episode % 3), self._episode % 2 == 1
        return np.array([self._step], np.float32), 1.0, ended and odd, ended and not odd, {}


class Remembering(R2D2):
    """Its state must be zero at an episode's first observation, and at no other."""

    acted = 0
    begun = 0
    wrong = 0

    def act(self, observations: Arrays, state: State, exploration: Any, greedy: bool = False) -> Acted:
        begins = observations["observation"][:, 0] == 0
        zero = np.ones(len(begins), np.bool_)
        for array in (state or {}).values():
            zero &= ~array.any(axis=1)
        self.acted += len(begins)
        self.begun += int(begins.sum())
        self.wrong += int((begins != zero).sum())
        return super().act(observations, state, exploration, greedy)
