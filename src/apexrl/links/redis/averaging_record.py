"""The shared record of learners on several hosts (``links.averaging``), in a hash on the run's Redis server."""

from __future__ import annotations

import threading
from typing import Any, Final

from apexrl.errors import LinkError
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.server import Server

FORGOTTEN_SECONDS: Final = 3600
"""After which a record goes in which nobody writes; members do four times a second."""

_MOST_BYTES = 1 << 20  # of a value
_PUT_FIRST: Final = """
-- KEYS the hash. ARGV field, value, seconds
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return redis.call('HGET', KEYS[1], ARGV[1])
"""


class RedisRecord:
    """A ``SharedRecord`` on a Redis server, for several threads. Picklable; opens its connection at first use.

    Args:
        run_id: entries of other runs of that name are not seen.
    """

    def __init__(self, server: Server, keys: RunKeys, run_id: str) -> None:
        self._begin(server, keys, run_id)

    def _begin(self, server: Server, keys: RunKeys, run_id: str) -> None:
        self._made = server, keys, run_id
        self._key, self._prefix = keys.averaging, f"{run_id}/"
        self._connection, self._lock = Connection(server), threading.Lock()

    def __getstate__(self) -> tuple[Any, ...]:
        return self._made

    def __setstate__(self, state: tuple[Server, RunKeys, str]) -> None:
        self._begin(*state)

    def all(self) -> dict[str, bytes]:
        (found,) = self._ask(("HGETALL", self._key))
        return self._own(found)

    def _own(self, found: list[bytes]) -> dict[str, bytes]:
        """The entries of this run."""
        pairs = zip(found[::2], found[1::2], strict=True)
        named = {name.decode(errors="replace"): value for name, value in pairs if len(value) <= _MOST_BYTES}
        start = len(self._prefix)
        return {name[start:]: value for name, value in named.items() if name.startswith(self._prefix)}

    def put(self, key: str, value: bytes) -> dict[str, bytes]:
        written = ("HSET", self._key, self._prefix + key, value), ("EXPIRE", self._key, FORGOTTEN_SECONDS)
        return self._own(self._ask(*written, ("HGETALL", self._key))[-1])

    def put_first(self, key: str, value: bytes) -> bytes:
        words = ("EVAL", _PUT_FIRST, 1, self._key, self._prefix + key, value, FORGOTTEN_SECONDS)
        (stands,) = self._ask(words)
        return bytes(stands)

    def drop(self, keys: list[str]) -> None:
        if keys:
            self._ask(("HDEL", self._key, *(self._prefix + key for key in keys)))

    def address(self) -> str:
        """Of this host, on its way to the server: other hosts reach it there, too. Loopback if the server is here."""
        with self._locked():
            return self._connection.own_address()

    def _ask(self, *commands: tuple[str | bytes | int, ...]) -> list[Any]:
        with self._locked():
            return self._connection.pipeline(commands)

    def _locked(self) -> _Locked:
        return _Locked(self._lock, self._connection.server.timeout)


class _Locked:
    """A lock that is waited for no longer than the server is."""

    def __init__(self, lock: threading.Lock, seconds: float) -> None:
        self._lock, self._seconds = lock, seconds

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=2 * self._seconds):
            raise LinkError("the record of the learners is in use by another thread that waits for the server")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
