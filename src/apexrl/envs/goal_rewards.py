"""Rewards of a goal environment for goals that it was not given, by its own ``compute_reward``.

The convention is that of gymnasium-robotics' ``GoalEnv``: observations are a ``Dict`` with ``achieved_goal`` and
``desired_goal``, and ``compute_reward(achieved_goal, desired_goal, info)`` says what a step was worth;
``compute_terminated``, with the same arguments, says whether it ended the episode. No info is stored, so both are given
an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.config import EnvConfig
from apexrl.envs.action_masks import random_action
from apexrl.envs.make import env_name, make_env
from apexrl.envs.spaces import env_spec
from apexrl.errors import EnvError
from apexrl.spec import ACHIEVED_GOAL, DESIRED_GOAL, Array

_TRIED = 16  # rows by which it is known whether a function takes many goals at once
_CHECKED_STEPS = 8

Function = Callable[[Any, Any, dict[str, Any]], Any]


class GoalRewards:
    """``compute_reward`` and ``compute_terminated`` of an environment of one's own, which is never stepped.

    Args:
        config: the environment, made as actors make it.

    Raises:
        EnvError: it shows no goals, or has no ``compute_reward``.
    """

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._name = env_name(config)
        self._env = make_env(config)
        spec = env_spec(self._env.observation_space, self._env.action_space)
        achieved, desired = spec.observation.get(ACHIEVED_GOAL), spec.observation.get(DESIRED_GOAL)
        if achieved is None or achieved != desired:
            raise EnvError(
                f"{self._name} shows {', '.join(spec.observation)}; goals in hindsight need an achieved_goal and a "
                "desired_goal of the same shape and type, an array each: set --hindsight none, or wrap the environment"
            )
        self._space: gym.Space[Any] = self._env.observation_space["achieved_goal"]  # type: ignore[index]
        self._start = spec.starts.get(ACHIEVED_GOAL, 0)
        self._clip = config.reward_clip
        self._reward = self._function("compute_reward")
        if self._reward is None:
            raise EnvError(
                f"{self._name} has no compute_reward(achieved_goal, desired_goal, info), which says what a step is "
                "worth under another goal: set --hindsight none, or give the environment one"
            )
        self._terminated = self._function("compute_terminated")
        self._at_once: dict[str, bool] = {}  # function -> it takes many goals

    def rewards(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Of N steps, float32 [N], as actors would have recorded them.

        Args:
            achieved, desired: goals [N, *shape], as they are stored.

        Raises:
            EnvError: ``compute_reward`` raised an error, or a reward is no finite number.
        """
        assert self._reward is not None
        found = self._call("compute_reward", self._reward, achieved, desired, np.float64)
        if not np.isfinite(found).all():
            raise EnvError(f"{self._name}: compute_reward returned {found[~np.isfinite(found)][0]}, no finite number")
        return np.asarray(np.clip(found, -self._clip, self._clip) if self._clip else found, np.float32)

    def terminated(self, achieved: Array, desired: Array) -> NDArray[np.bool_] | None:
        """Whether each of N steps ended its episode, bool [N]; None: the environment does not say.

        Raises:
            EnvError: ``compute_terminated`` raised an error.
        """
        if self._terminated is None:
            return None
        return np.asarray(self._call("compute_terminated", self._terminated, achieved, desired, np.bool_))

    def check(self, seed: int) -> None:
        """Step the environment, and refuse a ``compute_reward`` that does not say what its steps say.

        Raises:
            EnvError: with both rewards, or the error that it raised.
        """
        env = self._env
        seen, _ = env.reset(seed=seed % 2**32)
        env.action_space.seed(seed % 2**32)
        for _ in range(_CHECKED_STEPS):
            goal = seen["desired_goal"]
            seen, reward, terminated, truncated, _ = env.step(random_action(env.action_space, seen))
            made = float(self._one("compute_reward", self._reward, seen["achieved_goal"], goal))
            if not np.isclose(made, float(reward), rtol=1e-3, atol=1e-5):
                raise EnvError(
                    f"{self._name}: a step gave the reward {float(reward):g}, and compute_reward of its achieved and "
                    f"desired goal gives {made:g}: goals in hindsight need the same of both. Is it scaled by a "
                    "wrapper, or does it depend on more than goals? Set --hindsight none otherwise"
                )
            if self._terminated is not None:
                self._one("compute_terminated", self._terminated, seen["achieved_goal"], goal)
            if terminated or truncated:
                seen, _ = env.reset()

    def close(self) -> None:
        self._env.close()

    def _function(self, name: str) -> Function | None:
        return self._env.get_wrapper_attr(name) if self._env.has_wrapper_attr(name) else None

    def _call(self, name: str, function: Function, achieved: Array, desired: Array, dtype: Any) -> NDArray[Any]:
        achieved, desired = self._as_shown(achieved), self._as_shown(desired)
        if name not in self._at_once and len(achieved):
            self._at_once[name] = self._takes_many(name, function, achieved[:_TRIED], desired[:_TRIED])
        if self._at_once.get(name, False):
            return np.asarray(function(achieved, desired, {}), dtype)
        pairs = zip(achieved, desired, strict=True)
        return np.array([self._one(name, function, *pair) for pair in pairs], dtype)

    def _takes_many(self, name: str, function: Function, achieved: Array, desired: Array) -> bool:
        """Whether it says of many goals at once what it says of each; half of those tried are reached."""
        one, other = np.concatenate([achieved, achieved]), np.concatenate([desired, achieved])
        each = np.array([self._one(name, function, *pair) for pair in zip(one, other, strict=True)])
        try:
            all_at_once = np.asarray(function(one, other, {}))
        except Exception:
            return False
        return all_at_once.shape == each.shape and np.allclose(all_at_once, each, rtol=1e-5, atol=1e-8)

    def _one(self, name: str, function: Function | None, achieved: Any, desired: Any) -> Any:
        assert function is not None
        try:
            return np.asarray(function(achieved, desired, {})).item()
        except Exception as error:
            raise EnvError(
                f"{self._name}: {name}(achieved_goal, desired_goal, {{}}) raised {type(error).__name__}: {error}. "
                "Goals in hindsight come without the info of a step: it must do without, or set --hindsight none"
            ) from error

    def _as_shown(self, goals: Array) -> Array:
        """Stored goals as the environment shows them."""
        shown = goals + self._start if self._start else goals
        return shown if self._space.dtype is None else shown.astype(self._space.dtype, copy=False)
