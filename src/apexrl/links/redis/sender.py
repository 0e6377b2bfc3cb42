"""The sender of the experience stream (`experience_stream` describes the protocol)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from redis import exceptions

from apexrl._native import MOST_CHUNKS, ChunkHeads
from apexrl.errors import LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.redis.checked_values import PROTOCOLS
from apexrl.links.redis.encoding import MOST_BODY_BYTES, FrameHead, encode_frame, packing
from apexrl.links.redis.kept_frame import JOINED_BYTES, KeptFrame
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.pipe import Pipe, command
from apexrl.links.redis.server import DEFAULT_BULK_BYTES, TROUBLE, Server, explain
from apexrl.links.redis.stream_names import LAST_OF_GENERATION, field_of, sequence_of, stream_of

BATCH_BYTES: Final = 4 * 2**20
"""Frames sent before replies are read; bounds what is sent twice after a reconnect."""
BATCH_FRAMES: Final = 256
DOUBT_SECONDS, MOST_DOUBT_SECONDS = 5.0, 60.0
"""Time without a commit after which the sender checks that the server still has its frames; doubled each time."""
LEAST_PAUSE, MOST_PAUSE = 0.001, 0.05
"""Seconds between reads of what was committed."""

_MULTI, _EXEC = command("MULTI"), command("EXEC")
_THERE: Final = "return #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])"  # the entry itself may be large


class ExperienceSender:
    """Sends one member's chunks, in order, each once. For one thread. Failures of the connection are retried.

    ``sent_items`` = ``committed_items`` + ``dropped_items`` + ``uncommitted_items`` at any time. The intake may still
    commit a frame that was dropped here: it then counts as dropped here and as committed there. Gaps in the item
    numbers tell the intake what is really missing.

    Args:
        run_id, member, generation, schema: written into every frame.
        window_bytes: of uncommitted frames; a single frame may exceed it.
        when_full: ``wait`` (the caller checks ``room``) or ``drop-oldest``.
        compression: ``none`` or ``zlib``.
        protocol: of its frames; one that the run's learner speaks.
        joined_bytes: bodies that wait together travel in one frame, up to this size. Not those that are packed, or may
            be dropped: they count as what they are when they are offered.
        most_bulk: the server's (`ServerFacts`), until the sender's own connection has read it.
    """

    def __init__(
        self,
        server: Server,
        keys: RunKeys,
        *,
        run_id: str,
        member: str,
        generation: int,
        schema: bytes,
        window_bytes: int,
        when_full: str = "wait",
        compression: str = "none",
        protocol: int = PROTOCOLS.least,
        joined_bytes: int = JOINED_BYTES,
        most_bulk: int = DEFAULT_BULK_BYTES,
    ) -> None:
        self._server, self._keys = server, keys
        self._run_id, self._member, self._generation, self._schema = run_id, member, generation, schema
        self._window, self._drops, self._packed = window_bytes, when_full == "drop-oldest", packing(compression)
        self._joined_bytes = 0 if self._drops or self._packed else joined_bytes
        self._protocol = protocol
        self._field = field_of(member, generation)
        self._pipe: Pipe | None = None
        self._backoff = Backoff()
        self._not_before = 0.0
        self._server_id, self._stream_generation = "", b""  # empty: unknown
        self._most_bulk = most_bulk
        self._append = self._stream = b""  # XADD up to the frame; key of the present stream
        self._look = command("HGET", keys.committed, self._field) + command(
            "GETRANGE", keys.steps, 0, LAST_OF_GENERATION
        )
        self._queued: deque[KeptFrame] = deque()
        self._sent: deque[KeptFrame] = deque()  # and taken by the server, uncommitted; older than those queued
        self._posted: _Posted | None = None
        self._deletes: list[bytes] = []  # entries of the present stream that were dropped after they were sent
        self._sure_until = 0.0  # monotonic time of the next check that the server has what was sent
        self._doubt = DOUBT_SECONDS
        self._sequence = 0
        self.trouble = ""
        """Why nothing is sent; empty: no problem."""
        self.committed_sequence = 0
        self.sent_items = self.committed_items = self.dropped_items = self.uncommitted_items = 0
        self.uncommitted_bytes = 0
        self.resent_frames = 0
        self.reconnects = 0

    @property
    def connected(self) -> bool:
        return self._pipe is not None

    @property
    def met(self) -> bool:
        """Whether there ever was a connection."""
        return self._server_id != ""

    @property
    def most_frame_bytes(self) -> int:
        """Size of the largest body that may be offered; an estimate before the first connection."""
        return min(self._most_bulk - 2**16, MOST_BODY_BYTES)  # the head is much smaller

    @property
    def room(self) -> int:
        """Bytes that may be offered now; with ``drop-oldest``, the whole window."""
        return self._window if self._drops else max(0, self._window - self.uncommitted_bytes)

    def offer(self, heads: ChunkHeads, body: bytes, counts: Mapping[str, int]) -> None:
        """Queue chunks, in a frame of their own or with others that wait. Keeps the body; never waits.

        Args:
            body: of all chunks, concatenated.
            counts: the member's cumulative counters.

        Raises:
            LinkError: the frame is larger than ``most_frame_bytes``, or has more than 4096 chunks; nothing was taken.
            ValueError: the body has another length than its chunks.
        """
        if len(body) != heads.nbytes or not heads:
            raise ValueError(f"{len(body)} bytes are not the body of these {len(heads)} chunks")
        if len(body) > self.most_frame_bytes or len(heads) > MOST_CHUNKS:
            raise LinkError(
                f"a frame of {len(body)} bytes and {len(heads)} chunks is more than the {self.most_frame_bytes} bytes "
                f"and {MOST_CHUNKS} chunks that Redis at {self._server.address} and apexrl take: send fewer or smaller "
                "chunks, or raise the server's proto-max-bulk-len"
            )
        kept = self._queued[-1] if self._queued else None
        if kept is None or not kept.takes(len(heads), len(body), self._joined_bytes):
            kept = KeptFrame(self._sequence, self.sent_items)
            self._queued.append(kept)
        items = heads.items()
        kept.add(heads, items, body, counts)
        self._sequence = kept.end
        self.sent_items += items
        self.uncommitted_items += items
        self.uncommitted_bytes += len(body)
        if kept.nbytes + len(body) > self._joined_bytes:  # another like it would not fit; the body is in the cache now
            self._encode(kept)
        if self._drops:
            self._make_room(kept)

    def step(self, timeout: float) -> bool:
        """Send queued frames and read what was committed.

        While frames are uncommitted, waits up to ``timeout`` seconds for progress (a dead connection may take the
        server's timeout to be noticed). Returns whether there was progress. Failures only set ``trouble``.
        """
        deadline = time.monotonic() + timeout
        pause = LEAST_PAUSE
        while True:
            moved = False
            try:
                moved = self._collect()
                while self._ready():
                    self._post()
                    patient = self._drops or time.monotonic() < deadline  # what is dropped must not be on its way
                    if self._posted and self._posted.batch and not patient:
                        moved = True  # the caller makes the next frames while the server takes these
                        break
                    moved |= (exchanged := self._collect())
                    if not exchanged or not self._queued or not patient:
                        break
            except (*TROUBLE, exceptions.ResponseError) as error:
                self._troubled(error)
            if moved or not self.uncommitted_bytes or time.monotonic() >= deadline:
                return moved
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            pause = min(2.0 * pause, MOST_PAUSE)

    def close(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds until everything is committed, then disconnect."""
        deadline = time.monotonic() + timeout
        while self.uncommitted_bytes and time.monotonic() < deadline:
            self.step(deadline - time.monotonic())
        self._disconnect()

    def _ready(self) -> bool:
        """Whether there is a connection and something to send. Queues again what a new server may lack."""
        if time.monotonic() < self._not_before:
            return False
        if self._pipe is None:
            self._pipe = Pipe(self._server, self._keys)
            facts = self._pipe.facts
            self.reconnects += self._server_id != ""
            self._most_bulk = facts.most_bulk
            if self._server_id != facts.run_id:  # it may have forgotten even what it answered
                self._server_id = facts.run_id
                self._queue_again()
        return bool(self.uncommitted_bytes or self._deletes or not self._stream_generation)

    def _post(self) -> None:
        """Send deletions, one batch (all or nothing) and a read of what was committed; `_collect` reads the replies.

        One batch at a time: a batch must not be taken if the one before it was refused.
        """
        pipe = self._pipe
        assert pipe is not None
        batch = self._batch() if self._stream_generation else []
        whole = len(batch) > 1  # a full server must not refuse one frame and take the next
        deletes = len(self._deletes)
        doubted = self._sent[-1] if self._sent and time.monotonic() > self._sure_until else None
        pieces = [command("XDEL", self._stream, *self._deletes)] if deletes else []
        if whole:
            pieces.append(_MULTI)
        for kept in batch:
            pieces += (b"%b$%d\r\n%b" % (self._append, kept.nbytes, kept.front), kept.body, b"\r\n")
            self.resent_frames += kept.tried
            kept.tried = True
        if whole:
            pieces.append(_EXEC)
        if doubted is not None:  # before the read, so that a concurrent commit is not missed
            pieces.append(command("EVAL", _THERE, 1, self._stream, doubted.entry))
        pieces.append(self._look)
        answers = len(batch) + 2 * whole
        pipe.send(pieces, bool(deletes) + answers + (doubted is not None) + 2)
        self._posted = _Posted(batch, answers, whole, deletes, doubted)

    def _collect(self) -> bool:
        """Read the replies to `_post`. True: there was progress."""
        posted, self._posted = self._posted, None
        if posted is None or self._pipe is None:
            return False
        batch, answers, whole, deletes, doubted = posted
        replies = self._pipe.drain()[bool(deletes) :]
        del self._deletes[:deletes]
        entries = replies[answers - 1] if whole else replies[:answers]
        told = replies[:answers] + (entries if isinstance(entries, list) else [])
        refusal = next((reply for reply in told if isinstance(reply, Exception)), None)
        moved = bool(batch) and refusal is None and self._taken(batch, entries)
        moved |= self._looked(*replies[-2:])
        if doubted is not None:
            self._judge(doubted, replies[-3])
        if refusal is not None:
            raise refusal
        return moved

    def _batch(self) -> list[KeptFrame]:
        batch: list[KeptFrame] = []
        nbytes = 0
        while self._queued and self._queued[0].nbytes > self._most_bulk:  # never to be sent to this server
            self._drop(self._queued.popleft())
        for kept in self._queued:
            if batch and (nbytes + kept.nbytes > BATCH_BYTES or len(batch) == BATCH_FRAMES):
                break
            self._encode(kept)
            if batch and kept.nbytes > self._most_bulk:  # once it is the first it is dropped
                break
            batch.append(kept)
            nbytes += kept.nbytes
        return batch

    def _encode(self, kept: KeptFrame) -> None:
        """Make the frame, which then grows no more."""
        if kept.front:
            return
        heads = kept.heads[0] if len(kept.heads) == 1 else ChunkHeads.joined(kept.heads)
        head = FrameHead(
            self._run_id,
            self._schema,
            self._member,
            self._generation,
            kept.sequence,
            kept.item_index,
            msgspec.Raw(heads.pack()),
            kept.counts,
        )
        before = kept.nbytes
        kept.front, kept.body = encode_frame(head, b"".join(kept.bodies), self._packed, self._protocol)
        kept.nbytes = len(kept.front) + len(kept.body)
        kept.heads, kept.bodies = [], []
        self.uncommitted_bytes += kept.nbytes - before

    def _taken(self, batch: list[KeptFrame], entries: list[bytes | None]) -> bool:
        """Move a batch from queued to sent, if the stream existed."""
        if None in entries:  # the stream is gone: wait until the receiver has created another
            self._stream_generation = b""
            self._queue_again()
            return False
        if not self._sent:
            self._sure_until = time.monotonic() + self._doubt
        for kept, entry in zip(batch, entries, strict=True):
            kept.entry = entry or b""
            self._sent.append(self._queued.popleft())
        self._well()
        return True

    def _looked(self, committed: Any, generation: Any) -> bool:
        for reply in (committed, generation):
            if isinstance(reply, Exception):
                raise reply
        if generation != self._stream_generation:
            self._stream_generation = generation
            self._stream = stream_of(self._keys, generation)
            self._append = command("XADD", self._stream, "NOMKSTREAM", "*", "f", more=1)
            self._queue_again()
            self._deletes.clear()
            for kept in self._queued:
                kept.entry = b""
        if not generation:
            self.trouble = "no learner takes experience yet"
        elif not self._queued:
            self._well()
        sequence = min(sequence_of(committed), self._sequence)
        moved = False
        for kept_ones in (self._sent, self._queued):
            while kept_ones and kept_ones[0].end <= sequence:
                kept = kept_ones.popleft()
                self._release(kept)
                self.committed_items += kept.items
                moved = True
        if moved:
            self._doubt = DOUBT_SECONDS
            self._sure_until = time.monotonic() + self._doubt
        self.committed_sequence = max(self.committed_sequence, sequence)
        return moved

    def _judge(self, doubted: KeptFrame, there: Any) -> None:
        """Queue again what the server lost before it was committed."""
        self._doubt = min(2.0 * self._doubt, MOST_DOUBT_SECONDS)  # a frame that is refused comes to this, too
        self._sure_until = time.monotonic() + self._doubt
        if there == 0 and self._sent and self._sent[-1] is doubted:
            self._deletes += [kept.entry for kept in self._sent]  # frames must stay in order
            self._queue_again()

    def _release(self, kept: KeptFrame) -> None:
        self.uncommitted_bytes -= kept.nbytes
        self.uncommitted_items -= kept.items

    def _drop(self, kept: KeptFrame) -> None:
        self._release(kept)
        self.dropped_items += kept.items

    def _make_room(self, newest: KeptFrame) -> None:
        while self.uncommitted_bytes > max(self._window, newest.nbytes):
            kept = (self._sent or self._queued).popleft()
            if kept.entry:
                self._deletes.append(kept.entry)
            self._drop(kept)

    def _queue_again(self) -> None:
        """Queue everything uncommitted, from the oldest on."""
        self._queued.extendleft(reversed(self._sent))
        self._sent.clear()

    def _well(self) -> None:
        self._backoff.reset()
        self.trouble = ""

    def _troubled(self, error: Exception) -> None:
        self.trouble = str(explain(error, self._server.address))
        self._not_before = time.monotonic() + self._backoff.next()
        if not isinstance(error, exceptions.OutOfMemoryError):  # after which all was answered: the connection is good
            self._disconnect()

    def _disconnect(self) -> None:
        self._posted = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


class _Posted(NamedTuple):
    """A round trip whose replies are outstanding."""

    batch: list[KeptFrame]  # still the first of the queue
    answers: int  # replies to it
    whole: bool
    deletes: int
    doubted: KeptFrame | None
