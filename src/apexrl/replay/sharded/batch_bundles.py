"""Several batches of a replay that lies in shards, asked for at once: calls cost more than what small batches bring."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apexrl.replay.batch import Allocator, ArraySet, Batch, Updated
from apexrl.replay.layout import Layout
from apexrl.replay.sharded.shard_keys import checked
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from apexrl.spec import Array

if TYPE_CHECKING:
    from apexrl.replay.replay import Normalize
    from apexrl.replay.served.batch_server import BatchServer

_MOST = 32  # batches of a load
_MOST_BYTES = 4 << 20
_SOON_SECONDS, _LATE_SECONDS = 0.03, 0.2  # a load that lasts less may be larger, one that lasts longer is too large


class Loads:
    """``sample`` and ``update_priorities`` of a ``ShardedReplay`` that is no queue, in loads of several batches.

    A load is drawn as one batch of that size would be, and dealt out at random; each batch has importance weights of
    its own. So a batch is drawn a little before it is used, as prefetched ones are: loads are as large as what is used
    within a fifth of a second, and never larger than 4 MiB. Priorities go back when a load is used up.

    Args:
        replay: where they come from; nobody else samples it.
        seed: of the order in which a load is dealt out.
    """

    def __init__(self, replay: ShardedReplay, seed: int = 0) -> None:
        self._replay = replay
        self._rng = np.random.default_rng(seed)
        self._load: Batch | None = None
        self._order: NDArray[np.intp] = np.empty(0, np.intp)  # rows of the load that are left
        self._beta = -1.0
        self._batches = 1  # of the next load
        self._size = 0  # of a batch
        self._begun = -math.inf  # monotonic seconds
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
            self._came(batch.data)
            return batch
        load, rows = self._rows(timeout)
        data = {}
        for name, values in load.data.items():
            data[name] = self.allocator((len(rows), *values.shape[1:]), values.dtype.name)
            np.take(values, rows, axis=0, out=data[name], mode="clip")
        return Batch(data, load.keys[rows], load.probabilities[rows], _weights(load, rows, normalize))

    def fill(self, arrays: ArraySet, batch_size: int, beta: float, normalize: Normalize, timeout: float) -> None:
        """As ``sample``, into arrays for ``batch_size`` items of this ``layout``."""
        if self._single(batch_size, beta, normalize):
            self._replay.fill(arrays, batch_size, beta, normalize, timeout)
            self._came(arrays.named)
            return
        load, rows = self._rows(timeout)
        for name, values in load.data.items():
            np.take(values, rows, axis=0, out=arrays.named[name], mode="clip")
        arrays.fixed[0][:], arrays.fixed[1][:] = load.keys[rows], load.probabilities[rows]
        arrays.fixed[2][:] = _weights(load, rows, normalize)

    def update_priorities(self, keys: Any, priorities: Any) -> Updated:
        """See ``ShardedReplay.update_priorities``; they are on their way when the load is used up, and counted then."""
        keys, values = checked(keys, priorities)
        self._keys.append(keys.copy())
        self._priorities.append(values.copy())
        late = time.monotonic() - self._begun > _LATE_SECONDS
        if late or not len(self._order):
            self._send()
        return Updated(len(keys), 0)

    def wait(self, timeout: float) -> None:
        """… until something that was asked for has come, at most ``timeout`` seconds."""
        self._replay.wait(timeout)

    def serve(
        self, learners: int, batch_size: int, beta: float = 0.4, prefetch: int = 2, normalize: Normalize = "batch"
    ) -> BatchServer:
        """Sample for several learners of this host; see ``BatchServer``."""
        from apexrl.replay.served.batch_server import BatchServer

        self._replay.check_served(batch_size, beta, normalize)
        return BatchServer(self, learners, batch_size, beta, prefetch, normalize)

    def save(self, path: str | os.PathLike[str], check: Callable[[], None] = lambda: None) -> None:
        """ConfigError: no process has all of it."""
        self._replay.save(path)

    def stats(self) -> dict[str, Any]:
        """See ``ShardedReplay.stats``; ``sampled`` counts whole loads."""
        return self._replay.stats()

    def __len__(self) -> int:
        return len(self._replay)

    def _single(self, size: int, beta: float, normalize: Normalize) -> bool:
        """Whether the next load is one batch, which needs no dealing out."""
        self._replay.check(size, beta, normalize)
        if size != self._size:
            self._batches, self._begun = 1, -math.inf
        if (size, beta) != (self._size, self._beta):
            self._size, self._beta, self._order = int(size), beta, self._order[:0]
        single = self._batches == 1 and not len(self._order)
        if single:
            self._send()
        return single

    def _rows(self, timeout: float) -> tuple[Batch, NDArray[np.intp]]:
        """A load, and the rows of it that are the next batch."""
        if not len(self._order):
            self._send()
            self._load = self._replay.sample(self._batches * self._size, self._beta, normalize="none", timeout=timeout)
            self._order = self._rng.permutation(len(self._load))
            self._came(self._load.data)
        assert self._load is not None
        rows, self._order = self._order[: self._size], self._order[self._size :]
        return self._load, rows

    def _came(self, data: Mapping[str, Array]) -> None:
        """A load has come: the next one may be larger, or should be smaller."""
        now = time.monotonic()
        since, self._begun = now - self._begun, now  # what the limiter held back counts, too
        if since < _SOON_SECONDS and 2 * sum(values.nbytes for values in data.values()) <= _MOST_BYTES:
            self._batches = min(2 * self._batches, _MOST)
        elif since > _LATE_SECONDS:
            self._batches = max(1, self._batches // 2)

    def _send(self) -> None:
        if self._keys:
            keys, priorities = np.concatenate(self._keys), np.concatenate(self._priorities)
            self._keys, self._priorities = [], []
            self._replay.update_priorities(keys, priorities)


def _weights(load: Batch, rows: NDArray[np.intp], normalize: Normalize) -> NDArray[np.float32]:
    raw = load.weights[rows]
    return np.asarray(raw / raw.max() if normalize == "batch" else raw, np.float32)
