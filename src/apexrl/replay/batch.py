"""Sampled batches, and the arrays that they are gathered into."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl.replay.layout import Column, Layout
from apexrl.spec import Array


class Batch:
    """B sampled items. The arrays are yours: nothing overwrites them while you hold them.

    Attributes:
        data: field name -> ``[B, ...]``. Rows mode: the declared fields. ``kind="transition"``: each sampled field
            (windowed ones ``[B, stack, ...]`` when ``stack`` > 1), ``next_<field>`` for the windowed ones, ``reward``
            (float32, the n-step return) and ``discount`` (float32, γ^m·(1 − terminated), m ≤ n).
            ``kind="sequence"`` and ``"unroll"``, T = burn_in + length: windowed fields ``[B, T + 1, (stack,) ...]``,
            per-item fields ``[B, ...]``, others ``[B, T, ...]``; ``reward`` and ``discount`` = γ·(1 − terminated)
            (float32 ``[B, T]``), ``mask`` (bool ``[B, T]``: a step was taken there) and ``first`` (bool
            ``[B, T + 1]``: an episode begins there). Where there is no step, values are zero.
            With ``hindsight``, besides: ``hindsight/relabelled`` (bool ``[B]``), ``hindsight/goal`` ``[B, ...]`` (zero
            where none was drawn), ``hindsight/achieved`` ``[B, n, ...]`` (after each step of the item; zero behind its
            last) and ``hindsight/steps`` (int32 ``[B]``: m).
        keys: uint64 ``[B]``, for ``update_priorities``.
        probabilities: float64 ``[B]``, P(i) at the time of the draw; 1 from the fifo sampler.
        weights: float32 ``[B]``, (N·P(i))^−β, normalised as ``sample`` was told (Schaul et al. 2016, §3.4).
    """

    __slots__ = ("data", "keys", "probabilities", "weights")

    def __init__(
        self,
        data: dict[str, NDArray[Any]],
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
    """The result of ``update_priorities``."""

    applied: int  # items whose priority was written
    stale: int  # keys whose item was evicted; nothing was written for them


Allocator = Callable[[tuple[int, ...], str], Array]


def aligned(shape: tuple[int, ...], dtype: str) -> Array:
    """An array aligned to 64 bytes, so that JAX can use it without a copy."""
    memory = bytearray(math.prod(shape) * np.dtype(dtype).itemsize + 64)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % 64
    return np.ndarray(shape, dtype, buffer=memory, offset=start)


def holder(memory: Any) -> Any:
    """An object, not an array, that keeps ``memory`` alive for arrays made ``over`` it.

    In NumPy, a view of a view refers to the array that owns the memory, and the array in between then seems unused. If
    the owner is not an array, views refer to the array made here.
    """
    raw = memoryview(memory).cast("B")
    return (ctypes.c_ubyte * raw.nbytes).from_buffer(raw)


def over(owner: Any, shape: tuple[int, ...], dtype: str, offset: int = 0) -> Array:
    """An array over the memory of a ``holder``."""
    return np.ndarray(shape, dtype, buffer=owner, offset=offset)


def _never_a_view(allocate: Allocator) -> Allocator:
    def make(shape: tuple[int, ...], dtype: str) -> Array:
        array = allocate(shape, dtype)
        return over(holder(array), shape, dtype) if isinstance(array.base, np.ndarray) else array

    return make


def step_arrays(layout: Layout, size: int, allocate: Allocator = aligned) -> dict[str, Array]:
    """The arrays that a kind adds to the declared fields, for ``size`` items."""
    if layout.kind == "rows":
        return {}
    shape = (size, layout.steps) if layout.steps else (size,)
    arrays = {"reward": allocate(shape, "float32"), "discount": allocate(shape, "float32")}
    if layout.steps:
        arrays["mask"] = allocate(shape, "bool")
        arrays["first"] = allocate((size, layout.steps + 1), "bool")
    return arrays


def outputs_into(
    native: _native.Replay,
    layout: Layout,
    named: Mapping[str, Array],
    keys: Array,
    probabilities: Array,
    weights: Array,
) -> _native.Outputs:
    """Where a replay writes a batch: into arrays of as many rows as it has items."""

    def later(column: Column) -> Array | None:
        follows = column.windowed and layout.kind == "transition"
        return named.get("next_" + column.name) if follows else None

    step = {name: named.get(name) for name in step_arrays(layout, 0)}
    return native.outputs(
        len(keys),
        [named.get(column.name) for column in layout.columns],
        [later(column) for column in layout.columns],
        step.get("reward"),
        step.get("discount"),
        step.get("mask"),
        step.get("first"),
        keys=keys,
        probabilities=probabilities,
        weights=weights,
        hindsight=None if layout.hindsight is None else layout.hindsight.native(named),
    )


class ArraySet:
    """Output arrays for batches of one size. ``native``: the replay that samples into them; None: they are only
    read."""

    __slots__ = ("columns", "fixed", "named", "outputs")

    def __init__(self, native: _native.Replay | None, layout: Layout, size: int, allocate: Allocator) -> None:
        allocate = _never_a_view(allocate)
        self.named: dict[str, Array] = {}
        for column in layout.columns:
            shape = (size, *column.window_shape)
            if column.field.sampled:
                self.named[column.name] = allocate(shape, column.field.dtype)
                if column.windowed and layout.kind == "transition":
                    self.named["next_" + column.name] = allocate(shape, column.field.dtype)
        self.named |= step_arrays(layout, size, allocate)
        if layout.hindsight is not None:
            self.named |= {name: allocate(*what) for name, what in layout.hindsight.shapes(size).items()}
        keys = cast("NDArray[np.uint64]", allocate((size,), "uint64"))
        probabilities = cast("NDArray[np.float64]", allocate((size,), "float64"))
        weights = cast("NDArray[np.float32]", allocate((size,), "float32"))
        self.fixed = (keys, probabilities, weights)
        if native is not None:
            self.outputs = outputs_into(native, layout, self.named, keys, probabilities, weights)
        self.columns: tuple[Array, ...] = (*self.named.values(), *self.fixed)

    def free(self) -> bool:
        """Whether no caller holds any of these arrays or a view of one."""
        return _native.unheld(self.columns, 2)  # `columns`, and `named` or `fixed`

    def batch(self) -> Batch:
        return Batch(self.named.copy(), *self.fixed)


class BatchPool:
    """Reuses a batch's arrays after the batch was dropped: touching new pages costs more than filling them."""

    def __init__(self, native: _native.Replay | None, layout: Layout) -> None:
        self._native = native
        self._layout = layout
        self._sets: dict[int, list[ArraySet]] = {}
        self._lock = threading.Lock()
        self.allocate: Allocator = aligned

    def take(self, size: int) -> ArraySet:
        """Arrays for ``size`` items that no caller holds. Return them with ``put``."""
        with self._lock:
            sets = self._sets.setdefault(size, [])
            for i, arrays in enumerate(sets):
                if arrays.free():
                    return sets.pop(i)
            if len(self._sets) > 16:  # too many sizes: keep only this one's
                self._sets = {size: sets}
        return ArraySet(self._native, self._layout, size, self.allocate)

    def put(self, size: int, arrays: ArraySet) -> None:
        with self._lock:
            sets = self._sets.setdefault(size, [])
            if len(sets) < 64:
                sets.append(arrays)

    def clear(self) -> None:
        self._sets.clear()


def joined(parts: Sequence[Array], whole: Array | None, allocator: Allocator) -> Array:
    """``parts`` concatenated, into ``whole`` if given; writable, unlike arrays of an object store."""
    if whole is None and len(parts) == 1 and allocator is aligned and parts[0].flags.writeable:
        return parts[0]
    if whole is None:
        whole = allocator((sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].dtype.name)
    np.concatenate(parts, out=whole)
    return whole
