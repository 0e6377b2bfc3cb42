"""Environments of the scores page that papers change before they use them.

``dm_control`` needs ``pip install "shimmy[dm-control]" "mujoco<4"``: its release 1.0.50 does not run with MuJoCo 4.
``CarRacing`` needs ``opencv-python``.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.wrappers import GrayscaleObservation, ResizeObservation

Env = gym.Env[Any, Any]


class RepeatedAction(gym.Wrapper[Any, Any, Any, Any]):
    """Each action is taken ``repeats`` times, and their rewards are added up."""

    def __init__(self, env: Env, repeats: int) -> None:
        super().__init__(env)
        self.repeats = repeats

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.repeats):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def control_suite(task: str) -> Env:
    """A task of dm_control with two repeats of each action, as SimbaV2's results have it."""
    import shimmy  # noqa: F401 - registers them

    return RepeatedAction(gym.make(f"dm_control/{task}-v0", disable_env_checker=True), 2)


def car_racing(**settings: Any) -> Env:
    """rl-zoo's: 64 x 64 grey pixels, two repeats of each action."""
    env = RepeatedAction(gym.make("CarRacing-v3", disable_env_checker=True, **settings), 2)
    return GrayscaleObservation(ResizeObservation(env, (64, 64)), keep_dim=True)


for _name, _task in {"CheetahRun": "cheetah-run", "WalkerRun": "walker-run"}.items():
    gym.register(f"{_name}-v0", entry_point=f"{__name__}:control_suite", kwargs={"task": _task})
gym.register("SmallCarRacing-v0", entry_point=f"{__name__}:car_racing")
