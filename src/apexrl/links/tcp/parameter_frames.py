"""The frames between parameter servers' host and a host that computes gradients (``parameter_desk``,
``parameter_relay``).

    GRADIENT   relay → gateway   slot u32, shard u32, base i64, groups u64, begin u64 | float32 values
    SLICE      gateway → relay   shard u32, board u32, version i64, lag f64, begin u64 | float32 values
    SETTLED    gateway → relay   int64 [rings, 4]: slot, shard, messages taken, messages settled

Numbers are little-endian. A slice or gradient of more than ``MOST_VALUES`` values comes in pieces, in order and with
no other between; ``begin`` is the position of a piece's first value. Counts are of this connection's messages, and
negative while those of an earlier one wait.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from apexrl.errors import FrameError
from apexrl.links.local.parameter_slices import ONLINE, TARGET, Floats, ParameterSlices

GRADIENT_HEAD: Final = struct.Struct("<IIqQQ")
SLICE_HEAD: Final = struct.Struct("<IIqdQ")
BOARDS: Final = (ONLINE, TARGET)
"""In the order of their numbers."""
_LAYOUT: Final = 4  # the protocol in which gradients and slices became what they are
MOST_VALUES: Final = 1 << 18
"""Of one frame: a mebibyte."""


def schema_of(shards: ParameterSlices) -> bytes:
    """A digest that two sides share whose parameters lie, and are cut, alike."""
    places = [(name, [*place]) for name, place in shards.places.items()]
    described = (_LAYOUT, "parameters", list(shards.vectors.items()), places, shards.count)
    return hashlib.sha256(msgspec.msgpack.encode(described)).digest()


def pieces(values: Floats) -> Iterator[tuple[int, memoryview]]:
    """(position, bytes) of the pieces in which ``values`` travel; one, if it is empty."""
    data = np.ascontiguousarray(values, np.float32).view(np.uint8).data
    for begin in range(0, max(1, len(values)), MOST_VALUES):
        yield begin, data[4 * begin : 4 * (begin + MOST_VALUES)]


class Assembly:
    """Puts pieces together again, on one side of a connection."""

    def __init__(self) -> None:
        self._what: tuple[int, ...] = ()
        self._values = np.zeros(0, np.float32)
        self._have = 0

    def add(self, what: tuple[int, ...], size: int, begin: int, body: memoryview) -> Floats | None:
        """Add a piece of ``what``, which has ``size`` values. Returns all of them once they are there, valid until the
        next call.

        Raises:
            FrameError: it is not the piece that comes next.
        """
        if not begin:
            self._what, self._have = what, 0
            if len(self._values) != size:
                self._values = np.zeros(size, np.float32)
        here = min(size - begin, MOST_VALUES)
        if what != self._what or begin != self._have or len(body) != 4 * here:
            raise FrameError(f"{len(body)} bytes at value {begin} of {size} are not the piece that comes next")
        self._values[begin : begin + here] = np.frombuffer(body, np.float32)
        self._have += here
        return self._values if self._have == size else None
