"""Deals chunks of other hosts to the replays of several learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apexrl._native import ChunkHeads
from apexrl.errors import FrameError, WaitTimeout
from apexrl.protocols import ChunkHead
from apexrl.replay.chunks import ChunkSink, Receipts
from apexrl.replay.replay import Replay

_MOST_STREAMS = 65_536  # whose last slot is remembered


class ChunkDealer:
    """Commits every chunk to one of several replays, exactly once: a ``ChunkSink`` for each, with receipts in common.

    The chunks of one slot of a sender go to one replay, where they become one slot again. Every other slot goes to the
    replay that was given the fewest items. So learners that make every update together have as many each, whatever the
    hosts bring. A chunk for which its replay has no room goes to another that has: one that is full holds nothing up.

    Args:
        replays: with the senders' schema, all alike.
        receipts: see ``ChunkSink``.
        streams: the most streams of all hosts together.
    """

    def __init__(self, replays: Sequence[Replay], receipts: Receipts, streams: int) -> None:
        self._receipts = receipts
        self._sinks = [ChunkSink(replay, receipts, streams) for replay in replays]
        self._given = [0] * len(replays)  # items
        self._slots: dict[tuple[str, int], tuple[int, int]] = {}  # (sender, its stream) -> (its slot, our replay)
        self.schema = self._sinks[0].schema

    def open(self) -> None:
        """As ``ChunkSink.open``. What a dead predecessor had announced is settled by the replay that it was for."""
        last = self._receipts.replay
        for sink in (self._sinks[last], *self._sinks[:last], *self._sinks[last + 1 :]):
            sink.open()

    def commit(
        self, sender: str, sequence: int, item: int, head: ChunkHead, body: Any, offset: int = 0, timeout: float = 0.0
    ) -> bool:
        """As ``ChunkSink.commit``. WaitTimeout: no replay has room."""
        stream = sender, head.source
        slot, before = self._slots.get(stream, (None, 0))
        order = sorted(range(len(self._sinks)), key=self._given.__getitem__)
        if slot == head.life:
            order.remove(before)
            order.insert(0, before)
        waits = [(replay, 0.0) for replay in order] + [(order[0], timeout)]
        while True:
            replay, seconds = waits.pop(0)
            self._receipts.replay = replay
            try:
                done = self._sinks[replay].commit(sender, sequence, item, head, body, offset, seconds)
                break
            except WaitTimeout:
                if not waits:
                    raise
        if slot is not None and replay != before:
            self._sinks[before].close_stream(sender, head.source)
        if len(self._slots) >= _MOST_STREAMS:
            self._slots.clear()
        self._slots[stream] = head.life, replay
        self._given[replay] += head.items * done
        return done

    def commit_frame(
        self, sender: str, sequence: int, item: int, heads: ChunkHeads, body: Any, done: int = 0, timeout: float = 0.0
    ) -> int:
        """As ``ChunkSink.commit_frame``."""
        if len(self._sinks) == 1:
            return self._sinks[0].commit_frame(sender, sequence, item, heads, body, done, timeout)
        offset = 0
        for number, head in enumerate(heads):
            if number >= done:
                try:
                    self.commit(sender, sequence + number, item, head, body, offset, timeout)
                except WaitTimeout:
                    return number
                except FrameError:
                    if number > done:
                        return number
                    raise
            item, offset = item + head.items, offset + head.nbytes
        return len(heads)

    def close_idle(self, seconds: float) -> int:
        """As ``ChunkSink.close_idle``."""
        return sum(sink.close_idle(seconds) for sink in self._sinks)

    def close(self) -> None:
        """Close part-filled chunks and return the lanes."""
        for sink in self._sinks:
            sink.close()
