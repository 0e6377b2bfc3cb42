"""Sampled batches, and the arrays that they are gathered into."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl.replay.layout import Layout
from apexrl.spec import Array


class Batch:
    """B sampled items. The arrays are yours: nothing overwrites them while you hold them.

    Attributes:
        data: field name -> ``[B, ...]``. Rows mode: the declared fields. ``kind="transition"``: each sampled field
            (windowed ones ``[B, stack, ...]`` when ``stack`` > 1), ``next_<field>`` for the windowed ones, ``reward``
            (float32, the n-step return) and ``discount`` (float32, γ^m·(1 − terminated), m ≤ n).
        keys: uint64 ``[B]``, for ``update_priorities``.
        probabilities: float64 ``[B]``, P(i) at the time of the draw.
        weights: float32 ``[B]``, (N·P(i))^−β divided by its largest value in this batch (Schaul et al. 2016, §3.4).
    """

    __slots__ = ("data", "keys", "probabilities", "weights")

    def __init__(
        self,
        data: dict[str, Array],
        keys: NDArray[np.uint64],
        probabilities: NDArray[np.float64],
        weights: NDArray[np.float32],
    ) -> None:
        self.data = data
        self.keys = keys
        self.probabilities = probabilities
        self.weights = weights

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} {value.dtype}{list(value.shape)}" for name, value in self.data.items())
        return f"Batch({len(self)} items: {fields})"


class Updated(NamedTuple):
    """What ``update_priorities`` did."""

    applied: int  # items whose priority was written
    stale: int  # keys whose item has gone; nothing was written for them


Allocator = Callable[[tuple[int, ...], str], Array]


def _allocate(shape: tuple[int, ...], dtype: str) -> Array:
    return np.empty(shape, dtype)


class _Arrays:
    """One set of output arrays for batches of one size."""

    __slots__ = ("columns", "fixed", "idle", "named", "outputs")

    def __init__(self, native: _native.Replay, layout: Layout, size: int, allocate: Allocator) -> None:
        columns, later = [], []
        self.named: dict[str, Array] = {}
        for column in layout.columns:
            here = allocate((size, *column.window_shape), column.field.dtype) if column.field.sampled else None
            there = None
            if here is not None:
                self.named[column.name] = here
                if column.windowed:
                    there = self.named["next_" + column.name] = allocate(here.shape, column.field.dtype)
            columns.append(here)
            later.append(there)
        reward = discount = None
        if layout.kind == "transition":
            reward = self.named["reward"] = allocate((size,), "float32")
            discount = self.named["discount"] = allocate((size,), "float32")
        keys = np.empty(size, np.uint64)
        probabilities = np.empty(size, np.float64)
        weights = allocate((size,), "float32")
        self.fixed = (keys, probabilities, cast("NDArray[np.float32]", weights))
        self.outputs = native.outputs(
            size, columns, later, reward, discount, keys=keys, probabilities=probabilities, weights=weights
        )
        self.columns: tuple[Array, ...] = (*self.named.values(), *self.fixed)
        del columns, later, here, there, reward, discount, keys, probabilities, weights
        self.idle = self.references()

    def free(self) -> bool:
        """Whether nobody outside holds any of these arrays, nor a view of one."""
        return self.references() == self.idle

    def references(self) -> list[int]:
        return [sys.getrefcount(array) for array in self.columns]

    def batch(self) -> Batch:
        return Batch(self.named.copy(), *self.fixed)


class BatchPool:
    """Reuses a batch's arrays once the batch was dropped: touching fresh pages costs more than filling them."""

    def __init__(self, native: _native.Replay, layout: Layout) -> None:
        self._native = native
        self._layout = layout
        self._sets: dict[int, list[_Arrays]] = {}
        self.allocate: Allocator = _allocate

    def take(self, size: int) -> _Arrays:
        """Arrays for ``size`` items that nobody else holds. Give them back with ``put`` when nothing was sampled."""
        sets = self._sets.setdefault(size, [])
        for i, arrays in enumerate(sets):
            if arrays.free():
                return sets.pop(i)
        if len(self._sets) > 8:  # many sizes: keep only this one's
            self._sets = {size: sets}
        return _Arrays(self._native, self._layout, size, self.allocate)

    def put(self, size: int, arrays: _Arrays) -> None:
        sets = self._sets.setdefault(size, [])
        if len(sets) < 64:
            sets.append(arrays)

    def clear(self) -> None:
        self._sets.clear()
