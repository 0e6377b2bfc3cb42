"""Environments that tell numbers of their episodes in ``info``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Telling(gym.Env[Any, Any]):
    """Episodes of three steps. ``info["metrics"]`` has its length and its level, and ``info`` more, of all kinds."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, level: int = 1) -> None:
        self.level = level
        self._steps = 0
        self.options: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        self.options = options or {}
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        told = {"steps": self._steps, "level": np.float32(self.level), "text": "none", "bad": float("nan")}
        info = {"metrics": told, "won": np.bool_(self._steps == 3), "bonus": self.options.get("bonus", 0)}
        return np.zeros(2, np.float32), float(self.level), self._steps == 3, False, info
