"""Masks of possible actions: where environments tell them, and what is checked of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.envs.action_spaces import action_spec
from apexrl.envs.last_action_reward import ALONE
from apexrl.envs.spaces import mask_shape
from apexrl.errors import EnvError
from apexrl.spec import ACTION_MASK, OBSERVATION, ActionSpec, Array

MASK = ACTION_MASK.removeprefix(f"{OBSERVATION}/")
"""Key of an observation and of an info."""
METHOD = "action_masks"
MASK_HINT = f'its info tells masks of possible actions ("{MASK}") that nobody reads: --mask-in-info heeds them'

Bools = NDArray[np.bool_]
Shown = dict[str, Any]


def shows_mask(space: gym.Space[Any]) -> bool:
    """Whether an observation has a mask already."""
    return isinstance(space, gym.spaces.Dict) and MASK in space.spaces


class ActionMasks(gym.Wrapper[Shown, Any, Any, Any]):
    """Puts the mask of possible actions into the observation, as ``action_mask``.

    It is what the environment's method ``action_masks()`` returns (Stable-Baselines3's convention), or
    ``info["action_mask"]`` (Gymnasium's): bool, or integers that are 0 where an action is not possible, one for each
    action of ``Discrete``. Of ``MultiDiscrete`` there is one for each alternative, side by side or as a tuple with an
    array for each choice; of ``MultiBinary`` two for each number, first that of 0. A ``Dict`` observation keeps its
    keys; another becomes the entry ``obs`` of one. Behind a termination no action is chosen, and no mask is asked for.

    Args:
        env: its actions are ``Discrete``, ``MultiDiscrete`` or ``MultiBinary``.
        in_info: masks are in the infos; else the method is called.

    Raises:
        EnvError: actions are a box, or there is no such method.
    """

    def __init__(self, env: gym.Env[Any, Any], in_info: bool = False) -> None:
        super().__init__(env)
        self._kept = Kept(action_spec(env.action_space), "environment")
        self._method: Callable[[], Any] | None = None
        if not in_info:
            if not has_masks(env):
                raise EnvError(f"the environment has no method {METHOD}(): masks in infos need in_info=True")
            self._method = env.get_wrapper_attr(METHOD)
        self._alone, self.observation_space = with_mask(env.observation_space, self._kept.shape)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._show(observation, self._mask(info)), info

    def step(self, action: Any) -> tuple[Shown, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        mask = self._kept.nothing if terminated else self._mask(info)
        return self._show(observation, mask), reward, terminated, truncated, info

    def _mask(self, info: Mapping[str, Any]) -> Bools:
        if self._method is not None:
            return self._kept.row(self._method())
        if MASK not in info:
            raise EnvError(f"info has no {MASK!r}, which --mask-in-info says is there after every reset and step")
        return self._kept.row(info[MASK])

    def _show(self, observation: Any, mask: Bools) -> Shown:
        return {ALONE: observation, MASK: mask} if self._alone else {**observation, MASK: mask}


class VectorActionMasks(gym.vector.VectorWrapper):
    """As ``ActionMasks``, of environments that are vectorised by themselves: the method returns [B, n], and an info
    holds [B, n] under ``action_mask``, or an array of B masks. With SAME_STEP autoreset the mask of a final observation
    is in ``final_info``.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], in_info: bool = False) -> None:
        super().__init__(env)
        self._kept = Kept(action_spec(env.single_action_space), "vectorised environment")
        self._method = None if in_info else vector_method(env)
        if not in_info and self._method is None:
            raise EnvError(f"the vectorised environment has no method {METHOD}(): masks in infos need in_info=True")
        self._device = getattr(env.unwrapped, "device", None)
        self._alone, self.single_observation_space = with_mask(env.single_observation_space, self._kept.shape)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._show(observation, self._masks(info)), info

    def step(self, actions: Any) -> tuple[Shown, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        if info.get("final_obs") is not None:
            info = {**info, "final_obs": self._final(info, _on_host(terminated), _on_host(truncated))}
        return self._show(observation, self._masks(info, terminated)), reward, terminated, truncated, info

    def _masks(self, info: Mapping[str, Any], terminated: Any = None) -> Bools:
        if self._method is not None:
            return self._kept.rows(self._method(), self.num_envs)
        if MASK not in info:
            if terminated is not None and _on_host(terminated).all():
                return np.zeros((self.num_envs, *self._kept.shape), np.bool_)
            raise EnvError(f"infos have no {MASK!r}, which --mask-in-info says is there")
        return self._kept.rows(info[MASK], self.num_envs)

    def _final(self, info: Mapping[str, Any], terminated: Bools, truncated: Bools) -> Any:
        """Final observations with their masks, one for each environment."""
        told = info.get("final_info")
        masks = told.get(MASK) if isinstance(told, Mapping) else None
        final: list[Shown | None] = [None] * self.num_envs
        for number in np.flatnonzero(terminated | truncated).tolist():
            seen = _one(info["final_obs"], number)
            mask = self._kept.nothing
            if masks is not None and masks[number] is not None:
                mask = self._kept.row(masks[number])
            elif not terminated[number]:
                raise EnvError(
                    f"environment {number} was truncated and reset in the same step, and final_info has no {MASK!r}: "
                    "which actions were possible at the end is unknown. Make it with another autoreset mode"
                )
            final[number] = {ALONE: seen, MASK: mask} if self._alone else {**seen, MASK: mask}
        return np.array(final, object)

    def _show(self, observation: Any, mask: Bools) -> Shown:
        shown: Any = mask
        if self._device is not None:
            import torch

            shown = torch.as_tensor(mask, device=self._device)
        return {ALONE: observation, MASK: shown} if self._alone else {**observation, MASK: shown}


def has_masks(env: gym.Env[Any, Any]) -> bool:
    """Whether an environment, or a wrapper of it, has the method that tells masks."""
    return env.has_wrapper_attr(METHOD) and callable(env.get_wrapper_attr(METHOD))


def vector_method(env: gym.vector.VectorEnv[Any, Any, Any]) -> Callable[[], Any] | None:
    """What returns the masks of all environments: their own method, or that of every single one of Gymnasium's. None:
    there is none, or actions are a box."""
    if isinstance(env.single_action_space, gym.spaces.Box):
        return None
    layer: Any = env
    while layer is not None:
        if callable(found := getattr(layer, METHOD, None)):
            return cast("Callable[[], Any]", found)
        layer = getattr(layer, "env", None)
    several = env.unwrapped
    told_by_each = isinstance(several, gym.vector.SyncVectorEnv | gym.vector.AsyncVectorEnv)
    if told_by_each and all(several.call("has_wrapper_attr", METHOD)):  # type: ignore[attr-defined]
        return partial(several.call, METHOD)  # type: ignore[attr-defined]
    return None


class Kept:
    """Turns masks as environments tell them into bool arrays.

    Args:
        action: of one environment.
        who: tells them, for errors.

    Raises:
        EnvError: actions are a box.
    """

    def __init__(self, action: ActionSpec, who: str) -> None:
        if action.box or action.hybrid:
            raise EnvError(f"the {who}'s actions are {action.words}: masks are for discrete actions")
        self.shape, self._choices, self._who = mask_shape(action), action.choices, who
        self.nothing = np.zeros(self.shape, np.bool_)

    def row(self, told: Any) -> Bools:
        """The mask of one environment, [n].

        Raises:
            EnvError: it has another shape or kind.
        """
        mask = _joined(told)
        if mask.shape != self.shape or mask.dtype.kind not in "biu":
            raise EnvError(self._wrong(mask, list(self.shape)))
        return mask.astype(np.bool_, copy=False)

    def rows(self, told: Any, count: int) -> Bools:
        """The masks of all environments, [B, n].

        Raises:
            EnvError: as ``row``.
        """
        told = _on_host(told)
        if isinstance(told, np.ndarray) and told.ndim and told.dtype == object:
            told = list(told)
        if isinstance(told, list | tuple) and told:
            told = np.stack([self.nothing if one is None else self.row(one) for one in told])
        mask = np.asarray(told)
        if mask.shape != (count, *self.shape) or mask.dtype.kind not in "biu":
            raise EnvError(self._wrong(mask, [count, *self.shape]))
        return mask.astype(np.bool_, copy=False)

    def _wrong(self, mask: Array, wanted: list[int]) -> str:
        actions = " + ".join(map(str, self._choices))
        return (
            f"the {self._who} told an action mask of {mask.dtype} {list(mask.shape)}; its {actions} actions take bool, "
            f"or integers 0 and 1, of shape {wanted}"
        )


def with_mask(space: gym.Space[Any], shape: Sequence[int]) -> tuple[bool, gym.spaces.Dict]:
    """Whether an observation is an entry of its own in what is shown, and the space of that."""
    alone = not isinstance(space, gym.spaces.Dict)
    entries = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {ALONE: space}
    return alone, gym.spaces.Dict({**entries, MASK: gym.spaces.MultiBinary(shape[0])})


def random_action(space: gym.Space[Any], observation: Any) -> Any:
    """A uniformly random action, of those that the observation's mask leaves."""
    if not (isinstance(observation, Mapping) and MASK in observation):
        return space.sample()
    mask = np.asarray(observation[MASK]).astype(np.int8)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.sample(mask=tuple(np.split(mask, np.cumsum(space.nvec)[:-1])))
    if isinstance(space, gym.spaces.MultiBinary):
        both = mask.reshape(-1, 2)
        return space.sample(mask=np.where(both.all(axis=1), 2, both[:, 1]).astype(np.int8))
    return space.sample(mask=mask) if isinstance(space, gym.spaces.Discrete) else space.sample()


def first_possible(action: ActionSpec, masks: Array) -> Array:
    """The first possible action of each mask [R, n], as the environment counts them."""
    if not action.nvec:
        return action.as_counted(masks.argmax(axis=1))
    parts = np.split(masks, np.cumsum(action.nvec)[:-1], axis=1)
    return action.as_counted(np.stack([part.argmax(axis=1) for part in parts], axis=1))


def _on_host(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _joined(told: Any) -> Array:
    """One array of a mask, which may be one for each choice."""
    if isinstance(told, tuple | list) and len(told) and not np.isscalar(told[0]):
        return np.concatenate([np.asarray(part) for part in told])
    return np.asarray(told)


def _one(final: Any, number: int) -> Any:
    """The observation of one environment, of a batch of them or of an array of single ones."""
    if isinstance(final, Mapping):
        return {key: _one(value, number) for key, value in final.items()}
    return final[number]
