"""Chunks: experience as self-contained bytes that can be sent to another host (native/chunks.h).

On an actor host, a ``ChunkSource`` takes what actors published out of a fifo replay. On the learner's host, a
``ChunkSink`` commits it to the learner's replay, each chunk exactly once, with receipts in shared memory.
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
from apexrl._native import ChunkHeads, CommitStatus, SampleStatus, WriteStatus
from apexrl.errors import ClosedError, ConfigError, ExhaustedError, FrameError, WaitTimeout
from apexrl.protocols import ChunkHead
from apexrl.replay.layout import Layout
from apexrl.replay.options import OPTIONS, checked
from apexrl.replay.replay import Replay
from apexrl.shared.segment import new_segment
from apexrl.spec import Field

_VERSION = 1  # of the layout of a chunk's body
_SHAPING = ("kind", "stack", "n_step", "gamma", "length", "stride", "burn_in", "alpha", "eps")
_SIGNAL_SECONDS = 0.1  # longest native wait, so that Python can handle signals


def schema(fields: Mapping[str, Field], **options: Any) -> bytes:
    """Eight bytes, equal for two replays exactly if chunks of one fit the other.

    Args:
        fields, options: as ``Replay`` takes them, ``capacity`` included.
    """
    defaults = {name: value.default for name, value in inspect.signature(Replay).parameters.items() if name in OPTIONS}
    checks = checked({**defaults, **{name: options[name] for name in OPTIONS if name in options}})
    return _schema(Layout(fields, checks["kind"], checks["stack"], checks["burn_in"] + checks["length"]), checks)


def _schema(layout: Layout, options: Mapping[str, Any]) -> bytes:
    # 0.2 knows no compressed fields, which alone have the last number; only ragged ones have the one before it
    columns = [column[: 9 if column[8] else 8 if column[7] else 7] for column in layout.native()]
    text = json.dumps([_VERSION, columns, {name: options[name] for name in _SHAPING}])
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


class ChunkSource:
    """Takes published chunks out of a fifo replay. This process becomes the replay's owner.

    The caller must keep what it took: if it dies, exactly that is lost.
    """

    def __init__(self, replay: Replay) -> None:
        core = replay.core
        if not core.fifo or core.layout.kind == "rows":
            raise ConfigError(
                "chunks come from a fifo replay of steps: use sampler='fifo', and a kind other than 'rows'"
            )
        self._core = core
        self.schema = _schema(core.layout, core.options)
        self.item_steps: int = core.options["length"] if core.layout.kind == "unroll" else 1
        """Environment steps in an item."""

    def take(self, most_bytes: int, linger: float, allowed: int = 2**62) -> tuple[ChunkHeads, bytes]:
        """The chunks that are ready: their heads, and their bodies concatenated. Does not wait.

        Args:
            most_bytes: of all bodies together; a larger single item comes alone.
            linger: seconds that items in a part-filled chunk may wait for more.
            allowed: items that may wait in the replay until the next call; writers wait when it holds so many.

        Raises:
            ClosedError, OwnershipError: the replay was closed, or another living process owns it.
        """
        core = self._core
        if not core.native.owned or core.closed:
            core.own()
        core.publish_local()
        status, heads, body = _native.take_chunks(core.native, linger, most_bytes, allowed)
        if status is SampleStatus.closed:
            raise ClosedError("this replay was closed")
        return heads, body

    def wait(self, timeout: float) -> None:
        """Sleep until workers publish something, at most ``timeout`` seconds."""
        self._core.native.wait(min(timeout, _SIGNAL_SECONDS))


class SenderCounts(NamedTuple):
    """What arrived from one generation of one sender."""

    sequence: int  # of the next chunk that may be committed
    committed: int  # items
    missing: int  # items that were numbered and never arrived: dropped by the sender, or lost
    repeated: int  # items that arrived again, and were dropped


class Receipts:
    """Counts of committed items per sender, in shared memory that outlives the committing process.

    Picklable to local processes. One process writes at a time.

    Args:
        senders: generations of senders that are remembered; beyond that, the one idle for longest is forgotten.
        resumed: senders may have sent to an earlier replay that is gone. Items that they numbered or counted before
            are then neither missing nor counted again.
    """

    def __init__(self, senders: int = 4096, resumed: bool = False) -> None:
        self._attach(new_segment(_native.receipts_bytes(senders + 1)))
        self._table[0, _RESUMED] = resumed

    def _attach(self, segment: _native.Segment) -> None:
        self.segment = segment
        self._rows: dict[str, tuple[int, int]] = {}
        words = segment.array()[_native.receipts_bytes(0) :]
        self._table = words[: len(words) // 128 * 128].view(np.uint64).reshape(-1, _WORDS)
        self._words = self._table.reshape(-1).data  # the same as Python's integers: NumPy's cost a microsecond

    def __getstate__(self) -> _native.Segment:
        return self.segment

    def __setstate__(self, segment: _native.Segment) -> None:
        self._attach(segment)

    @property
    def replay(self) -> int:
        """Of several replays, the one into which the commit that is announced goes (``ChunkDealer``)."""
        return int(self._table[0, _REPLAY])

    @replay.setter
    def replay(self, number: int) -> None:
        self._table[0, _REPLAY] = number

    def account(self, sender: str) -> int:
        """The row of a sender, by its name with generation; added if it is new."""
        known = self._rows.get(sender)
        if known is not None and self._words[known[0] * _WORDS + _SENDER] == known[1]:
            return known[0]
        digest = _digest(sender)
        found = np.flatnonzero(self._table[:, _SENDER] == digest)
        row = int(found[0]) if found.size else self._add(digest)
        if len(self._rows) > 2 * len(self._table):
            self._rows.clear()
        self._rows[sender] = row, int(digest)
        return row

    def _add(self, digest: np.uint64) -> int:
        free = np.flatnonzero(self._table[1:, _SENDER] == 0)
        row = int(free[0]) + 1 if free.size else self._forget()
        self._table[row] = 0
        self._table[row, _JOINED] = self._table[0, _RESUMED]
        self._table[row, _USED] = time.monotonic_ns()
        self._table[row, _SENDER] = digest
        return row

    def read(self, sender: str) -> SenderCounts:
        words, at = self._words, self.account(sender) * _WORDS
        return SenderCounts(
            words[at + _PROGRESS] >> 16, words[at + _COMMITTED], words[at + _MISSING], words[at + _REPEATED]
        )

    def totals(self) -> SenderCounts:
        """Sums over all senders, also forgotten ones; ``sequence`` is 0."""
        sums = self._table[:, [_COMMITTED, _MISSING, _REPEATED]].sum(axis=0)
        return SenderCounts(0, *(int(n) for n in sums))

    def restore(self, known: Mapping[str, int]) -> None:
        """Add senders that a server remembers (name -> next sequence) and that are not known here."""
        for sender, sequence in known.items():
            if not (self._table[:, _SENDER] == _digest(sender)).any():
                row = self.account(sender)
                self._table[row, _PROGRESS] = sequence << 16
                self._table[row, _JOINED] = 1  # the number of its next item is not known

    def count(self, host: str, totals: Sequence[int], first: bool) -> list[int]:
        """Record a host's counters, which never decrease. Answers by how much each grew.

        Args:
            first: they came with the first chunk that the host ever sent.
        """
        at = self.account(f"{host} counters") * _WORDS
        words, counters = self._words, at + _FIRST_COUNTER
        if not words[at + _COUNTED] and words[_RESUMED] and not first:
            words[counters : counters + len(totals)] = np.array(totals, np.uint64).data
        words[at + _COUNTED] = 1
        words[at + _USED] = time.monotonic_ns()
        grown = []
        for place, total in enumerate(totals, counters):
            grown.append(max(0, total - words[place]))
            words[place] += grown[-1]
        return grown

    def _forget(self) -> int:
        row = int(self._table[1:, _USED].argmin()) + 1
        sums = [_COMMITTED, _MISSING, _REPEATED]
        self._table[0, sums] += self._table[row, sums]
        return row

    def expect(self, row: int, sequence: int, item: int, heads: ChunkHeads) -> None:
        """Before a commit: take the item number from the first new chunk of a sender that is older than these
        receipts."""
        words, at = self._words, row * _WORDS
        words[at + _USED] = time.monotonic_ns()
        repeated = max(0, (words[at + _PROGRESS] >> 16) - sequence)
        if words[at + _JOINED] and repeated < len(heads):
            words[at + _NEXT_ITEM] = item + heads.items() - heads.items(repeated)
            words[at + _JOINED] = 0


_SENDER, _PROGRESS, _NEXT_ITEM, _COMMITTED, _MISSING, _REPEATED, _USED, _JOINED, _COUNTED, _FIRST_COUNTER = range(10)
_WORDS = 16  # of a row
_RESUMED, _REPLAY = _JOINED, _COUNTED  # of row 0, which belongs to no sender


def _digest(sender: str) -> np.uint64:
    digest = hashlib.blake2b(sender.encode(), digest_size=8).digest()
    return np.uint64(max(1, int.from_bytes(digest, "little")))


class ChunkSink:
    """Commits chunks of other hosts to a replay, through one writer's lane.

    Args:
        replay: with the senders' schema.
        receipts: make every chunk commit exactly once, also across deaths of processes.
        streams: the most streams of all hosts together that may have a part-filled chunk here.
    """

    def __init__(self, replay: Replay, receipts: Receipts, streams: int) -> None:
        self._receipts = receipts
        self._native = _native.Inbox(replay.core.native, streams, receipts.segment)
        self._limit = streams
        self._streams: OrderedDict[tuple[int, int], int] = OrderedDict()  # by (sender's row, source), oldest use first
        self._free: list[int] = []  # numbers of closed streams
        self._used: dict[int, float] = {}  # stream -> when, in monotonic seconds
        self.schema = _schema(replay.core.layout, replay.core.options)

    def open(self) -> None:
        """Lease the lane. ExhaustedError: no lane is free, or too few streams are."""
        status = self._native.lease()
        if status in (WriteStatus.no_lane, WriteStatus.no_streams):
            what = "writer lane" if status is WriteStatus.no_lane else f"{self._limit} streams"
            raise ExhaustedError(
                f"this replay has no {what} left for chunks of other hosts: raise writers= or streams="
            )
        if status is not WriteStatus.ok:
            raise ClosedError("this replay was closed")

    def commit(
        self, sender: str, sequence: int, item: int, head: ChunkHead, body: Any, offset: int = 0, timeout: float = 0.0
    ) -> bool:
        """Commit one chunk, whose bytes begin at ``offset``, as `commit_frame`. False: it was already there.

        Raises:
            WaitTimeout: no room in time; repeat the call, which then continues where it stopped.
        """
        try:
            heads = ChunkHeads([head])
        except TypeError:
            raise self._refusal(sender, sequence, "a number in its head is out of range") from None
        answer, _ = self._commit(sender, sequence, item, heads, memoryview(body)[offset:], 0, timeout)
        if answer is CommitStatus.wait:
            raise WaitTimeout(f"the replay had no room for a chunk within {timeout:g} s; the call may be repeated")
        return answer is CommitStatus.done

    def commit_frame(
        self, sender: str, sequence: int, item: int, heads: ChunkHeads, body: Any, done: int = 0, timeout: float = 0.0
    ) -> int:
        """Commit the chunks of a frame, except for those that are already there.

        Args:
            sequence, item: the number of the sender's first chunk in the frame, and of its first item.
            body: a buffer; the bytes of all chunks, concatenated.
            done: chunks that earlier calls are done with.
            timeout: seconds to wait for room.

        Returns:
            The number of chunks that are done with; fewer than all: no room in time, or the next one is refused.
            Repeat the call with it, which then continues where it stopped.

        Raises:
            FrameError: no actor of this run could have written chunk ``done``; nothing of it was stored.
            ClosedError: the replay was closed.
        """
        return self._commit(sender, sequence, item, heads, body, done, timeout)[1]

    def _commit(
        self, sender: str, sequence: int, item: int, heads: ChunkHeads, body: Any, done: int, timeout: float
    ) -> tuple[CommitStatus, int]:
        """``commit_frame``; also the status of the last chunk that was looked at."""
        row = self._receipts.account(sender)
        self._receipts.expect(row, sequence, item, heads)
        streams = [self._stream(row, source) for source in heads.sources]
        deadline = 0.0
        while True:
            before = done
            try:
                answer, done, why = self._native.commit_frame(streams, heads, body, row, sequence, item, done)
            except TypeError:
                raise self._refusal(sender, sequence, "its number is out of range") from None
            if answer is CommitStatus.refused and done == before:
                raise self._refusal(sender, sequence + done, str(why))
            if answer is CommitStatus.closed:
                raise ClosedError("the replay was closed")
            now = time.monotonic()
            deadline = deadline or now + timeout
            if answer is not CommitStatus.wait or now >= deadline:
                return answer, done
            self._native.wait(min(_SIGNAL_SECONDS, deadline - now))

    @staticmethod
    def _refusal(sender: str, sequence: int, why: str) -> FrameError:
        return FrameError(f"chunk {sequence} of {sender} is refused: {why}")

    def close_idle(self, seconds: float) -> int:
        """Close part-filled chunks of streams that were idle so long, because such a chunk is never evicted. Answers
        how many."""
        closed, now = 0, time.monotonic()
        while self._streams:
            key, stream = next(iter(self._streams.items()))
            if now - self._used[stream] < seconds:
                break
            self._close(key)
            closed += 1
        return closed

    def close_stream(self, sender: str, source: int) -> None:
        """Close the part-filled chunk of one stream, which goes on elsewhere."""
        key = self._receipts.account(sender), source
        if key in self._streams:
            self._close(key)

    def close(self) -> None:
        """Close part-filled chunks and return the lane."""
        self._native.release()

    def _close(self, key: tuple[int, int]) -> None:
        stream = self._streams.pop(key)
        self._native.close(stream)
        self._free.append(stream)

    def _stream(self, row: int, source: int) -> int:
        key = (row, source)
        stream = self._streams.get(key)
        if stream is None:
            if self._free:
                stream = self._free.pop()
            elif len(self._streams) < self._limit:
                stream = len(self._streams)
            else:  # the stream idle for longest begins a new chunk when it comes again
                _, stream = self._streams.popitem(last=False)
                self._native.close(stream)
            self._streams[key] = stream
        else:
            self._streams.move_to_end(key)
        self._used[stream] = time.monotonic()
        return stream
