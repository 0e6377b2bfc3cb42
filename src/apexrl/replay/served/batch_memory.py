"""The shared memory between a batch server and its learners.

It holds 4-byte words, then for each learner its batches and a ring of priority messages. A batch goes empty → full (by
the server) → taken → empty (by the learner). A learner marks the batches that a dead predecessor had taken as lost. The
server and each learner hold a record lock, which the kernel releases when their process ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl.errors import ConfigError
from apexrl.replay.batch import ArraySet, holder, over
from apexrl.replay.layout import Layout
from apexrl.shared.segment import new_segment
from apexrl.spec import Array

EMPTY, FULL, TAKEN, LOST = 0, 1, 2, 3
SERVER_LOCK, LEARNER_LOCK = 0, 1  # + learner
_LINE = 64  # bytes of a cache line


class BatchMemory:
    """The offsets of everything in the segment. Picklable.

    Args:
        learners, batch_size, prefetch: batches of that size kept ready for each learner.
        segment: created by another process; default: a new one.
    """

    SERVER_BELL, CLOSED = 0, 4  # offsets of words

    def __init__(
        self, layout: Layout, learners: int, batch_size: int, prefetch: int, segment: _native.Segment | None = None
    ) -> None:
        self.layout = layout
        self.learners = learners
        self.batch_size = batch_size
        self.prefetch = prefetch
        self.messages = 2 * prefetch + 2  # priority messages of one learner that may wait
        self._end = _LINE
        self._bells = [self._take(_LINE) for _ in range(learners)]  # bell, leased, written, read; beta at + 16
        self._states = [[self._take(_LINE) for _ in range(prefetch)] for _ in range(learners)]  # state, serial
        self._arrays: list[list[dict[str, int]]] = [[{} for _ in range(prefetch)] for _ in range(learners)]
        for sets in self._arrays:
            for offsets in sets:
                ArraySet(None, layout, batch_size, self._placing(offsets))
        self._rings = [
            [(self._take(8), self._take(8 * batch_size), self._take(8 * batch_size)) for _ in range(self.messages)]
            for _ in range(learners)
        ]
        self.segment = new_segment(self._end) if segment is None else segment
        if self.segment.nbytes < self._end:
            raise ConfigError(
                f"served batches need {self._end} bytes, but {self.segment.name} has {self.segment.nbytes}: it belongs "
                "to another server"
            )
        # Not an array, so that views refer to the arrays made over it and reference counts show when those are free.
        self._owner = holder(self.segment.view())

    def __reduce__(self) -> tuple[Any, ...]:
        return (BatchMemory, (self.layout, self.learners, self.batch_size, self.prefetch, self.segment))

    # Offsets of a learner's words.
    def bell(self, learner: int) -> int:
        """Rung when a batch is full or a message was read."""
        return self._bells[learner]

    def leased(self, learner: int) -> int:
        """Whether a learner holds this slot. It sets and clears it; the server clears it after its death."""
        return self._bells[learner] + 4

    def written(self, learner: int) -> int:
        """Number of priority messages written (mod 2^32)."""
        return self._bells[learner] + 8

    def read(self, learner: int) -> int:
        """Number of priority messages read by the server (mod 2^32)."""
        return self._bells[learner] + 12

    def state(self, learner: int, batch: int) -> int:
        return self._states[learner][batch]

    def serial(self, learner: int, batch: int) -> int:
        """Number of the batch among the learner's (mod 2^32); the oldest is taken first."""
        return self._states[learner][batch] + 4

    def in_order(self, learner: int, batches: list[int]) -> list[int]:
        """Oldest first. Serials wrap around, so they are compared by their distance from one of them."""
        some = self.segment.load(self.serial(learner, batches[0]))
        return sorted(batches, key=lambda k: (self.segment.load(self.serial(learner, k)) - some + 2**31) % 2**32)

    def beta(self, learner: int) -> NDArray[np.float64]:
        """[1]: the exponent that the learner asks for."""
        beta: NDArray[np.float64] = self.array((1,), "float64", self._bells[learner] + 16)
        return beta

    def array(self, shape: tuple[int, ...], dtype: str, offset: int) -> Any:
        return over(self._owner, shape, dtype, offset)

    def arrays(self, learner: int, batch: int, native: _native.Replay | None) -> ArraySet:
        """The arrays of one batch; ``native``: to sample into."""
        offsets = iter(self._arrays[learner][batch].values())
        return ArraySet(
            native, self.layout, self.batch_size, lambda shape, dtype: self.array(shape, dtype, next(offsets))
        )

    def message(self, learner: int, number: int) -> tuple[Array, NDArray[np.uint64], NDArray[np.float64]]:
        """Count [1], keys and magnitudes [batch_size] of a priority message."""
        count, keys, magnitudes = self._rings[learner][number % self.messages]
        size = (self.batch_size,)
        return (
            self.array((1,), "uint64", count),
            self.array(size, "uint64", keys),
            self.array(size, "float64", magnitudes),
        )

    def _take(self, nbytes: int) -> int:
        offset, self._end = self._end, -(-(self._end + nbytes) // _LINE) * _LINE
        return offset

    def _placing(self, offsets: dict[str, int]) -> Any:
        def place(shape: tuple[int, ...], dtype: str) -> Array:
            offsets[str(len(offsets))] = self._take(int(np.prod(shape)) * np.dtype(dtype).itemsize)
            return np.empty(0, dtype)

        return place
