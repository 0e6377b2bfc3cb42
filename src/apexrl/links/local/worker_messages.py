"""Messages from a worker to its supervisor: JSON, one datagram each, never blocking.

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
    """A worker's message. Kinds: ``episodes``, ``metrics``, ``evaluation``, ``checkpoint``, ``error``, ``log`` …"""

    kind: str
    values: dict[str, Any]


def channel() -> tuple[socket.socket, socket.socket]:
    """The sockets of (supervisor, worker)."""
    kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM  # macOS has no local SEQPACKET
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    ours.setblocking(False)
    theirs.setblocking(False)
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_BYTES)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MAX_BYTES)
    return ours, theirs


def send(channel: socket.socket, kind: str, values: dict[str, Any]) -> bool:
    """Send without waiting. False: dropped, because the supervisor is behind or gone, or the message is too long."""
    data = msgspec.json.encode((kind, values), enc_hook=plain)
    if len(data) > MAX_BYTES:
        return False
    try:
        channel.send(data)
    except (BlockingIOError, BrokenPipeError, ConnectionError):
        return False
    except OSError as error:
        if error.errno in (errno.ENOBUFS, errno.EMSGSIZE, errno.EBADF, errno.ENOTCONN, errno.EDESTADDRREQ):
            return False
        raise
    return True


def receive(channel: socket.socket) -> list[Message]:
    """All messages that have arrived; an empty list when there are none, or when the worker's socket is closed."""
    messages: list[Message] = []
    while True:
        try:
            data = channel.recv(MAX_BYTES)
        except (BlockingIOError, ConnectionError):
            return messages
        if not data:
            return messages
        kind, values = msgspec.json.decode(data, type=tuple[str, dict[str, Any]])
        messages.append(Message(kind, values))


def plain(value: Any) -> Any:
    """NumPy scalars and arrays as numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a message cannot hold a {type(value).__name__}")
