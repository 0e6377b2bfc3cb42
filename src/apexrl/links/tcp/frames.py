"""The frames on a connection to a gateway: messages of ``links.local.inference``, or gradients and parameters.

    magic 4 | version u8 | kind u8 | group u16 | head bytes u32 | body bytes u32 | head | body | code

Numbers are little-endian. A connection begins with a handshake (``handshake``) that identifies the worker and its
columns. Then requests go one way and replies the other; they have no head, and their columns are in the order of the
link's fields. ``parameter_frames`` says how gradients and parameters travel. On the connection of a host, frames of
both directions have messages (``gateway_messages``) as bodies.

After the handshake every frame is authenticated: by TLS, or by a code of 16 bytes over its number in its direction and
all its bytes, under a key of this connection. So a changed, repeated or dropped frame is detected. The code is an
HMAC-SHA256, or, if both sides have the package cryptography, a GMAC (AES-256), ten times as fast for images.
"""

from __future__ import annotations

import hashlib
import hmac
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import numpy as np

from apexrl.errors import FrameError
from apexrl.links.protocol_numbers import Protocols
from apexrl.spec import Array, Field

try:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    HAS_GMAC = False
else:
    HAS_GMAC = True

PROTOCOLS: Final = Protocols(4, 4)
"""Of connections. ``least`` is the newest that the release before spoke."""
_COLUMNS: Final = 3  # number of the layout of requests and replies, unchanged since that protocol
HELLO, WELCOME, REFUSED, REQUEST, REPLY, CHALLENGE, PING, PONG, MESSAGE, OPEN = range(1, 11)
GRADIENT, SLICE, SETTLED = range(11, 14)
"""Kinds of frames. The gateway answers a ping by itself, without the servers behind it."""
HELLO_SECONDS: Final = 5.0
"""How long each half of the handshake may take."""

_MAGIC: Final = b"apxi"
_TLS_HANDSHAKE: Final = 22  # the first byte of a TLS connection
_FIXED = struct.Struct("<4sBBHII")
_MOST_HEAD_BYTES = 4096
_CODE_BYTES = 16
_BUFFER_BYTES = 1 << 16
_STALLED_SECONDS = 30.0  # for a frame that has begun; then the other side counts as dead
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, times; where supported


class TamperedError(FrameError):
    """A frame was changed, repeated or dropped on the way."""


class Frame(NamedTuple):
    """A received frame. The body is valid until the next frame is received."""

    kind: int
    split: int  # group of the worker
    text: bytes
    body: memoryview


