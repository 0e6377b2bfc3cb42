"""Small environments with goals, registered with Gymnasium: ``apexrl.envs.goal_tasks:BitFlip-v0`` and so on.

| id | what it is | known answer |
|---|---|---|
| ``BitFlip-v0`` | flip bits until they are as desired | best return 1 − the bits that differ |
| ``PointGoal-v0`` | move a point to a place | the point is there for most of an episode |

They follow the convention of gymnasium-robotics' ``GoalEnv``, and need nothing of it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Info = dict[str, Any]


class BitFlip(gym.Env[Info, np.int64]):
    """Bits are to become those desired; each action flips one of them (Andrychowicz et al. 2017, section 3.1).

    Reward −1, and 0 for the step that makes all of them equal, which ends the episode. Start and goal are random. With
    many bits, chance never earns a 0.
    """

    def __init__(self, bits: int = 10) -> None:
        self.observation_space = gym.spaces.Dict(
            {name: gym.spaces.MultiBinary(bits) for name in ("observation", "achieved_goal", "desired_goal")}
        )
        self.action_space = gym.spaces.Discrete(bits)
        self._now = self._goal = np.zeros(bits, np.int8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        super().reset(seed=seed)
        self._now, self._goal = self.np_random.integers(2, size=(2, len(self._now)), dtype=np.int8)
        while (self._now == self._goal).all():
            self._goal = self.np_random.integers(2, size=len(self._now), dtype=np.int8)
        return self._shown(), {}

    def step(self, action: np.int64) -> tuple[Info, float, bool, bool, Info]:
        self._now = self._now.copy()
        self._now[action] ^= 1
        reward = float(self.compute_reward(self._now, self._goal, {}))
        return self._shown(), reward, bool(self.compute_terminated(self._now, self._goal, {})), False, {}

    @staticmethod
    def compute_reward(achieved_goal: Any, desired_goal: Any, info: Info) -> Any:
        """Of one pair of goals [bits], or of many [B, bits]."""
        return (achieved_goal == desired_goal).all(axis=-1) - 1.0

    @staticmethod
    def compute_terminated(achieved_goal: Any, desired_goal: Any, info: Info) -> Any:
        return (achieved_goal == desired_goal).all(axis=-1)

    def _shown(self) -> Info:
        return {"observation": self._now, "achieved_goal": self._now, "desired_goal": self._goal}


class PointGoal(gym.Env[Info, NDArray[np.float32]]):
    """A point in [−1, 1]² is to come within 0.05 of a place, by steps of up to 0.15 in each direction.

    Reward −1 for every step after which it is elsewhere, else 0; nothing ends an episode but its time limit.
    """

    REACHED, STEP = 0.05, 0.15
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    observation_space = gym.spaces.Dict(
        {name: gym.spaces.Box(-1.0, 1.0, (2,), np.float32) for name in ("observation", "achieved_goal", "desired_goal")}
    )

    def __init__(self) -> None:
        self._now = self._goal = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        super().reset(seed=seed)
        self._now, self._goal = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        return self._shown(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Info, float, bool, bool, Info]:
        self._now = np.clip(self._now + self.STEP * np.clip(action, -1.0, 1.0), -1.0, 1.0).astype(np.float32)
        return self._shown(), float(self.compute_reward(self._now, self._goal, {})), False, False, {}

    @classmethod
    def compute_reward(cls, achieved_goal: Any, desired_goal: Any, info: Info) -> Any:
        """Of one pair of goals [2], or of many [B, 2]."""
        return (np.linalg.norm(achieved_goal - desired_goal, axis=-1) < cls.REACHED) - 1.0

    def _shown(self) -> Info:
        return {"observation": self._now, "achieved_goal": self._now, "desired_goal": self._goal}


gym.register("BitFlip-v0", entry_point="apexrl.envs.goal_tasks:BitFlip", max_episode_steps=10)
gym.register("PointGoal-v0", entry_point="apexrl.envs.goal_tasks:PointGoal", max_episode_steps=30)
