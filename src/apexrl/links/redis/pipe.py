"""Pipelined commands over one redis-py connection, without copies of large values.

redis-py's own pipelines cost about 20 µs per command and copy every value, which is too slow for many large frames.
redis-py still does connecting, TLS, authentication and parsing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import exceptions

from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.server import Server, ServerFacts, check

_JOINED_BYTES = 64 * 1024
"""Smaller pieces are joined into one write; larger ones are written without a copy."""

Words = bytes | str | int
"""The words of a command."""


def command(*words: Words, more: int = 0) -> bytes:
    """One command in the Redis protocol; the caller appends ``more`` words of its own."""
    packed = [b"*%d\r\n" % (len(words) + more)]
    for word in words:
        if not isinstance(word, bytes):
            word = str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(packed)


class Pipe:
    """One open connection to a server that passed the checks. Not thread-safe. Raises redis-py's errors.

    Args:
        keys: of the run that it is for.
        read_bytes: to read from the socket at a time.

    Raises:
        LinkError: the server cannot be reached, or is not suitable for a run.
    """

    def __init__(self, server: Server, keys: RunKeys, read_bytes: int = 65536) -> None:
        self._client = server.connect(read_bytes, keys.record)
        try:
            self.facts: ServerFacts = check(self._client, server.address)
        except BaseException:
            self._client.close()
            raise
        self._connection: Any = self._client.connection
        self._whole = True  # no failure between a command and its reply
        self.owed = 0
        """Number of replies that are not read yet."""

    def close(self) -> None:
        self._client.close()

    def send(self, pieces: Sequence[bytes], replies: int) -> None:
        """Write packed commands; they will have ``replies`` replies."""
        writes: list[bytes] = []
        small: list[bytes] = []
        size = 0
        for piece in pieces:
            if len(piece) < _JOINED_BYTES:
                small.append(piece)
                size += len(piece)
            if small and (len(piece) >= _JOINED_BYTES or size >= _JOINED_BYTES):
                writes.append(b"".join(small))
                small, size = [], 0
            if len(piece) >= _JOINED_BYTES:
                writes.append(piece)
        if small:
            writes.append(b"".join(small))
        if not self._whole:  # otherwise redis-py would silently reconnect
            raise exceptions.ConnectionError("connection closed by server")
        self._whole = False
        self._connection.send_packed_command(writes, check_health=False)
        self._whole = True
        self.owed += replies

    def read(self) -> Any:
        """The next reply. An error of one command is returned; an error of the connection is raised."""
        self.owed -= 1
        self._whole = False
        try:
            reply = self._connection.read_response()
        except exceptions.ResponseError as error:
            reply = error
        self._whole = True
        return reply

    def drain(self) -> list[Any]:
        """All outstanding replies."""
        return [self.read() for _ in range(self.owed)]

    def ask(self, *words: Words) -> Any:
        """One command and its reply.

        Raises:
            ResponseError: the server refuses it.
        """
        self.send([command(*words)], 1)
        reply = self.drain()[-1]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def arrived(self, timeout: float) -> bool:
        """Whether data arrives within ``timeout`` seconds. Raises if the connection was closed."""
        return bool(self._connection.can_read(timeout))
