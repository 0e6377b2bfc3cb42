"""Bits to be flipped until they are as desired, none of them back, registered with Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.envs.goal_tasks import BitFlip


class ForwardBits(BitFlip):
    """The bit that was flipped last is not to be flipped again: an error."""

    def __init__(self, bits: int = 8) -> None:
        super().__init__(bits)
        self._last = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._last = -1
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> Any:
        assert action != self._last
        self._last = int(action)
        return super().step(action)

    def action_masks(self) -> NDArray[np.bool_]:
        return np.arange(len(self._now)) != self._last


gym.register("ForwardBits-v0", entry_point="masked_goals:ForwardBits", max_episode_steps=10)
