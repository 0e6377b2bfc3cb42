"""Converts Gymnasium's action spaces to an ``ActionSpec``."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np

from apexrl.errors import SpecError
from apexrl.spec import ActionPart, ActionSpec, Array

MOST_OF_A_CHOICE = 1 << 24  # whole numbers up to here are exact in float32, in which hybrid actions lie

_USE = (
    "use Discrete, a MultiDiscrete or MultiBinary of one dimension, a floating-point Box, or a Tuple or Dict of them "
    "(wrap the environment in a gymnasium.ActionWrapper that offers one)"
)


def action_spec(space: gym.Space[Any]) -> ActionSpec:
    """Describe the actions. Those of a ``Tuple`` or ``Dict`` become one array of all choices and numbers.

    Raises:
        SpecError: the action space is not one of Discrete, MultiDiscrete, MultiBinary or a floating-point Box, nor a
            Tuple or Dict of them.
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
            low, high = _within(space.low, np.inf), _within(space.high, -np.inf)
            return ActionSpec(shape=space.shape, dtype="float32", low=low, high=high)
        case gym.spaces.Tuple() | gym.spaces.Dict():
            return _joined(space)
    raise SpecError(f"the action space is {space}, which is not supported: {_USE}")


def _within(bound: Any, inwards: float) -> Array:
    """A bound as float32, inside the box: the nearest to the float64 0.1 is above it, and no action of the space.

    Args:
        inwards: +∞ of the least, −∞ of the greatest.
    """
    with np.errstate(over="ignore"):
        near = bound.astype(np.float32)
    outside = near < bound if inwards > 0.0 else near > bound
    inside: Array = np.where(outside, np.nextafter(near, np.float32(inwards)), near)
    return inside


def _joined(space: gym.spaces.Tuple[Any] | gym.spaces.Dict) -> ActionSpec:
    parts: list[ActionPart] = []
    nvec: list[int] = []
    starts: list[int] = []
    lows: list[Any] = []
    highs: list[Any] = []
    for path, inner in _entries(space, ()):
        one = action_spec(inner)
        parts.append(ActionPart(path, one.shape, str(inner.dtype), choices=not one.box))
        if one.box:
            lows.append(cast("Array", one.low).ravel())
            highs.append(cast("Array", one.high).ravel())
        else:
            nvec += one.nvec or (one.n,)
            starts += one.starts or (one.start,)
    numbers = sum(len(low) for low in lows)
    if not parts or not len(nvec) + numbers:
        raise SpecError(f"the action space is {space}, which holds no entry: {_USE}")
    if numbers and nvec and max(nvec) + max(map(abs, starts)) > MOST_OF_A_CHOICE:
        raise SpecError(f"the action space is {space}: a choice beside numbers has at most {MOST_OF_A_CHOICE} values")
    low, high = (np.concatenate(bounds) if bounds else None for bounds in (lows, highs))
    return ActionSpec(
        shape=(len(nvec) + numbers,),
        dtype="float32" if numbers else "int64",
        low=low,
        high=high,
        nvec=tuple(nvec),
        starts=tuple(starts),
        parts=tuple(parts),
    )


def _entries(space: gym.Space[Any], path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], gym.Space[Any]]]:
    """Paths and spaces of what is neither a Tuple nor a Dict."""
    match space:
        case gym.spaces.Dict():
            if not all(isinstance(key, str) for key in space.spaces):
                raise SpecError(f"the action space has the keys {list(space.spaces)}: they must be strings")
            inner: Any = space.spaces.items()
        case gym.spaces.Tuple():
            inner = enumerate(space.spaces)
        case _:
            return [(path, space)]
    return [entry for key, one in inner for entry in _entries(one, (*path, key))]
