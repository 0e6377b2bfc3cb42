"""The weights board: one process publishes weights, any number read the newest, without locks.

A version is one more than the number of learner updates in the run: version 1 has learned nothing. Versions only grow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from apexrl.errors import SpecError
from apexrl.shared.segment import attach_board, new_board
from apexrl.spec import Array

_SAME = "weights must have the names, shapes and dtypes of those published first"


class WeightsBoard:
    """Named arrays in shared memory (protocols.WeightsWriter and WeightsReader). Picklable to local processes.

    Args:
        nbytes: capacity for the weights; memory that is never written is not allocated.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes < 1:
            raise SpecError(f"a weights board needs at least 1 byte, not {nbytes}")
        self._native = new_board(nbytes)
        self._layout: list[tuple[str, tuple[int, ...], np.dtype[Any]]] | None = None

    @staticmethod
    def _attach(state: tuple[int, int, bytes, str]) -> WeightsBoard:
        board = WeightsBoard.__new__(WeightsBoard)
        board._native = attach_board(state)
        board._layout = None
        return board

    def __reduce__(self) -> tuple[Any, ...]:
        return (WeightsBoard._attach, (self._native.state(),))

    @property
    def capacity(self) -> int:
        """Bytes of weights that fit."""
        return self._native.capacity

    @property
    def version(self) -> int:
        """The newest version ever published; 0 before the first."""
        return self._native.version

    @property
    def spoilt_reads(self) -> int:
        """Reads that the publisher overtook three times in a row, so that the old weights were kept."""
        return self._native.spoilt

    def publish(self, weights: Mapping[str, Array], version: int) -> None:
        """Publish ``weights``. One process publishes at a time.

        Raises:
            SpecError: names, shapes or dtypes differ from the first publication, the weights do not fit, or the version
                is not larger than the newest.
        """
        if version <= self._native.version:
            raise SpecError(f"weights version {version} must be larger than the newest, {self._native.version}")
        arrays = [np.ascontiguousarray(value) for value in weights.values()]
        layout = [
            [name, list(np.shape(value)), array.dtype.str]
            for (name, value), array in zip(weights.items(), arrays, strict=True)
        ]
        told, before = json.dumps(layout).encode(), self._native.layout
        if before and before != told:
            _refuse_other(json.loads(before), layout)
        total = sum(array.nbytes for array in arrays)
        if total > self._native.capacity:
            raise SpecError(f"weights of {total} bytes do not fit the board of {self._native.capacity} bytes")
        if not self._native.set_layout(told):
            raise SpecError(_SAME)
        self._native.publish(version, arrays)

    def latest(self, newer_than: int = 0) -> tuple[int, dict[str, Array]] | None:
        """The newest (version, weights) as fresh arrays, or None when there is nothing newer."""
        if self._native.version <= newer_than:
            return None
        if self._layout is None:
            self._layout = [
                (name, tuple(shape), np.dtype(dtype)) for name, shape, dtype in json.loads(self._native.layout)
            ]
        sizes = [int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for _, shape, dtype in self._layout]
        if sum(sizes) > self._native.capacity or min(sizes, default=0) < 0:
            raise SpecError(
                f"the layout of these weights needs more than the {self._native.capacity} bytes of their board"
            )
        data = np.empty(sum(sizes), np.uint8)
        version = self._native.read(newer_than, data)
        if version == 0:
            return None
        weights: dict[str, Array] = {}
        at, begin = 0, data.ctypes.data
        for (name, shape, dtype), size in zip(self._layout, sizes, strict=True):
            part = data[at : at + size]
            weights[name] = (
                part.view(dtype) if (begin + at) % dtype.itemsize == 0 else part.copy().view(dtype)
            ).reshape(shape)
            at += size
        return version, weights

    def wait(self, newer_than: int, timeout: float) -> bool:
        """Wait until there are newer weights. False: not within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while self._native.version <= newer_than:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._native.wait(newer_than, min(left, 0.1))
        return True


class InlineWeights:
    """A weights board within one process, as ``--serial`` uses."""

    def __init__(self) -> None:
        self._newest: tuple[int, dict[str, Array]] | None = None

    @property
    def version(self) -> int:
        return self._newest[0] if self._newest else 0

    @property
    def spoilt_reads(self) -> int:
        return 0

    def publish(self, weights: Mapping[str, Array], version: int) -> None:
        if version <= self.version:
            raise SpecError(f"weights version {version} must be larger than the newest, {self.version}")
        copies = {name: np.array(value) for name, value in weights.items()}
        if self._newest:
            _refuse_other(_layout(self._newest[1]), _layout(copies))
        self._newest = (version, copies)

    def latest(self, newer_than: int = 0) -> tuple[int, dict[str, Array]] | None:
        if self._newest is None or self._newest[0] <= newer_than:
            return None
        return self._newest[0], {name: value.copy() for name, value in self._newest[1].items()}

    def wait(self, newer_than: int, timeout: float) -> bool:
        return self.version > newer_than


def _layout(weights: Mapping[str, Array]) -> list[list[Any]]:
    return [[name, list(array.shape), array.dtype.str] for name, array in sorted(weights.items())]


def _refuse_other(first: list[list[Any]], now: list[list[Any]]) -> None:
    if first == now:
        return
    before, after = ({name: f"{np.dtype(dtype)} {shape}" for name, shape, dtype in of} for of in (first, now))
    for name in sorted(before.keys() | after.keys()):
        had, has = (of.get(name, "not there") for of in (before, after))
        if had != has:
            raise SpecError(f"{_SAME}: {name!r} was {had}, and is {has}")
    raise SpecError(f"{_SAME}: they are in another order")
