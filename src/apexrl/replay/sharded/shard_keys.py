"""Keys of batches drawn from several shards: they tell which shard an item came from."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.replay.sharded.shard import DrawResult

_ROW_BITS = 24  # the low bits of a key are the row in its batch, the others the batch's number
MAX_ROWS = (1 << _ROW_BITS) - 1  # of a batch
_FIRST_BITS = 39  # the first batch's number is random, so that keys of an earlier sampler match no batch of this one
_REMEMBERED = 1024  # batches whose priorities can still be written


class ShardRows(NamedTuple):
    """The rows of a request that one shard gave."""

    shard: int
    generation: str
    keys: NDArray[np.uint64]  # [N], the shard's own
    rows: NDArray[np.bool_]  # [B], which of the request's keys they are


class ShardKeys:
    """Makes the keys of batches, and remembers the shards' keys of the last 1024 batches."""

    def __init__(self) -> None:
        self._serial = secrets.randbits(_FIRST_BITS)
        self._batches: OrderedDict[int, list[tuple[int, int, str, NDArray[np.uint64]]]] = OrderedDict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy in another process is another sampler."""
        self.__dict__.update(state)
        self._serial = secrets.randbits(_FIRST_BITS)

    def make(self, rows: int, parts: Sequence[tuple[int, DrawResult]]) -> NDArray[np.uint64]:
        """uint64 [rows], the keys of a batch that consists of ``parts`` in order. Without parts, they are not kept."""
        self._serial += 1
        first, batch = 0, []
        for shard, drawn in parts:
            batch.append((shard, first, drawn.status.generation, np.array(drawn.keys)))
            first += len(drawn.keys)
        if batch:
            self._batches[self._serial] = batch
            if len(self._batches) > _REMEMBERED:
                self._batches.popitem(last=False)
        return (np.uint64(self._serial) << np.uint64(_ROW_BITS)) + np.arange(rows, dtype=np.uint64)

    def by_shard(self, keys: NDArray[np.uint64]) -> Iterator[ShardRows]:
        """``keys`` (uint64 [B]) by the shard that they came from. Keys that are not remembered are left out."""
        serials, rows = keys >> np.uint64(_ROW_BITS), keys & np.uint64(MAX_ROWS)
        for serial in np.unique(serials).tolist():
            here = serials == serial
            for shard, first, generation, own in self._batches.get(serial, ()):
                mine = here & (rows >= first) & (rows < first + len(own))
                if mine.any():
                    yield ShardRows(shard, generation, own[(rows[mine] - np.uint64(first)).astype(np.intp)], mine)
