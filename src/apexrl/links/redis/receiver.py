"""The receiving end of the stream of experience (`links.redis.experience` says how the two ends work together)."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis import exceptions

from apexrl.errors import FrameError
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.pipe import Pipe, Words, command
from apexrl.links.redis.server import TROUBLE, Backoff, Server, explain
from apexrl.links.redis.stream import CONSUMER, GROUP, MOST_LIFE, field_of, sequence_of, stream_of
from apexrl.links.redis.wire import MOST_BODY_BYTES, decode_frame
from apexrl.protocols import ChunkHead

MOST_BLOCK = 1.0
"""Seconds that the server holds a read back for: below every reply timeout."""
MOST_ENTRIES = 256
"""Asked for at a time."""
MOST_MEMBERS = 4096
"""Lives of members in ``committed``; of more, those that were quiet for longest are forgotten."""


class Received(NamedTuple):
    """A frame that has arrived."""

    entry: bytes  # its id on the server
    member: str
    generation: int
    sequence: int  # of the first chunk
    item_index: int  # items in all chunks of this member and generation before the first
    heads: list[ChunkHead]
    body: memoryview  # of all chunks, one after the other
    counts: dict[str, int]


class ExperienceReceiver:
    """Receives every member's frames, at least once, each member's in order. For one thread; one per run.

    What it gave out and was not told to acknowledge comes again: to a successor, and to itself after a cut.

    Args:
        run_id, schema: frames with others are refused.
        most_bytes_per_read: about so much is taken from the server at a time.
        most_frame_bytes: of one frame's body, unpacked.
    """

    def __init__(
        self,
        server: Server,
        keys: RunKeys,
        *,
        run_id: str,
        schema: bytes,
        most_bytes_per_read: int = 8 * 2**20,
        most_frame_bytes: int = MOST_BODY_BYTES,
    ) -> None:
        self._server, self._keys, self._run_id, self._schema = server, keys, run_id, schema
        self._most_read, self._most_frame = most_bytes_per_read, most_frame_bytes
        self._pipe: Pipe | None = None
        self._backoff = Backoff()
        self._not_before = 0.0
        self._life = self._stream = b""
        self._after = b"0"  # pending entries of ours after this one come first; ">": new ones
        self._expected_bytes = 256 * 1024  # of an entry: how many are asked for at a time
        self._done: list[bytes] = []  # entries to be acknowledged
        self._unwritten: dict[str, int] = {}  # of `committed`
        self._table: dict[str, int] = {}  # all of it
        self._forgotten: list[str] = []  # fields to be deleted
        self._told_done = 0  # how many of `_done` were sent, and not answered yet
        self._told: dict[str, int] = {}  # likewise of `_unwritten`
        self._server_id = ""
        self._refusals: deque[str] = deque(maxlen=32)
        self.trouble = ""
        """Why nothing arrives, in words; empty when all is well."""
        self.refused = 0
        """Entries that were no frames of this run."""
        self.received_frames = self.received_bytes = 0
        self.reconnects = 0

    @property
    def connected(self) -> bool:
        return self._pipe is not None

    def receive(self, timeout: float) -> list[Received]:
        """Frames that have arrived, waiting up to ``timeout`` seconds for the first. Empty also when in trouble."""
        deadline = time.monotonic() + timeout
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            received: list[Received] = []
            try:
                if self._ready():
                    received = self._decoded(self._read(remaining))
                else:
                    time.sleep(min(remaining, max(0.0, self._not_before - time.monotonic())))
            except (*TROUBLE, exceptions.ResponseError) as error:
                self._troubled(error)
            if received or time.monotonic() >= deadline:
                return received

    def acknowledge(self, done: Sequence[Received], committed: Mapping[tuple[str, int], int]) -> None:
        """These frames are committed: their entries go, and senders are told. Does not wait for the server's reply.

        What cannot be told now is told once the server is back.

        Args:
            committed: (member, generation) -> the sequence after the last committed chunk, of those that changed.
        """
        self._done += [one.entry for one in done]
        self._note(committed)
        if self._pipe is not None:
            try:
                self._tell()
            except TROUBLE as error:
                self._troubled(error)

    def publish_all(self, committed: Mapping[tuple[str, int], int]) -> None:
        """Tell senders everything that was ever committed; after a restart of the server this is done by itself."""
        self.acknowledge((), committed)

    def known(self) -> dict[tuple[str, int], int]:
        """What the server says was committed, as `acknowledge` takes it; empty when it cannot be asked now."""
        told: dict[tuple[str, int], int] = {}
        try:
            if not self._ready():
                return told
            values = self._ask("HGETALL", self._keys.committed)
        except (*TROUBLE, exceptions.ResponseError) as error:
            self._troubled(error)
            return told
        for field, value in zip(values[::2], values[1::2], strict=True):
            member, _, generation = field.decode("utf-8", "replace").rpartition("/")
            if member and generation.isdigit() and len(generation) < 17:
                told[member, int(generation)] = sequence_of(value)
        return told

    def depth(self) -> int:
        """Entries on the server: to be received, or to be acknowledged; 0 when it cannot be asked now."""
        try:
            return int(self._ask("XLEN", self._stream)) if self._ready() else 0
        except (*TROUBLE, exceptions.ResponseError) as error:
            self._troubled(error)
            return 0

    def take_refusals(self) -> list[str]:
        """Why entries were refused, since the last call; the newest 32."""
        texts = list(self._refusals)
        self._refusals.clear()
        return texts

    def close(self) -> None:
        """Disconnect, after what was acknowledged has reached the server (if it is there)."""
        if self._pipe is not None:
            try:
                self._tell()
                self._settle()
            except (*TROUBLE, exceptions.ResponseError):
                pass  # a successor receives it again and drops it
            self._disconnect()

    def _ready(self) -> bool:
        if self._pipe is not None:
            return True
        if time.monotonic() < self._not_before:
            return False
        self._pipe = Pipe(self._server, read_bytes=2**20)
        server_id, self._server_id = self._server_id, self._pipe.facts.run_id
        self.reconnects += server_id != ""
        if server_id != self._server_id:
            self._unwritten = dict(self._table)  # it may have forgotten even what it answered
        self._after = b"0"  # what the last connection was sent and nobody saw
        self._find_stream()
        return True

    def _find_stream(self) -> None:
        """The stream of the run as it is, or a new one."""
        self._life = self._ask("GETRANGE", self._keys.steps, 0, MOST_LIFE)
        if self._life:
            self._stream = stream_of(self._keys, self._life)
            try:
                self._ask("XGROUP", "CREATE", self._stream, GROUP, "0")
                return
            except exceptions.ResponseError as error:
                if "BUSYGROUP" in str(error):  # is there already
                    return
                if "requires the key to exist" not in str(error):
                    raise
        self._life = secrets.token_hex(8).encode()
        self._stream = stream_of(self._keys, self._life)
        self._ask("XGROUP", "CREATE", self._stream, GROUP, "0", "MKSTREAM")
        self._ask("SET", self._keys.steps, self._life)
        self._done.clear()  # entries of the old life went with it
        self._after = b">"
        self._unwritten = dict(self._table)

    def _read(self, timeout: float) -> list[Any]:
        """Raw entries: first what was given to this consumer before, then new ones."""
        self._tell()
        assert self._pipe is not None
        fresh = self._after == b">"
        block = int(1000 * min(timeout, MOST_BLOCK, 0.5 * self._server.timeout))
        wait = ("BLOCK", block) if fresh and block else ()  # BLOCK 0 would be for ever
        count = max(1, min(MOST_ENTRIES, self._most_read // self._expected_bytes))
        words = ("GROUP", GROUP, CONSUMER, "COUNT", count, *wait, "STREAMS", self._stream, self._after)
        self._pipe.send([command("XREADGROUP", *words)], 1)
        reply = self._settle()
        if isinstance(reply, Exception):
            if not str(reply).startswith(("NOGROUP", "UNBLOCKED")):
                raise reply
            self._find_stream()  # it was deleted
            return []
        if not self._unwritten:
            self._backoff.reset()
            self.trouble = ""
        entries: list[Any] = reply[0][1] if reply else []
        if not fresh:
            self._after = entries[-1][0] if entries else b">"
        elif not entries and self._ask("GETRANGE", self._keys.steps, 0, MOST_LIFE) != self._life:
            self._find_stream()  # senders do not find it any more
        return entries

    def _decoded(self, entries: list[Any]) -> list[Received]:
        received = []
        largest = 0
        for entry, values in entries:
            if values is None:  # dropped by its sender after we were given it
                self._done.append(entry)
                continue
            nbytes = sum([len(value) for value in values])
            largest = max(largest, nbytes)
            self.received_bytes += nbytes
            try:
                if len(values) != 2 or values[0] != b"f":
                    raise FrameError(f"an entry has {len(values)} words where a frame has 2")
                head, heads, body = decode_frame(values[1], self._run_id, self._schema, self._most_frame)
            except FrameError as error:
                self.refused += 1
                self._refusals.append(f"entry {entry.decode('ascii', 'replace')}: {error}")
                self._done.append(entry)
                continue
            received.append(
                Received(entry, head.member, head.generation, head.sequence, head.item_index, heads, body, head.counts)
            )
        self.received_frames += len(received)
        # A large one counts at once, and is forgotten slowly.
        if entries:
            self._expected_bytes = max(largest, self._expected_bytes - self._expected_bytes // 8)
        return received

    def _note(self, committed: Mapping[tuple[str, int], int]) -> None:
        for (member, generation), sequence in committed.items():
            field = field_of(member, generation)
            if sequence > self._table.get(field, 0):
                self._table.pop(field, None)  # the one told last stands last
                self._table[field] = self._unwritten[field] = sequence
        while len(self._table) > MOST_MEMBERS:
            gone = next(iter(self._table))
            del self._table[gone]
            self._unwritten.pop(gone, None)
            self._forgotten.append(gone)

    def _tell(self) -> None:
        """Send acknowledgements; their replies are read together with the next reply that is waited for."""
        pipe = self._pipe
        assert pipe is not None
        if pipe.owed:
            self._settle()
        if self._done:
            done, entries = len(self._done), self._done
            pipe.send([command("XACK", self._stream, GROUP, *entries), command("XDEL", self._stream, *entries)], 2)
            self._told_done = done
        if self._unwritten:
            self._told = dict(self._unwritten)
            words = [word for pair in self._told.items() for word in pair]
            pipe.send([command("HSET", self._keys.committed, *words)], 1)
        if self._forgotten:
            pipe.send([command("HDEL", self._keys.committed, *self._forgotten)], 1)
            self._forgotten.clear()

    def _settle(self) -> Any:
        """Read all replies and return the last. What was told and answered need not be told again."""
        assert self._pipe is not None
        replies = self._pipe.drain()
        if self._told_done:
            del self._done[: self._told_done]  # refused only where the stream is gone
        if self._told:
            answer = replies[2 if self._told_done else 0]
            if isinstance(answer, Exception):  # a full server, say: told again with the next
                self.trouble = str(explain(answer, self._server.address))
            else:
                for field, sequence in self._told.items():
                    if self._unwritten.get(field) == sequence:
                        del self._unwritten[field]
        self._told_done, self._told = 0, {}
        return replies[-1] if replies else None

    def _ask(self, *words: Words) -> Any:
        assert self._pipe is not None
        self._pipe.send([command(*words)], 1)
        reply = self._settle()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _troubled(self, error: Exception) -> None:
        self.trouble = str(explain(error, self._server.address))
        self._not_before = time.monotonic() + self._backoff.next()
        self._disconnect()

    def _disconnect(self) -> None:
        self._told_done, self._told = 0, {}
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
