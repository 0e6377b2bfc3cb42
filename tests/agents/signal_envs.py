"""One small game in every form of observation and action that agents meet: do what the signal says."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np

Shown = Literal["vector", "image", "dict", "discrete"]
Asked = Literal["discrete", "multi", "box"]

SHOWN: tuple[Shown, ...] = ("vector", "image", "dict", "discrete")
ASKED: tuple[Asked, ...] = ("discrete", "multi", "box")
STEPS = 8
"""Of an episode, each worth at most 1."""


class Matching(gym.Env[Any, Any]):
    """Every step shows one of three signals. The reward is how near the action comes to what it asks for: at most 1.

    discrete: the signal's number, counted from -1. multi: its parity, counted from 1, and its number, counted from -1,
    each worth a half. box: two numbers in the environment's units, less by their mean distance.
    """

    def __init__(self, shown: Shown = "vector", asked: Asked = "discrete") -> None:
        image = gym.spaces.Box(0, 255, (12, 12), np.uint8)
        numbers = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.observation_space: gym.Space[Any] = {
            "vector": numbers,
            "image": image,
            "dict": gym.spaces.Dict(image=image, inner=gym.spaces.Dict(numbers=numbers)),
            "discrete": gym.spaces.Discrete(3, start=5),
        }[shown]
        self.action_space: gym.Space[Any] = {
            "discrete": gym.spaces.Discrete(3, start=-1),
            "multi": gym.spaces.MultiDiscrete([2, 3], start=[1, -1]),
            "box": gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32)),
        }[asked]
        self._shown, self._asked = shown, asked
        self._signal = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = self._worth(action)
        self._step += 1
        return self._show(), reward, self._step == STEPS, False, {}

    def _worth(self, action: Any) -> float:
        signal = self._signal
        if self._asked == "discrete":
            return float(action + 1 == signal)
        if self._asked == "multi":
            return 0.5 * float(action[0] - 1 == signal % 2) + 0.5 * float(action[1] + 1 == signal)
        return 1.0 - float(np.abs(action - np.array([2.0 * signal - 1.0, signal / 2.0])).mean())

    def _show(self) -> Any:
        signal = self._signal = int(self.np_random.integers(3))
        image = np.zeros((12, 12), np.uint8)
        image[:, 4 * signal : 4 * signal + 4] = 255
        numbers = np.eye(3, dtype=np.float32)[signal]
        return {
            "vector": numbers,
            "image": image,
            "dict": {"image": image, "inner": {"numbers": numbers}},
            "discrete": signal + 5,
        }[self._shown]
