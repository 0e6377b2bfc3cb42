"""CartPole with rewards, observations or ends spoilt on purpose."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

Ends = Literal["right", "never", "always", "limit"]


class SpoiltCartPole(CartPoleEnv):
    """CartPole, for at most ``limit`` steps.

    Args:
        reward: factor of the rewards.
        observation: factor of the observations.
        ends: which steps are reported as terminations: the ``right`` ones; ``never`` any; ``always`` all; the ``limit``
            too.
    """

    def __init__(
        self, reward: float = 1.0, observation: float = 1.0, ends: Ends = "right", limit: int = 500, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._reward, self._scale, self._ends, self._limit = reward, observation, ends, limit
        self._made = 0
        everything = np.full(4, np.inf, np.float32)
        self.observation_space = gym.spaces.Box(-everything, everything, dtype=np.float32)

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        self._made = 0
        return self._shown(observation), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)  # type: ignore[no-untyped-call]
        self._made += 1
        full = self._made >= self._limit
        said = {"right": terminated, "never": False, "always": True, "limit": terminated or full}[self._ends]
        if terminated and not said:
            self.steps_beyond_terminated = None  # it goes on where it is
        return self._shown(observation), self._reward * float(reward), said, full and not said, info

    def _shown(self, observation: Any) -> Any:
        return (self._scale * np.asarray(observation)).astype(np.float32)


gym.register("SpoiltCartPole-v0", entry_point="spoilt_envs:SpoiltCartPole")
