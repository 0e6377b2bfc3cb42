"""Keys of batches that were drawn from several replays: they tell which replay an item came from."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ConfigError

_ROW_BITS = 24  # the low bits of a key are the row in its batch, the others the batch's number
MAX_ROWS = (1 << _ROW_BITS) - 1  # of a batch
_FIRST_BITS = 39  # the first batch's number is random, so that keys of an earlier sampler match no batch of this one
_REMEMBERED = 1024  # batches whose priorities can still be written


def check_batch(batch_size: int, beta: float, normalize: str, source: str) -> None:
    """Refuse a batch that cannot be drawn from several replays; ``source``: what they are together.

    Raises:
        ConfigError: an argument is out of range.
    """
    if not isinstance(batch_size, int | np.integer) or not 1 <= batch_size <= MAX_ROWS:
        raise ConfigError(f"batch_size={batch_size!r} must be an integer from 1 to {MAX_ROWS}")
    if normalize not in ("batch", "none"):
        raise ConfigError(f"normalize={normalize!r} must be 'batch' or 'none' with a {source} replay")
    if not 0.0 <= beta <= 100.0:
        raise ConfigError(f"beta={beta} must be between 0 and 100 (1: full correction)")


class SourceKeys(NamedTuple):
    """The rows of a batch that one source gave."""

    source: int
    generation: str  # of the source: which of several with this number it was
    keys: NDArray[np.uint64]  # [N], the source's own


class SourceRows(NamedTuple):
    """The rows of a request that one source gave."""

    source: int
    generation: str
    keys: NDArray[np.uint64]  # [N], the source's own
    rows: NDArray[np.bool_]  # [B], which of the request's keys they are


class BatchKeys:
    """Makes the keys of batches, and remembers the sources' keys of the last 1024 batches."""

    def __init__(self) -> None:
        self._serial = secrets.randbits(_FIRST_BITS)
        self._batches: OrderedDict[int, list[tuple[int, SourceKeys]]] = OrderedDict()  # with the first row of each

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy in another process is another sampler."""
        self.__dict__.update(state)
        self._serial = secrets.randbits(_FIRST_BITS)

    def make(self, rows: int, parts: Sequence[SourceKeys]) -> NDArray[np.uint64]:
        """uint64 [rows], the keys of a batch that consists of ``parts`` in order. Without parts, they are not kept."""
        self._serial += 1
        first, batch = 0, []
        for part in parts:
            batch.append((first, part._replace(keys=np.array(part.keys))))
            first += len(part.keys)
        if batch:
            self._batches[self._serial] = batch
            if len(self._batches) > _REMEMBERED:
                self._batches.popitem(last=False)
        return (np.uint64(self._serial) << np.uint64(_ROW_BITS)) + np.arange(rows, dtype=np.uint64)

    def by_source(self, keys: NDArray[np.uint64]) -> Iterator[SourceRows]:
        """``keys`` (uint64 [B]) by the source that they came from. Keys that are not remembered are left out."""
        serials, rows = keys >> np.uint64(_ROW_BITS), keys & np.uint64(MAX_ROWS)
        for serial in np.unique(serials).tolist():
            here = serials == serial
            for first, part in self._batches.get(serial, ()):
                mine = here & (rows >= first) & (rows < first + len(part.keys))
                if mine.any():
                    own = part.keys[(rows[mine] - np.uint64(first)).astype(np.intp)]
                    yield SourceRows(part.source, part.generation, own, mine)
