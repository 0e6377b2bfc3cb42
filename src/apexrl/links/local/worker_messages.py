"""Messages from a worker to its supervisor: one datagram each, JSON, never blocking.

A datagram arrives whole or not at all, so a worker killed while sending leaves no half message behind.
"""

from __future__ import annotations

import errno
import socket
import sys
from typing import Any, NamedTuple

import msgspec

MAX_BYTES = 96 * 1024
"""Largest message; longer texts (tracebacks) are cut by the sender."""


class Message(NamedTuple):
    """What a worker said: ``episodes``, ``metrics``, ``evaluation``, ``checkpoint``, ``error``, ``log`` …"""

    kind: str
    values: dict[str, Any]


def channel() -> tuple[socket.socket, socket.socket]:
    """(supervisor's end, worker's end)."""
    kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM  # macOS has no local SEQPACKET
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    ours.setblocking(False)
    theirs.setblocking(False)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MAX_BYTES)
    return ours, theirs


def send(end: socket.socket, kind: str, values: dict[str, Any]) -> bool:
    """Send without waiting. False: the supervisor is behind or gone, or the message too long; it was dropped."""
    data = msgspec.json.encode((kind, values), enc_hook=_plain)
    if len(data) > MAX_BYTES:
        return False
    try:
        end.send(data)
    except (BlockingIOError, BrokenPipeError, ConnectionError):
        return False
    except OSError as error:
        if error.errno in (errno.ENOBUFS, errno.EMSGSIZE, errno.EBADF, errno.ENOTCONN, errno.EDESTADDRREQ):
            return False
        raise
    return True


def receive(end: socket.socket) -> list[Message]:
    """All messages that have arrived; an empty list when there are none, or when the worker's end is closed."""
    messages: list[Message] = []
    while True:
        try:
            data = end.recv(MAX_BYTES)
        except (BlockingIOError, ConnectionError):
            return messages
        if not data:
            return messages
        kind, values = msgspec.json.decode(data, type=tuple[str, dict[str, Any]])
        messages.append(Message(kind, values))


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as plain numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a message cannot hold a {type(value).__name__}")
