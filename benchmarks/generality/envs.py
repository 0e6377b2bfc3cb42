"""Environments of the suite that differ from an installed one in a single respect.

Needs Gymnasium and nothing of apexrl: a peer's interpreter makes the same ones by the same name, for example
``benchmarks.generality.envs:CartPolePositions-v0``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

Env = gym.Env[Any, Any]


def scaled_rewards(base: str, factor: float) -> Env:
    """Every reward times ``factor``."""
    return gym.wrappers.TransformReward(_made(base), lambda reward: factor * float(reward))


def scaled_observations(base: str, factor: float) -> Env:
    """Every observation times ``factor``."""
    env = _made(base)
    low, high = (factor * bound.astype(np.float64) for bound in (env.observation_space.low, env.observation_space.high))
    space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    return gym.wrappers.TransformObservation(env, lambda seen: (factor * seen).astype(np.float32), space)


def shown_only(base: str, shown: Sequence[int]) -> Env:
    """Only these entries of a vector observation."""
    env, chosen = _made(base), list(shown)
    space = gym.spaces.Box(env.observation_space.low[chosen], env.observation_space.high[chosen], dtype=np.float32)
    return gym.wrappers.TransformObservation(env, lambda seen: seen[chosen], space)


def named_parts(base: str, parts: Mapping[str, Sequence[int]]) -> Env:
    """A vector observation as a ``Dict`` of some of its entries each."""
    env, chosen = _made(base), {name: list(entries) for name, entries in parts.items()}
    low, high = env.observation_space.low, env.observation_space.high
    spaces: dict[str, gym.Space[Any]] = {
        name: gym.spaces.Box(low[of], high[of], dtype=np.float32) for name, of in chosen.items()
    }
    return gym.wrappers.TransformObservation(
        env, lambda seen: {name: seen[of] for name, of in chosen.items()}, gym.spaces.Dict(spaces)
    )


def switched_engines(base: str) -> Env:
    """LunarLander whose actions are two switches: main engine off or on; side engines left, off or right."""
    levels = (-1.0, 1.0), (-1.0, 0.0, 1.0)
    return gym.wrappers.TransformAction(
        _made(base),
        lambda action: np.array([levels[0][action[0]], levels[1][action[1]]], np.float32),
        gym.spaces.MultiDiscrete([2, 3]),
    )


class GoalReward(gym.Wrapper[Any, Any, Any, Any]):
    """Reward 1 when the goal ends the episode, and none before."""

    def __init__(self, base: str) -> None:
        super().__init__(_made(base))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, float(terminated), terminated, truncated, info


def _made(base: str) -> Any:
    return gym.make(base, disable_env_checker=True)


def _register(name: str, function: str, **kwargs: Any) -> None:
    gym.register(f"{name}-v0", entry_point=f"benchmarks.generality.envs:{function}", kwargs=kwargs)


gym.register(
    "FrozenLakeFirm-v0",
    entry_point="gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv",
    kwargs={"is_slippery": False},
    max_episode_steps=100,
)
_register("AcrobotRewards1000", "scaled_rewards", base="Acrobot-v1", factor=1e3)
_register("PendulumRewards1000", "scaled_rewards", base="Pendulum-v1", factor=1e3)
_register("LunarLanderRewards100", "scaled_rewards", base="LunarLander-v3", factor=100.0)
_register("LunarLanderRewards001", "scaled_rewards", base="LunarLander-v3", factor=1e-2)
_register("LunarLanderRewards0001", "scaled_rewards", base="LunarLander-v3", factor=1e-3)
_register("ReacherRewards0001", "scaled_rewards", base="Reacher-v5", factor=1e-3)
_register("CartPoleObservations10000", "scaled_observations", base="CartPole-v1", factor=1e4)
_register("ReacherObservations10000", "scaled_observations", base="Reacher-v5", factor=1e4)
_register("CartPolePositions", "shown_only", base="CartPole-v1", shown=(0, 2))
_register("AcrobotDict", "named_parts", base="Acrobot-v1", parts={"angles": (0, 1, 2, 3), "speeds": (4, 5)})
_register("AcrobotGoal", "GoalReward", base="Acrobot-v1")
_register("LunarLanderSwitches", "switched_engines", base="LunarLanderContinuous-v3")
