"""Keys of batches that were drawn from several shards: which shard's item every row is."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import PriorityError, SpecError
from apexrl.replay.sharded.shard import Drawn
from apexrl.replay.writer import as_priorities

_ROW_BITS = 24  # of a key: the row of its batch; above them, the batch's number
ROWS_MAX = (1 << _ROW_BITS) - 1  # of a batch
_FIRST_BITS = 39  # of a sampler's first batch's number, which is drawn: keys of the sampler before it name none of its
_REMEMBERED = 1024  # batches whose priorities may still come
_LARGEST_PRIORITY = 1e150


class Origin(NamedTuple):
    """Rows that one shard gave."""

    shard: int
    life: str
    keys: NDArray[np.uint64]  # [N] that the shard knows
    rows: NDArray[np.bool_]  # [B] which of the asked keys they are


class ShardKeys:
    """Makes the keys of batches, and remembers of the last 1024 what lies behind them."""

    def __init__(self) -> None:
        self._serial = secrets.randbits(_FIRST_BITS)
        self._behind: OrderedDict[int, list[tuple[int, int, str, NDArray[np.uint64]]]] = OrderedDict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process it is another sampler."""
        self.__dict__.update(state)
        self._serial = secrets.randbits(_FIRST_BITS)

    def make(self, rows: int, parts: Sequence[tuple[int, Drawn]]) -> NDArray[np.uint64]:
        """uint64 [rows] of a batch whose rows are those of ``parts``, shard by shard; of none if nobody may ask."""
        self._serial += 1
        first, behind = 0, []
        for shard, drawn in parts:
            behind.append((shard, first, drawn.standing.life, np.array(drawn.keys)))
            first += len(drawn.keys)
        if behind:
            self._behind[self._serial] = behind
            if len(self._behind) > _REMEMBERED:
                self._behind.popitem(last=False)
        return (np.uint64(self._serial) << np.uint64(_ROW_BITS)) + np.arange(rows, dtype=np.uint64)

    def origins(self, keys: NDArray[np.uint64]) -> Iterator[Origin]:
        """Whose ``keys`` (uint64 [B]) are; those that are not remembered are nobody's."""
        serials, rows = keys >> np.uint64(_ROW_BITS), keys & np.uint64(ROWS_MAX)
        for serial in np.unique(serials).tolist():
            here = serials == serial
            for shard, first, life, own in self._behind.get(serial, ()):
                mine = here & (rows >= first) & (rows < first + len(own))
                if mine.any():
                    yield Origin(shard, life, own[(rows[mine] - np.uint64(first)).astype(np.intp)], mine)


def checked(keys: Any, priorities: Any) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Keys and raw magnitudes as they can be sent.

    Raises:
        SpecError: they are no keys, or not as many priorities.
        PriorityError: a value is NaN, infinite or negative; the row is named.
    """
    keys = np.ascontiguousarray(keys)
    if keys.ndim != 1 or keys.dtype != np.uint64:
        raise SpecError(f"keys must be the uint64 [B] of a batch, got {keys.dtype} {list(keys.shape)}")
    values = np.asarray(as_priorities(priorities, len(keys)), np.float64)
    bad = np.flatnonzero(~((values >= 0.0) & (values <= _LARGEST_PRIORITY)))
    if bad.size:
        raise PriorityError(
            f"priority of row {bad[0]} is {values[bad[0]]}: priorities are finite magnitudes |δ| from 0 to 1e150"
        )
    return keys, values
