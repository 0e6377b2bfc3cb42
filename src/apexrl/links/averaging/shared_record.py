"""The shared record of a group of learners: a few keys and values that all of them read and write.

It is how members find each other and agree. Gradients never go through it.
"""

from __future__ import annotations

import struct
import threading
import time
from typing import Any, Protocol

from apexrl._native import Segment
from apexrl.errors import LinkError

_LOCK = 0  # of the segment
_WHICH, _DATA = 0, 64  # the word that says which half holds; where the halves begin
_HEAD = struct.Struct(">II")  # bytes of all entries, their number; or of a key and of its value
_LOCK_SECONDS = 5.0  # nobody holds the lock for longer than a millisecond, unless it was stopped there


class SharedRecord(Protocol):
    """Keys and values. Every call may raise ``LinkError``: the record cannot be reached now."""

    def all(self) -> dict[str, bytes]: ...
    def put(self, key: str, value: bytes) -> dict[str, bytes]:
        """Put it; returns all that stands there then."""

    def put_first(self, key: str, value: bytes) -> bytes:
        """Put it unless there is one; returns what stands there."""

    def drop(self, keys: list[str]) -> None: ...
    def address(self) -> str:
        """At which other members reach this process's host."""


class SegmentRecord:
    """A record in shared memory, for processes of one machine. Picklable to local processes.

    Of two halves one holds. A writer fills the other one, then says in one store that it holds now. So a writer that is
    killed has changed all or nothing, and the kernel releases its lock.

    Args:
        nbytes: how much it may hold.
    """

    _in_process = threading.Lock()  # the segment's own lock keeps other processes out, not other threads

    def __init__(self, nbytes: int) -> None:
        self._half = nbytes
        self._segment = Segment(_DATA + 2 * nbytes)

    def __getstate__(self) -> dict[str, Any]:
        return {"_half": self._half, "_segment": self._segment}

    def all(self) -> dict[str, bytes]:
        with self._locked():
            return self._read()

    def put(self, key: str, value: bytes) -> dict[str, bytes]:
        with self._locked():
            entries = self._read() | {key: value}
            self._write(entries)
            return entries

    def put_first(self, key: str, value: bytes) -> bytes:
        with self._locked():
            entries = self._read()
            if key not in entries:
                self._write(entries | {key: value})
            return entries.get(key, value)

    def drop(self, keys: list[str]) -> None:
        with self._locked():
            entries = self._read()
            self._write({key: value for key, value in entries.items() if key not in keys})

    def address(self) -> str:
        return "127.0.0.1"

    def _locked(self) -> _Locked:
        return _Locked(self._segment, self._in_process)

    def _start(self, half: int) -> int:
        return _DATA + half * self._half

    def _read(self) -> dict[str, bytes]:
        data = self._segment.view()
        at = self._start(self._segment.load(_WHICH))
        _, count = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        entries: dict[str, bytes] = {}
        for _ in range(count):
            key, value = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            entries[bytes(data[at : at + key]).decode()] = bytes(data[at + key : at + key + value])
            at += key + value
        return entries

    def _write(self, entries: dict[str, bytes]) -> None:
        parts = [_HEAD.pack(len(key.encode()), len(value)) + key.encode() + value for key, value in entries.items()]
        body = b"".join(parts)
        if _HEAD.size + len(body) > self._half:
            raise LinkError(f"the shared record of the learners holds {self._half} bytes, and {len(body)} are to go in")
        half = 1 - self._segment.load(_WHICH)
        at = self._start(half)
        self._segment.view()[at : at + _HEAD.size + len(body)] = _HEAD.pack(len(body), len(parts)) + body
        self._segment.store(_WHICH, half)


class _Locked:
    """The lock of a segment, held by this thread."""

    def __init__(self, segment: Segment, in_process: threading.Lock) -> None:
        self._segment, self._in_process = segment, in_process

    def __enter__(self) -> None:
        if not self._in_process.acquire(timeout=_LOCK_SECONDS):
            raise LinkError("the shared record of the learners is locked by another thread")
        deadline = time.monotonic() + _LOCK_SECONDS
        while not self._segment.try_lock(_LOCK):
            if time.monotonic() > deadline:
                self._in_process.release()
                raise LinkError(f"process {self._segment.holder(_LOCK)} keeps the shared record of the learners locked")
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self._segment.unlock(_LOCK)
        self._in_process.release()
