"""An environment of Atari's size that costs next to nothing: what is left is the way of its frames.

``benchmarks.ray.frames_env:Frames-v0``: observations 84x84 uint8, four actions, episodes of 1,000 steps. Frames
are prepared noise.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

_FRAMES = 64
_STEPS = 1000


class Frames(gym.Env[NDArray[np.uint8], np.int64]):
    """One frame after another, whatever is done."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
        self.action_space = gym.spaces.Discrete(4)
        self._frames = np.random.default_rng(0).integers(256, size=(_FRAMES, 84, 84), dtype=np.uint8)
        self._turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self._turn = 0
        return self._frames[0], {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._turn += 1
        return self._frames[self._turn % _FRAMES], float(action == 0), False, self._turn >= _STEPS, {}


if "Frames-v0" not in gym.registry:
    gym.register("Frames-v0", entry_point=f"{__name__}:Frames")
