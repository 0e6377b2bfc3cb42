"""Chunks that leave a host and chunks that come to one: experience as bytes that stand alone (native/chunks.h).

On an actor host a ``ChunkSource`` takes what actors have published out of a fifo replay. On the learner's host a
``ChunkSink`` commits it to the learner's replay, each chunk once, and keeps its receipts in shared memory.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from apexrl import _native
from apexrl.errors import ClosedError, ConfigError, ExhaustedError, FrameError, WaitTimeout
from apexrl.protocols import ChunkHead
from apexrl.replay.layout import Layout
from apexrl.replay.options import OPTIONS, checked
from apexrl.replay.replay import Replay
from apexrl.spec import Field

_VERSION = 1  # of the body's layout
_SHAPING = ("kind", "stack", "n_step", "gamma", "length", "stride", "burn_in", "alpha", "eps")
_SLICE = 0.1
_DONE, _CLOSED, _CAME_BEFORE, _REFUSED = 0, 2, 3, 4  # native/inbox.h Commit; 1: wait
_NO_LANE, _NO_STREAMS = 3, 4  # native/lease.h Status


def schema(fields: Mapping[str, Field], **options: Any) -> bytes:
    """Eight bytes that two replays share exactly if chunks of one fit the other.

    Args:
        fields, options: as ``Replay`` takes them, ``capacity`` included.
    """
    defaults = {name: value.default for name, value in inspect.signature(Replay).parameters.items() if name in OPTIONS}
    checks = checked({**defaults, **{name: options[name] for name in OPTIONS if name in options}})
    return _schema(Layout(fields, checks["kind"], checks["stack"], checks["burn_in"] + checks["length"]), checks)


def _schema(layout: Layout, options: Mapping[str, Any]) -> bytes:
    text = json.dumps([_VERSION, layout.native(), {name: options[name] for name in _SHAPING}])
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


class ChunkSource:
    """Takes published chunks out of a fifo replay, which this process comes to own.

    What was taken is the caller's to keep; if it dies, that much is lost, and no more.
    """

    def __init__(self, replay: Replay) -> None:
        if replay._options["sampler"] != "fifo" or replay._layout.kind == "rows":
            raise ConfigError("chunks are taken out of a fifo replay of steps: sampler='fifo', and not kind='rows'")
        self._replay = replay
        self.schema = _schema(replay._layout, replay._options)
        self.item_steps: int = replay._options["length"] if replay._layout.kind == "unroll" else 1
        """Steps that an item stands for."""

    def take(self, most_bytes: int, linger: float, allowed: int = 2**62) -> tuple[list[ChunkHead], bytes]:
        """What is ready now: heads, and bodies one after the other; nothing waits here.

        Args:
            most_bytes: of all bodies together; a single item that needs more comes alone.
            linger: seconds that what is in a chunk still being written may wait for more.
            allowed: items that may wait here until the next call; with as many, writers wait.

        Raises:
            ClosedError, OwnershipError: the replay was closed, or another living process owns it.
        """
        replay = self._replay
        if not replay._native.owned or replay._closed:
            replay._own()
        replay._publish_here()
        status, heads, body = _native.take_chunks(replay._native, linger, most_bytes, allowed)
        if status == 4:
            raise ClosedError("this replay was closed")
        return [ChunkHead(*head) for head in heads], body

    def wait(self, timeout: float) -> None:
        """Sleep until workers publish something, or ``timeout`` seconds."""
        self._replay._native.wait(min(timeout, _SLICE))


class Account(NamedTuple):
    """What has come of one life of one sender."""

    sequence: int  # of the next chunk that may be committed
    committed: int  # items
    missing: int  # items that were numbered and never came: dropped on purpose, or lost
    repeated: int  # items that came again, and were dropped


class Receipts:
    """What of whom was committed, in shared memory: it outlives the process that brings chunks in.

    Picklable to local processes. One process writes at a time.

    Args:
        senders: lives of senders that are remembered; of more, the one that was quiet for longest is forgotten.
        resumed: senders may have been at work before, for a replay that is gone: what they numbered and counted then
            is not missing, and is not counted again.
    """

    def __init__(self, senders: int = 4096, resumed: bool = False) -> None:
        self._attach(_native.Segment(_native.receipts_bytes(senders + 1)))
        self._table[0, _RESUMED] = resumed

    def _attach(self, segment: _native.Segment) -> None:
        self._segment = segment
        self._rows: dict[str, tuple[int, np.uint64]] = {}
        words = segment.array()[_native.receipts_bytes(0) :]
        self._table = words[: len(words) // 128 * 128].view(np.uint64).reshape(-1, 16)

    def __getstate__(self) -> _native.Segment:
        return self._segment

    def __setstate__(self, segment: _native.Segment) -> None:
        self._attach(segment)

    def account(self, sender: str) -> int:
        """The row of a sender's life, found or opened."""
        known = self._rows.get(sender)
        if known is not None and self._table[known[0], _SENDER] == known[1]:
            return known[0]
        mark = _mark(sender)
        found = np.flatnonzero(self._table[:, _SENDER] == mark)
        row = int(found[0]) if found.size else self._open(mark)
        if len(self._rows) > 2 * len(self._table):
            self._rows.clear()
        self._rows[sender] = row, mark
        return row

    def _open(self, mark: np.uint64) -> int:
        free = np.flatnonzero(self._table[1:, _SENDER] == 0)
        row = int(free[0]) + 1 if free.size else self._forget()
        self._table[row] = 0
        self._table[row, _JOINED] = self._table[0, _RESUMED]
        self._table[row, _USED] = time.monotonic_ns()
        self._table[row, _SENDER] = mark
        return row

    def read(self, sender: str) -> Account:
        row = self._table[self.account(sender)]
        return Account(int(row[_PROGRESS]) >> 16, int(row[_COMMITTED]), int(row[_MISSING]), int(row[_REPEATED]))

    def totals(self) -> Account:
        """Over all senders that ever were; ``sequence`` is 0."""
        sums = self._table[:, [_COMMITTED, _MISSING, _REPEATED]].sum(axis=0)
        return Account(0, *(int(n) for n in sums))

    def restore(self, known: Mapping[str, int]) -> None:
        """What a server remembers of senders (name -> next sequence), for those that are not known here."""
        for sender, sequence in known.items():
            if not (self._table[:, _SENDER] == _mark(sender)).any():
                row = self.account(sender)
                self._table[row, _PROGRESS] = sequence << 16
                self._table[row, _JOINED] = 1  # how many items came before is not known

    def count(self, host: str, totals: Sequence[int], first: bool) -> list[int]:
        """Enter a host's counters, which only grow, whatever lives its senders have; answers by how much each grew.

        Args:
            first: this comes with the first chunk that its sender ever made.
        """
        row = self.account(f"{host} counters")
        known = self._table[row]
        if not known[_COUNTED] and self._table[0, _RESUMED] and not first:
            known[_FIRST_COUNTER : _FIRST_COUNTER + len(totals)] = totals
        known[_COUNTED] = 1
        known[_USED] = time.monotonic_ns()
        grown = []
        for column, total in enumerate(totals, _FIRST_COUNTER):
            grown.append(max(0, total - int(known[column])))
            known[column] += np.uint64(grown[-1])
        return grown

    def _forget(self) -> int:
        row = int(self._table[1:, _USED].argmin()) + 1
        sums = [_COMMITTED, _MISSING, _REPEATED]
        self._table[0, sums] += self._table[row, sums]
        return row

    def _expect(self, row: int, sequence: int, item: int) -> None:
        """Before a commit: the first chunk of a sender of before our time tells how its items are numbered."""
        self._table[row, _USED] = time.monotonic_ns()
        known = self._table[row]
        if known[_JOINED] and sequence >= int(known[_PROGRESS]) >> 16:
            known[_NEXT_ITEM] = item
            known[_JOINED] = 0


