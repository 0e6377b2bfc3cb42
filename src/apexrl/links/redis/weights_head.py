"""Weights on a Redis server: the newest version in parts, with a notification.

``keys.weights`` is the head: the version and its number of parts. Parts are stored before the head, so a reader of the
head can read everything. The notification only saves waiting; a lost one costs one poll.

For any number of hosts, the server holds at most three versions (the newest, an older one still being read, and one
being uploaded), and ``READERS`` times ``AHEAD`` pieces of ``PIECE_BYTES`` in output buffers: hosts read in turns
(``links.redis.read_turns``), and request another piece when one has arrived.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from apexrl.errors import FrameError
from apexrl.links.redis.encoding import Count, Text
from apexrl.links.redis.pipe import Pipe

MOST_BYTES: Final = 2**32 - 1
"""Of one version."""
MOST_HEAD: Final = 1024


class Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """What stands under ``keys.weights``."""

    run_id: Text
    version: Count
    parts: Annotated[int, Meta(ge=1, le=2**16)]
    part_bytes: Annotated[int, Meta(ge=1, le=512 * 2**20)]  # of each but the last
    nbytes: Annotated[int, Meta(ge=1, le=MOST_BYTES + 2**20)]
    before: Annotated[list[tuple[Count, Annotated[int, Meta(ge=0, le=2**16)]]], Meta(max_length=4)]
    """(version, parts) of older versions that are still stored."""


encoder: Final = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Head)


def read_head(value: bytes) -> Head | None:
    """The decoded head; None: there is none.

    Raises:
        FrameError: the value is not a head.
    """
    if not value:
        return None
    try:
        head = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"the head of the weights cannot be read: {error}") from None
    if not (head.parts - 1) * head.part_bytes < head.nbytes <= head.parts * head.part_bytes:
        raise FrameError(f"the head of the weights claims {head.nbytes} bytes in {head.parts} parts")
    return head


def raise_refusals(pipe: Pipe) -> None:
    """Raise the first error among the replies that are owed."""
    for reply in pipe.drain():
        if isinstance(reply, Exception):
            raise reply
