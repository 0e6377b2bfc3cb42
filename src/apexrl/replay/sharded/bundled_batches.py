"""Batches of a sharded replay, drawn several at a time because a call costs more than a small batch is worth."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl.replay.batch import Allocator, ArraySet, Batch, Updated
from apexrl.replay.core import Normalize
from apexrl.replay.layout import Layout
from apexrl.replay.priorities import checked
from apexrl.replay.served.batch_server import BatchServer
from apexrl.replay.served.batch_sources import ShardedSource
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from apexrl.spec import Array

_MAX_BATCHES = 32  # of a bundle
_MAX_BYTES = 4 << 20
_SHORT_SECONDS, _LONG_SECONDS = 0.03, 0.2  # a bundle used up sooner grows, one that lasts longer shrinks


class BundledBatches:
    """``sample`` and ``update_priorities`` of a ``ShardedReplay`` that is not fifo, in bundles of several batches.

    A bundle is drawn like one large batch and split at random; each batch has importance weights of its own. So a batch
    is drawn a little before it is used, as prefetched ones are: a bundle holds at most what is used within a fifth of a
    second, and at most 4 MiB. Priorities are sent when a bundle is used up.

    Args:
        replay: to draw from; it must not be sampled directly.
        seed: of the order in which a bundle is split.
    """

    def __init__(self, replay: ShardedReplay, seed: int = 0) -> None:
        self._replay = replay
        self._rng = np.random.default_rng(seed)
        self._bundle: Batch | None = None
        self._order: NDArray[np.intp] = np.empty(0, np.intp)  # rows of the bundle that are left
        self._beta = -1.0
        self._batches = 1  # of the next bundle
        self._size = 0  # of a batch
        self._arrived = -math.inf  # monotonic seconds
        self._keys: list[NDArray[np.uint64]] = []
        self._priorities: list[NDArray[np.float64]] = []

    @property
    def capacity(self) -> int:
        return self._replay.capacity

    @property
    def layout(self) -> Layout | None:
        return self._replay.layout

    @property
    def unsent(self) -> int:
        return self._replay.unsent

    @property
    def allocator(self) -> Allocator:
        return self._replay.allocator

    @allocator.setter
    def allocator(self, allocator: Allocator) -> None:
        self._replay.allocator = allocator

    def sample(
        self, batch_size: int, beta: float = 0.4, *, normalize: Normalize = "batch", timeout: float = 10.0
    ) -> Batch:
        """See ``ShardedReplay.sample``."""
        if self._single(batch_size, beta, normalize):
            batch = self._replay.sample(batch_size, beta, normalize=normalize, timeout=timeout)
            self._adapt_size(batch.data)
            return batch
        bundle, rows = self._rows(timeout)
        data = {}
        for name, values in bundle.data.items():
            data[name] = self.allocator((len(rows), *values.shape[1:]), values.dtype.name)
            np.take(values, rows, axis=0, out=data[name], mode="clip")
        return Batch(data, bundle.keys[rows], bundle.probabilities[rows], _weights(bundle, rows, normalize))

    def fill(self, arrays: ArraySet, batch_size: int, beta: float, normalize: Normalize, timeout: float) -> None:
        """Like ``sample``, into arrays for ``batch_size`` items of this ``layout``."""
        if self._single(batch_size, beta, normalize):
            self._replay.fill(arrays, batch_size, beta, normalize, timeout)
            self._adapt_size(arrays.named)
            return
        bundle, rows = self._rows(timeout)
        for name, values in bundle.data.items():
            np.take(values, rows, axis=0, out=arrays.named[name], mode="clip")
        arrays.fixed[0][:], arrays.fixed[1][:] = bundle.keys[rows], bundle.probabilities[rows]
        arrays.fixed[2][:] = _weights(bundle, rows, normalize)

    def update_priorities(self, keys: Any, priorities: Any) -> Updated:
        """See ``ShardedReplay.update_priorities``; they are sent and counted when the bundle is used up."""
        keys, values = checked(keys, priorities)
        self._keys.append(keys.copy())
        self._priorities.append(values.copy())
        late = time.monotonic() - self._arrived > _LONG_SECONDS
        if late or not len(self._order):
            self._send()
        return Updated(len(keys), 0)

    def wait(self, timeout: float) -> None:
        """Wait until a requested answer has arrived, at most ``timeout`` seconds."""
        self._replay.wait(timeout)

    def serve(
        self, learners: int, batch_size: int, beta: float = 0.4, prefetch: int = 2, normalize: Normalize = "batch"
    ) -> BatchServer:
        """Sample for several learners of this host; see ``BatchServer``."""
        return BatchServer(self, learners, batch_size, beta, prefetch, normalize)

    def batch_source(self) -> ShardedSource:
        return ShardedSource(self, self._replay.batch_source().layout)

    def check_batch(self, batch_size: int, beta: float, normalize: Normalize) -> None:
        self._replay.check_batch(batch_size, beta, normalize)

    def save(self, path: str | os.PathLike[str], check: Callable[[], None] = lambda: None) -> None:
        """ConfigError: no process holds all items."""
        self._replay.save(path)

    def stats(self) -> dict[str, Any]:
        """See ``ShardedReplay.stats``; ``sampled`` counts whole bundles."""
        return self._replay.stats()

    def __len__(self) -> int:
        return len(self._replay)

    def _single(self, size: int, beta: float, normalize: Normalize) -> bool:
        """Whether the next bundle is a single batch, which needs no splitting."""
        self.check_batch(size, beta, normalize)
        if size != self._size:
            self._batches, self._arrived = 1, -math.inf
        if (size, beta) != (self._size, self._beta):
            self._size, self._beta, self._order = int(size), beta, self._order[:0]
        single = self._batches == 1 and not len(self._order)
        if single:
            self._send()
        return single

    def _rows(self, timeout: float) -> tuple[Batch, NDArray[np.intp]]:
        """A bundle, and its rows that are the next batch."""
        if not len(self._order):
            self._send()
            self._bundle = self._replay.sample(
                self._batches * self._size, self._beta, normalize="none", timeout=timeout
            )
            self._order = self._rng.permutation(len(self._bundle))
            self._adapt_size(self._bundle.data)
        assert self._bundle is not None
        rows, self._order = self._order[: self._size], self._order[self._size :]
        return self._bundle, rows

    def _adapt_size(self, data: Mapping[str, Array]) -> None:
        """A bundle has arrived: make the next one larger or smaller."""
        now = time.monotonic()
        since, self._arrived = now - self._arrived, now  # including time that the limiter waited
        if since < _SHORT_SECONDS and 2 * sum(values.nbytes for values in data.values()) <= _MAX_BYTES:
            self._batches = min(2 * self._batches, _MAX_BATCHES)
        elif since > _LONG_SECONDS:
            self._batches = max(1, self._batches // 2)

    def _send(self) -> None:
        if self._keys:
            keys, priorities = np.concatenate(self._keys), np.concatenate(self._priorities)
            self._keys, self._priorities = [], []
            self._replay.update_priorities(keys, priorities)


def _weights(bundle: Batch, rows: NDArray[np.intp], normalize: Normalize) -> NDArray[np.float32]:
    raw = bundle.weights[rows]
    return np.asarray(raw / raw.max() if normalize == "batch" else raw, np.float32)