_SENDER, _PROGRESS, _NEXT_ITEM, _COMMITTED, _MISSING, _REPEATED, _USED, _JOINED, _COUNTED, _FIRST_COUNTER = range(10)
_RESUMED = _JOINED  # of row 0, which is nobody's


def _mark(sender: str) -> np.uint64:
    digest = hashlib.blake2b(sender.encode(), digest_size=8).digest()
    return np.uint64(max(1, int.from_bytes(digest, "little")))


class ChunkSink:
    """Commits chunks of other hosts to a replay, through one writer's lane.

    Args:
        replay: of the same schema as theirs.
        receipts: by which a chunk is committed once, whoever dies.
        streams: the most streams of all hosts together that have a chunk open here.
    """

    def __init__(self, replay: Replay, receipts: Receipts, streams: int) -> None:
        self._replay = replay
        self._receipts = receipts
        self._native = _native.Inbox(replay._native, streams, receipts._segment)
        self._limit = streams
        self._streams: OrderedDict[tuple[int, int], int] = OrderedDict()  # of (account, source), oldest use first
        self._free: list[int] = []  # streams that were closed
        self._used: dict[int, float] = {}  # stream -> when, in monotonic seconds
        self.schema = _schema(replay._layout, replay._options)

    def open(self) -> None:
        """Lease the lane. ExhaustedError when none is free, or the replay has too few streams left."""
        status = self._native.lease()
        if status in (_NO_LANE, _NO_STREAMS):
            what = "writer lane" if status == _NO_LANE else f"{self._limit} streams"
            raise ExhaustedError(
                f"this replay has no {what} left for chunks of other hosts: raise writers= or streams="
            )
        if status:
            raise ClosedError("this replay was closed")

    def commit(
        self, sender: str, sequence: int, item: int, head: ChunkHead, body: Any, offset: int = 0, timeout: float = 0.0
    ) -> bool:
        """Commit chunk ``sequence`` of ``sender``, whose first item is its number ``item``. False: it came before.

        Args:
            body: a buffer in which the chunk's bytes begin at ``offset``.

        Raises:
            FrameError: the chunk could not have been written by an actor of this run; nothing of it was stored.
            WaitTimeout: no room in time; the call may be repeated, and goes on where it was.
            ClosedError: the replay was closed.
        """
        row = self._receipts.account(sender)
        self._receipts._expect(row, sequence, item)
        stream = self._stream(row, head.source)
        deadline = 0.0
        while True:
            try:
                answer, why = self._native.commit(stream, head, body, offset, row, sequence, item)
            except TypeError:
                answer, why = _REFUSED, "a number in its head is out of range"
            if answer == _DONE:
                return True
            if answer == _CAME_BEFORE:
                return False
            if answer == _REFUSED:
                raise FrameError(f"chunk {sequence} of {sender} is refused: {why}")
            if answer == _CLOSED:
                raise ClosedError("the replay was closed")
            now = time.monotonic()
            deadline = deadline or now + timeout
            if now >= deadline:
                raise WaitTimeout(f"the replay took no chunk for {timeout:g} s; the call may be repeated")
            self._native.wait(min(_SLICE, deadline - now))

    def close_idle(self, seconds: float) -> int:
        """Hand over what streams have left that were quiet for so long: an open chunk is never evicted. How many."""
        closed, now = 0, time.monotonic()
        while self._streams:
            key, stream = next(iter(self._streams.items()))
            if now - self._used[stream] < seconds:
                break
            del self._streams[key]
            self._native.close(stream)
            self._free.append(stream)
            closed += 1
        return closed

    def close(self) -> None:
        """Hand over what is there and give the lane back."""
        self._native.release()

    def _stream(self, row: int, source: int) -> int:
        key = (row, source)
        stream = self._streams.get(key)
        if stream is None:
            if self._free:
                stream = self._free.pop()
            elif len(self._streams) < self._limit:
                stream = len(self._streams)
            else:  # whoever was quiet for longest begins a new chunk if it comes again
                _, stream = self._streams.popitem(last=False)
                self._native.close(stream)
            self._streams[key] = stream
        else:
            self._streams.move_to_end(key)
        self._used[stream] = time.monotonic()
        return stream
