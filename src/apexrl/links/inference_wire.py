"""Inference across hosts: the frames of ``links.inference``'s messages on a TCP connection.

    magic 4 | version u8 | kind u8 | group u16 | head bytes u32 | body bytes u32 | head (msgpack) | body (columns)

Numbers are little-endian. A connection begins with a hello (``inference_hello``) that says who asks, and for which
columns; then requests go one way and replies the other, which have no head: their columns stand in the order of the
link's fields. On the connection of a host, both ways have messages (``inference_messages``) as their bodies.
"""

from __future__ import annotations

import hashlib
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from apexrl.errors import FrameError
from apexrl.spec import Array, Field

PROTOCOL: Final = 2
HELLO, WELCOME, REFUSED, REQUEST, REPLY, CHALLENGE, PING, PONG, MESSAGE = 1, 2, 3, 4, 5, 6, 7, 8, 9
"""Kinds of frames. Whoever waits for a reply may ask for a sign of life; it does not wait for the server's."""
HELLO_SECONDS: Final = 5.0
"""That a new connection may take to say hello, or to be welcomed."""

_MAGIC: Final = b"apxi"
_FIXED = struct.Struct("<4sBBHII")
_MOST_HEAD_BYTES = 4096
_STALLED_SECONDS = 30.0  # for a frame that has begun, either way: then the other side counts as gone
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, times: where one can say it


class Head(NamedTuple):
    """A frame without its body."""

    kind: int
    split: int  # group of the worker
    text: bytes
    body_bytes: int  # that follow


def schema_of(request: Mapping[str, Field], reply: Mapping[str, Field], splits: Sequence[int]) -> bytes:
    """Says whether two sides mean the same columns."""
    sides = [[(name, list(field.shape), field.dtype) for name, field in side.items()] for side in (request, reply)]
    return hashlib.sha256(msgspec.msgpack.encode((PROTOCOL, sides, list(splits)))).digest()


def prepare(peer: socket.socket) -> None:
    """Small frames go at once, and whoever stalls, or lost its power, is noticed."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    peer.settimeout(_STALLED_SECONDS)


def readable(peer: socket.socket, seconds: float) -> bool:
    """Whether something has come, or the connection is over; waits up to ``seconds``."""
    poll = select.poll()  # select.select takes no descriptor above 1023
    poll.register(peer, select.POLLIN)
    return bool(poll.poll(1000.0 * seconds))


def nbytes(fields: Mapping[str, Field]) -> int:
    """Bytes of one environment's row."""
    return sum(field.nbytes for field in fields.values())


def empty(fields: Mapping[str, Field], rows: int) -> dict[str, Array]:
    """Columns for ``rows`` environments."""
    return {name: np.zeros((rows, *field.shape), field.dtype) for name, field in fields.items()}


def send(
    peer: socket.socket,
    kind: int,
    split: int = 0,
    head: bytes = b"",
    columns: Mapping[str, Array] | None = None,
    body: bytes = b"",
) -> None:
    """Send one frame, whose body is ``columns``, or else ``body``, on a connection that was prepared.

    Raises:
        OSError: the connection broke, or nobody took it for half a minute.
    """
    parts = [memoryview(body)] if columns is None else [_bytes_of(column) for column in columns.values()]
    fixed = _FIXED.pack(_MAGIC, PROTOCOL, kind, split, len(head), sum(part.nbytes for part in parts))
    peer.sendall(b"".join([fixed, head, *parts]))


def receive_head(peer: socket.socket, seconds: float = _STALLED_SECONDS) -> Head:
    """The next frame, up to its body.

    Raises:
        FrameError: it is no frame of this version.
        OSError: the connection broke, or the frame did not come within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    fixed = bytearray(_FIXED.size)
    _receive(peer, memoryview(fixed), deadline)
    magic, version, kind, split, head_bytes, body_bytes = _FIXED.unpack(fixed)
    if magic != _MAGIC:
        raise FrameError(f"a frame begins with {magic!r}, not {_MAGIC!r}")
    if version != PROTOCOL:
        raise FrameError(
            f"a frame is of protocol {version}, and this is {PROTOCOL}: install the same apexrl everywhere"
        )
    if head_bytes > _MOST_HEAD_BYTES:
        raise FrameError(f"a frame claims a head of {head_bytes} bytes; at most {_MOST_HEAD_BYTES} are taken")
    head = bytearray(head_bytes)
    _receive(peer, memoryview(head), deadline)
    return Head(kind, split, bytes(head), body_bytes)


def receive_columns(peer: socket.socket, columns: Mapping[str, Array]) -> None:
    """A body, whose size was checked, into ``columns`` in their order. What is no bool becomes one."""
    deadline = time.monotonic() + _STALLED_SECONDS
    for column in columns.values():
        _receive(peer, _bytes_of(column), deadline)
        if column.dtype == np.bool_:
            column[...] = column.view(np.uint8) != 0


def receive_body(peer: socket.socket, head: Head, most: int, seconds: float = _STALLED_SECONDS) -> bytes:
    """A body that holds no columns.

    Raises:
        FrameError: it is longer than ``most`` bytes.
        OSError: as ``receive_head``.
    """
    if head.body_bytes > most:
        raise FrameError(f"a frame claims a body of {head.body_bytes} bytes; at most {most} are taken")
    body = bytearray(head.body_bytes)
    _receive(peer, memoryview(body), time.monotonic() + seconds)
    return bytes(body)


def _bytes_of(column: Array) -> memoryview:
    return column.reshape(-1).view(np.uint8).data


def _receive(peer: socket.socket, into: memoryview, deadline: float) -> None:
    at = 0
    while at < len(into):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side stopped in the midst of a frame")
        if not readable(peer, left):  # its own time limit stays: another thread may be sending
            continue
        got = peer.recv_into(into[at:])
        if not got:
            raise ConnectionResetError("the other side hung up")
        at += got
