"""The previous action and reward as part of the observation, as R2D2's network sees them."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.errors import EnvError
from apexrl.spec import LAST_ACTION, LAST_REWARD, OBSERVATION

ALONE = "obs"
"""Key of an observation that was no ``Dict`` before (Gymnasium's ``TimeAwareObservation`` calls it so too)."""

_ACTION, _REWARD = (name.removeprefix(f"{OBSERVATION}/") for name in (LAST_ACTION, LAST_REWARD))

Shown = dict[str, Any]


class LastActionReward(gym.Wrapper[Shown, Any, Any, Any]):
    """Adds ``last_action`` and ``last_reward`` to the observation; both are zero when an episode begins.

    A ``Dict`` observation keeps its keys; another becomes the entry ``obs`` of one. Discrete choices are shown one-hot
    (int8), those of ``MultiDiscrete`` side by side; a ``MultiBinary`` as it is, int8, and a box, float32. Kapturowski
    et al. 2019, section 2.3.

    Args:
        env: its actions must be ``Discrete``, ``MultiDiscrete`` or ``MultiBinary`` of one dimension, or a ``Box``.
        reward_clip: the reward is shown within ±this, in reward units; 0 leaves it.

    Raises:
        EnvError: the actions are others, or the observation has entries of these names already.
    """

    def __init__(self, env: gym.Env[Any, Any], reward_clip: float = 0.0) -> None:
        super().__init__(env)
        self._clip = reward_clip
        sizes: list[int] = []  # of every discrete choice
        starts: list[int] = []
        shown: gym.Space[Any]
        match env.action_space:
            case gym.spaces.Discrete() as space:
                sizes, starts = [int(space.n)], [int(space.start)]
                shown = gym.spaces.MultiBinary(sizes[0])
            case gym.spaces.MultiDiscrete() as space if space.nvec.ndim == 1:
                sizes, starts = space.nvec.tolist(), space.start.tolist()
                shown = gym.spaces.MultiBinary(sum(sizes))
            case gym.spaces.MultiBinary() as space if len(space.shape) == 1:
                shown = gym.spaces.MultiBinary(space.shape[0])
            case gym.spaces.Box() as space:
                shown = gym.spaces.Box(np.minimum(space.low, 0.0), np.maximum(space.high, 0.0), dtype=np.float32)
            case space:
                raise EnvError(
                    f"the previous action cannot be shown: {space} is not Discrete, a Box, or MultiDiscrete or "
                    "MultiBinary of one dimension; leave last_action_reward out, or wrap the environment in a "
                    "gymnasium.ActionWrapper that offers one of these"
                )
        self._columns = np.cumsum([0, *sizes])[:-1] - np.array(starts, np.int64)  # where one-hot entries begin
        self._nothing = np.zeros(shown.shape or (), shown.dtype)
        seen = env.observation_space
        self._alone = not isinstance(seen, gym.spaces.Dict)
        entries = dict(seen.spaces) if isinstance(seen, gym.spaces.Dict) else {ALONE: seen}
        if taken := entries.keys() & {_ACTION, _REWARD}:
            raise EnvError(f"the observation has {', '.join(sorted(taken))} already; leave last_action_reward out")
        entries[_ACTION] = shown
        most = reward_clip or np.inf
        entries[_REWARD] = gym.spaces.Box(-most, most, (1,), np.float32)
        self.observation_space = gym.spaces.Dict(entries)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._show(observation, self._nothing.copy(), 0.0), info

    def step(self, action: Any) -> tuple[Shown, Any, bool, bool, dict[str, Any]]:
        shown = self._shown(action)  # before an environment changes it in place
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._show(observation, shown, _finite(reward)), reward, terminated, truncated, info

    def _shown(self, action: Any) -> NDArray[Any]:
        if not len(self._columns):
            return np.array(action, self._nothing.dtype)
        one_hot = self._nothing.copy()
        one_hot[self._columns + action] = 1
        return one_hot

    def _show(self, observation: Any, action: NDArray[Any], reward: float) -> Shown:
        reward = max(-self._clip, min(reward, self._clip)) if self._clip else reward
        entries = {ALONE: observation} if self._alone else observation
        return {**entries, _ACTION: action, _REWARD: np.array([reward], np.float32)}


def _finite(reward: Any) -> float:
    """A reward, which may be an array of one. What is no finite number is refused where rewards are looked at."""
    array = np.asarray(reward)
    number = float(array.item()) if array.size == 1 and array.dtype.kind in "biuf" else 0.0
    return number if math.isfinite(number) else 0.0
