"""Converts Gymnasium spaces to the fields of an ``EnvSpec``, and observations to named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
import numpy as np

from apexrl.errors import SpecError
from apexrl.spec import ACTION_MASK, OBSERVATION, ActionSpec, Array, EnvSpec, Field

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Leaf:
    """One array of an observation: where it sits in the (nested) Dict, and how it is stored."""

    name: str  # "observation" or "observation/<key>/…"
    path: tuple[str, ...]  # keys from the outermost Dict inwards
    field: Field
    start: int = 0  # smallest value of a Discrete space, subtracted when stored
    categories: int = 0  # of a Discrete space


def env_spec(observation_space: gym.Space[Any], action_space: gym.Space[Any], stack: int = 1) -> EnvSpec:
    """Describe an environment without Gymnasium.

    Raises:
        SpecError: a space is not supported; the message names it.
    """
    leaves, action = observation_leaves(observation_space), action_spec(action_space)
    _check_mask(leaves, action)
    return EnvSpec(
        observation={leaf.name: leaf.field for leaf in leaves},
        action=action,
        stack=stack,
        categories={leaf.name: leaf.categories for leaf in leaves if leaf.categories},
        starts={leaf.name: leaf.start for leaf in leaves if leaf.start},
    )


def observation_leaves(space: gym.Space[Any]) -> tuple[Leaf, ...]:
    """The arrays that an observation is made of, nested ``Dict`` keys joined by ``/``.

    Box keeps its dtype, except float64 which is stored as float32; Discrete becomes an int64 scalar counted
    from 0; MultiBinary an int8 array. The outermost key ``action_mask`` becomes bool (``spec.ACTION_MASK``).

    Raises:
        SpecError: another kind of space, an empty one, or a key that cannot be part of a name.
    """
    leaves = tuple(_walk(space, ()))
    if not leaves:
        raise SpecError(f"observation space {space} holds no entry: give the agent something to see")
    return leaves


def _walk(space: gym.Space[Any], path: tuple[str, ...]) -> list[Leaf]:
    name = "/".join((OBSERVATION, *path))
    if name == ACTION_MASK:
        return [_mask_leaf(space, path)]
    match space:
        case gym.spaces.Dict():
            for key in space.spaces:
                if not isinstance(key, str) or not key or "/" in key:
                    raise SpecError(f"{name} has the key {key!r}: keys must be non-empty strings without '/'")
            return [leaf for key, inner in space.spaces.items() for leaf in _walk(inner, (*path, key))]
        case gym.spaces.Box():
            dtype = "float32" if space.dtype == np.float64 else str(space.dtype)
            try:
                return [Leaf(name, path, Field(space.shape, dtype))]
            except SpecError as error:
                raise SpecError(f"{name} is {space}, which cannot be stored: {error}") from error
        case gym.spaces.Discrete():
            return [Leaf(name, path, Field((), "int64"), start=int(space.start), categories=int(space.n))]
        case gym.spaces.MultiBinary():
            return [Leaf(name, path, Field(space.shape, "int8"))]
    raise SpecError(
        f"{name} is a {type(space).__name__} space ({space}), which is not supported: use Box, Discrete, MultiBinary "
        "or a Dict of them (gymnasium.wrappers.FlattenObservation turns most others into a Box)"
    )


def _mask_leaf(space: gym.Space[Any], path: tuple[str, ...]) -> Leaf:
    """The key ``action_mask``: kept as bool."""
    if isinstance(space, gym.spaces.Box) and space.dtype != np.bool_:
        kept = (space.low == 0).all() and (space.high == 1).all()
    else:
        kept = isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary)
    if not kept:
        raise SpecError(
            f"the observation's key action_mask is {space}: a mask of possible actions is a Box of 0 to 1 or a "
            "MultiBinary; give the key another name if it is something else"
        )
    return Leaf(ACTION_MASK, path, Field(space.shape or (), "bool"))


def _check_mask(leaves: tuple[Leaf, ...], action: ActionSpec) -> None:
    """Refuse a mask that does not fit the actions."""
    for leaf in leaves:
        if leaf.name != ACTION_MASK:
            continue
        if action.box:
            raise SpecError(
                "the observation has the key action_mask, and actions are a box: masks are for discrete actions; give "
                "the key another name"
            )
        if leaf.field.shape != (size := mask_shape(action)):
            raise SpecError(
                f"the observation's key action_mask has shape {list(leaf.field.shape)}; the actions "
                f"{' + '.join(map(str, action.choices))} take {list(size)}"
            )


def mask_shape(action: ActionSpec) -> tuple[int]:
    """The shape of the mask of discrete actions: of several choices the alternatives of all, side by side."""
    return (sum(action.choices),)


def action_spec(space: gym.Space[Any]) -> ActionSpec:
    """Describe the actions.

    Raises:
        SpecError: the action space is not one of Discrete, MultiDiscrete, MultiBinary or a floating-point Box.
    """
    match space:
        case gym.spaces.Discrete():
            return ActionSpec(n=int(space.n), start=int(space.start))
        case gym.spaces.MultiDiscrete() if space.nvec.ndim == 1:
            nvec, starts = (tuple(int(n) for n in numbers) for numbers in (space.nvec, space.start))
            return ActionSpec(shape=(len(nvec),), nvec=nvec, starts=starts)
        case gym.spaces.MultiBinary() if len(space.shape) == 1:
            (k,) = space.shape
            return ActionSpec(shape=(k,), nvec=(2,) * k, starts=(0,) * k)
        case gym.spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
            return ActionSpec(shape=space.shape, dtype="float32", low=low, high=high)
    raise SpecError(
        f"the action space is {space}, which is not supported: use Discrete, a MultiDiscrete or MultiBinary of one "
        "dimension, or a floating-point Box (wrap the environment in a gymnasium.ActionWrapper that offers one)"
    )


def flatten_observation(leaves: tuple[Leaf, ...], observations: Any) -> Arrays:
    """Name the arrays of a batch of observations (Gymnasium's vector form), ``[B, ...]`` each.

    Copies only where the stored dtype differs or a Discrete space does not start at 0.
    """
    flat: Arrays = {}
    for leaf in leaves:
        value = observations
        for key in leaf.path:
            value = cast("Mapping[str, Any]", value)[key]
        array = np.asarray(value)
        if leaf.start:
            array = array - leaf.start
        flat[leaf.name] = array.astype(leaf.field.dtype, copy=False)
    return flat