class Connection:
    """A connection that sends and receives frames. One thread at a time receives; any thread sends.

    Small frames are sent at once. A peer that stalls or lost its power is detected.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sending = threading.Lock()
        self._buffer = bytearray(_BUFFER_BYTES)  # [begin, end) was received and belongs to no frame yet
        self._begin = self._end = 0
        self.protocol = PROTOCOLS.least
        """Of frames that are sent."""
        self.heard = 0
        """Of the last frame that was received."""
        self._agreed = False
        self._sent_code: _Code | None = None
        self._received_code: _Code | None = None
        self._tls: ssl.SSLObject | None = None
        self._ciphering = threading.Lock()  # of _tls and its buffers: OpenSSL reads and writes one at a time
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    @property
    def encrypted(self) -> bool:
        return self._tls is not None

    def agree(self, protocol: int) -> None:
        """Both sides speak ``protocol`` from now on."""
        self.protocol, self._agreed = protocol, True

    def seal(self, sent: bytes, received: bytes, gmac: bool) -> None:
        """Authenticate every frame from now on, with one key for each direction."""
        self._sent_code, self._received_code = _Code(sent, gmac), _Code(received, gmac)

    def speaks_tls(self, deadline: float) -> bool:
        """Whether the other side begins with TLS."""
        self._fill(1, deadline)
        return self._buffer[self._begin] == _TLS_HANDSHAKE

    def start_tls(self, context: ssl.SSLContext, deadline: float, name: str | None = None) -> bytes:
        """Start TLS; ``name``: the server's, if this is the client. Returns the other side's certificate.

        Raises:
            ssl.SSLError: the other side does not speak TLS, or one side does not trust the other.
        """
        tls = context.wrap_bio(self._incoming, self._outgoing, server_side=name is None, server_hostname=name)
        self._incoming.write(self._buffer[self._begin : self._end])
        self._begin = self._end = 0
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._write(self._outgoing.read(), deadline)
                self._incoming.write(self._receive_some(deadline))
            except ssl.SSLError:
                with suppress(OSError):
                    self._write(self._outgoing.read(), deadline)  # why
                raise
        self._write(self._outgoing.read(), deadline)
        self._tls = tls
        return tls.getpeercert(binary_form=True) or b""

    def readable(self, seconds: float) -> bool:
        """Wait up to ``seconds``. True: there is data, or the connection has ended."""
        if self._end > self._begin:
            return True
        if self._tls is not None:
            with self._ciphering:
                if self._tls.pending() or self._incoming.pending:
                    return True
        return self._poll(select.POLLIN, seconds)

    def send(
        self,
        kind: int,
        split: int = 0,
        head: bytes = b"",
        columns: Mapping[str, Array] | None = None,
        body: bytes | memoryview = b"",
    ) -> None:
        """Send one frame, whose body is ``columns``, or else ``body``.

        Raises:
            OSError: the connection broke, or the other side did not read for half a minute.
        """
        parts = [memoryview(body)] if columns is None else [_bytes_of(column) for column in columns.values()]
        fixed = _FIXED.pack(_MAGIC, self.protocol, kind, split, len(head), sum(part.nbytes for part in parts))
        deadline = time.monotonic() + _STALLED_SECONDS
        with self._sending:
            data = bytearray().join((fixed, head, *parts))
            if self._sent_code is not None:
                data += self._sent_code.next(data)
            self._write(data if self._tls is None else self._encrypt(data), deadline)

    def receive(self, most: int = 0, seconds: float = _STALLED_SECONDS) -> Frame:
        """The next frame, whose body may have ``most`` bytes.

        Raises:
            FrameError: it is not a frame of this version, or too long; ``TamperedError``: it is not authentic.
            OSError: the connection broke, or no frame arrived within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        self._fill(_FIXED.size, deadline)
        magic, version, kind, split, head_bytes, body_bytes = _FIXED.unpack_from(self._buffer, self._begin)
        if magic != _MAGIC:
            raise self._wrong(f"a frame begins with {magic!r}, not {_MAGIC!r}")
        taken = Protocols(self.protocol, self.protocol) if self._agreed else PROTOCOLS
        opens = kind == OPEN and not self._agreed  # of any protocol: it names those that the caller speaks
        if not (opens or taken.least <= version <= taken.newest):
            raise self._wrong(
                f"a frame is of protocol {version}, and this side speaks {taken}: install the same apexrl on both hosts"
            )
        self.heard = version
        if head_bytes > _MOST_HEAD_BYTES:
            raise self._wrong(f"a frame claims a head of {head_bytes} bytes; at most {_MOST_HEAD_BYTES} are taken")
        if body_bytes > most:
            raise self._wrong(f"a frame claims a body of {body_bytes} bytes; at most {most} are taken")
        size = _FIXED.size + head_bytes + body_bytes
        self._fill(size + (_CODE_BYTES if self._received_code else 0), deadline)
        frame = memoryview(self._buffer)[self._begin : self._begin + size]
        self._begin += size
        if self._received_code is not None:
            code = self._buffer[self._begin : self._begin + _CODE_BYTES]
            self._begin += _CODE_BYTES
            if not hmac.compare_digest(self._received_code.next(frame), code):
                raise TamperedError(_TAMPERED)
        body = _FIXED.size + head_bytes
        return Frame(kind, split, bytes(frame[_FIXED.size : body]), frame[body:])

    def shutdown(self) -> None:
        """End the connection and wake a thread that waits on it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self, patience: float = 0.0) -> None:
        """Close the connection. Wait up to ``patience`` seconds for the other side to close first: unread data here
        would make the system discard the last frames sent."""
        if patience:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + patience
                while True:
                    self._receive_some(deadline)
        self._socket.close()

    def _wrong(self, why: str) -> FrameError:
        """The error for an invalid frame head, whose code was not received yet: a peer with the key sends none."""
        return FrameError(why) if self._received_code is None else TamperedError(f"{_TAMPERED} ({why})")

    def _fill(self, nbytes: int, deadline: float) -> None:
        """Wait until the buffer has ``nbytes`` that belong to no frame yet."""
        if self._begin == self._end:
            self._begin = self._end = 0
        if self._begin + nbytes > len(self._buffer):
            have = self._end - self._begin
            # A larger one, not the same made larger: the last frame's body may still be looked at.
            fresh = self._buffer if nbytes <= len(self._buffer) else bytearray(nbytes)
            fresh[:have] = self._buffer[self._begin : self._end]
            self._buffer, self._begin, self._end = fresh, 0, have
        while self._end - self._begin < nbytes:
            room = memoryview(self._buffer)[self._end :]
            self._end += (
                self._decrypt_some(room, deadline) if self._tls is not None else self._receive_into(room, deadline)
            )

    def _receive_into(self, room: memoryview, deadline: float) -> int:
        while True:
            try:
                got = self._socket.recv_into(room)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            if not got:
                raise ConnectionResetError("the other side hung up")
            return got

    def _receive_some(self, deadline: float) -> bytes:
        room = bytearray(_BUFFER_BYTES)
        return bytes(memoryview(room)[: self._receive_into(memoryview(room), deadline)])

    def _decrypt_some(self, room: memoryview, deadline: float) -> int:
        assert self._tls is not None
        while True:
            try:
                with self._ciphering:
                    got = int(self._tls.read(len(room), room))  # typeshed: bytes
            except ssl.SSLWantReadError:
                encrypted = self._receive_some(deadline)
                with self._ciphering:
                    self._incoming.write(encrypted)
                continue
            except ssl.SSLZeroReturnError:
                got = 0
            if not got:
                raise ConnectionResetError("the other side hung up")
            return got

    def _encrypt(self, data: bytearray) -> bytes:
        assert self._tls is not None
        left = memoryview(data)
        with self._ciphering:
            while left:
                left = left[self._tls.write(left) :]
            return self._outgoing.read()

    def _write(self, data: bytes | bytearray, deadline: float) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)

    def _wait(self, what: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not self._poll(what, left):
            raise TimeoutError("the other side stopped in the midst of a frame")

    def _poll(self, what: int, seconds: float) -> bool:
        poll = select.poll()  # select.select takes no descriptor above 1023
        poll.register(self._socket, what)
        return bool(poll.poll(1000.0 * seconds))


_TAMPERED = (
    "a frame was changed, repeated, dropped or put elsewhere on its way: something between the two hosts tampers with "
    "the connection"
)


class _Code:
    """The authentication codes of the frames of one direction, in order."""

    def __init__(self, key: bytes, gmac: bool) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        # It encrypts nothing: the result is the code of the associated data
        self._cipher = AESGCM(key) if gmac else None
        self._number = 0

    def next(self, frame: bytearray | memoryview) -> bytes:
        number = self._number.to_bytes(12, "little")
        self._number += 1
        if self._cipher is not None:
            return self._cipher.encrypt(number, b"", frame)
        code = self._keyed.copy()
        code.update(number)
        code.update(frame)
        return code.digest()[:_CODE_BYTES]


def schema_of(request: Mapping[str, Field], reply: Mapping[str, Field], splits: Sequence[int]) -> bytes:
    """A digest that two sides with the same columns share."""
    sides = [[(name, list(field.shape), field.dtype) for name, field in side.items()] for side in (request, reply)]
    return hashlib.sha256(msgspec.msgpack.encode((_COLUMNS, sides, list(splits)))).digest()


def nbytes(fields: Mapping[str, Field]) -> int:
    """Bytes of one environment's row."""
    return sum(field.nbytes for field in fields.values())


def empty(fields: Mapping[str, Field], rows: int) -> dict[str, Array]:
    """Columns for ``rows`` environments."""
    return {name: np.zeros((rows, *field.shape), field.dtype) for name, field in fields.items()}


def fill(columns: Mapping[str, Array], body: memoryview) -> None:
    """Copy a body of checked size into ``columns`` in their order. Values of bool columns become 0 or 1."""
    at = 0
    for column in columns.values():
        _bytes_of(column)[:] = body[at : at + column.nbytes]
        at += column.nbytes
        if column.dtype == np.bool_:
            column[...] = column.view(np.uint8) != 0


def _bytes_of(column: Array) -> memoryview:
    return column.reshape(-1).view(np.uint8).data
