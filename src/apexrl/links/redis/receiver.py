"""The receiver of the experience stream (`experience_stream` describes the protocol)."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis import exceptions

from apexrl._native import ChunkHeads
from apexrl.errors import FrameError, LinkError, OwnershipError
from apexrl.links.backoff import Backoff
from apexrl.links.redis.encoding import decode_frame
from apexrl.links.redis.fences import ADOPT, TELL, outdated
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.pipe import Pipe, Words, command
from apexrl.links.redis.server import TROUBLE, Server, explain
from apexrl.links.redis.stream_names import CONSUMER, GROUP, LAST_OF_GENERATION, field_of, sequence_of, stream_of

MOST_BLOCK = 1.0
"""Seconds that a read blocks on the server; less than every reply timeout."""
MOST_ENTRIES = 256
"""Entries to request at a time."""
FIRST_ENTRIES = 4
"""Entries to request before their size is known."""
MOST_TOLD = 1000
"""Entries acknowledged at a time."""
MOST_MEMBERS = 4096
"""Generations of members in ``committed``; beyond that, those idle for longest are forgotten."""


class Received(NamedTuple):
    """A frame that has arrived."""

    entry: bytes  # its id on the server
    member: str
    generation: int
    sequence: int  # of the first chunk
    item_index: int  # items in all chunks of this member and generation before the first
    heads: ChunkHeads
    body: memoryview  # of all chunks, one after the other
    counts: dict[str, int]


class ExperienceReceiver:
    """Receives the frames of every member at least once, each member's in order. For one thread; one per run.

    Frames that were not acknowledged come again: to a successor, or to itself after a reconnect.

    Every call may raise ``OwnershipError``: a newer learner has the run, and nothing was changed.

    Args:
        run_id, schema: frames with others are refused.
        fence: the ``taken`` of the `LearnerLease` that this works for; 0: no fence.
        most_bytes_per_read: approximate limit, estimated from the size of earlier entries. The size of an entry is
            known only when it was read: a hostile one may have the server's limit (``proto-max-bulk-len``, 512 MB),
            and is then refused.
    """

    def __init__(
        self,
        server: Server,
        keys: RunKeys,
        *,
        run_id: str,
        schema: bytes,
        fence: int = 0,
        most_bytes_per_read: int = 8 * 2**20,
    ) -> None:
        self._server, self._keys, self._run_id, self._schema = server, keys, run_id, schema
        self._fence, self._most_read = fence, most_bytes_per_read
        self._pipe: Pipe | None = None
        self._backoff = Backoff()
        self._not_before = 0.0
        self._stream_generation = self._stream = b""
        self._after = b"0"  # read our pending entries after this one; ">": new ones
        self._expected_bytes = max(
            1, most_bytes_per_read // FIRST_ENTRIES
        )  # of an entry, to decide how many to request
        self._done: list[bytes] = []  # entries to be acknowledged
        self._unwritten: dict[str, int] = {}  # of `committed`
        self._table: dict[str, int] = {}  # all of it
        self._forgotten: list[str] = []  # fields to be deleted
        self._told: _Told | None = None  # sent, and not answered yet
        self._server_id = ""
        self._refusals: deque[str] = deque(maxlen=32)
        self.most_entries = MOST_ENTRIES
        """The most entries to request at a time."""
        self.trouble = ""
        """Why nothing arrives; empty: no problem."""
        self.refused = 0
        """Entries that were not frames of this run."""

    def receive(self, timeout: float) -> list[Received]:
        """Frames that have arrived, after waiting up to ``timeout`` seconds for the first. Empty also on a failure."""
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

    def hold_back(self, full: bool) -> None:
        """``full``: the last frames could not be committed at once. Then request one entry at a time, because received
        frames cannot be dropped; otherwise request more with every call."""
        self.most_entries = 1 if full else min(2 * self.most_entries, MOST_ENTRIES)

    def acknowledge(self, done: Sequence[Received], committed: Mapping[tuple[str, int], int]) -> None:
        """Delete the entries of committed frames and tell their senders. Does not wait for the server's reply.

        If the server is away, this is done when it is back.

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

    @property
    def all_told(self) -> bool:
        """Whether the server has answered that it knows of everything that was passed to `acknowledge`."""
        return not self._unwritten

    def known(self) -> dict[tuple[str, int], int]:
        """The server's record of what was committed, as in `acknowledge`.

        Raises:
            LinkError: the server cannot be reached now; call again.
        """
        if self._pipe is None and time.monotonic() < self._not_before:
            raise LinkError(self.trouble)
        told: dict[tuple[str, int], int] = {}
        cursor = b""
        try:
            self._ready()
            while cursor != b"0" and len(told) <= MOST_MEMBERS:
                cursor, values = self._ask("HSCAN", self._keys.committed, cursor or 0, "COUNT", 1000)
                for field, value in zip(values[::2], values[1::2], strict=True):
                    member, _, generation = field.decode("utf-8", "replace").rpartition("/")
                    if 0 < len(member) <= 100 and generation.isdecimal() and len(generation) < 17:
                        told[member, int(generation)] = sequence_of(value)
        except (*TROUBLE, exceptions.ResponseError) as error:
            if "WRONGTYPE" in str(error):  # made again with the next that is told
                return {}
            raise self._troubled(error) from None
        fields = {field_of(*who): sequence for who, sequence in told.items()}
        self._table = {**{field: fields[field] for field in fields.keys() - self._table.keys()}, **self._table}
        self._prune()
        return told

    def depth(self) -> int:
        """Entries on the server that are not acknowledged; 0 if it cannot be reached."""
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
        """Disconnect, after acknowledgements have reached the server if it can be reached."""
        if self._pipe is not None:
            try:
                self._tell()
                self._settle()
            except (*TROUBLE, exceptions.ResponseError, OwnershipError):
                pass  # a successor receives it again and drops it
            self._disconnect()

    def _ready(self) -> bool:
        if self._pipe is not None:
            return True
        if time.monotonic() < self._not_before:
            return False
        self._pipe = Pipe(self._server, self._keys, read_bytes=2**20)
        server_id, self._server_id = self._server_id, self._pipe.facts.run_id
        if server_id != self._server_id:
            self._unwritten = dict(self._table)  # it may have forgotten even what it answered
        self._after = b"0"  # what the last connection was sent and nobody saw
        self._find_stream()
        return True

    def _find_stream(self) -> None:
        """Find the stream of the run, or create one."""
        keys, how = self._keys, b"moved"
        for _ in range(3):
            generation = self._present_generation()
            new = b"%d-%b" % (self._fence, secrets.token_hex(8).encode())
            streams = stream_of(keys, generation), stream_of(keys, new)
            how = self._ask("EVAL", ADOPT, 4, keys.state, keys.steps, *streams, self._fence, generation, new, GROUP)
            if how != b"moved":
                break
        if how == b"outdated":
            raise self._outdated()
        if how == b"moved":
            raise LinkError(f"the stream of run {keys.name} at {self._server.address} changes again and again")
        found = generation if how == b"adopted" else new
        if found != self._stream_generation:
            self._stream_generation, self._stream = found, stream_of(keys, found)
            self._done.clear()  # the old stream's entries are gone
            self._after = b"0" if how == b"adopted" else b">"
            self._unwritten = dict(self._table)

    def _present_generation(self) -> bytes:
        try:
            return bytes(self._ask("GETRANGE", self._keys.steps, 0, LAST_OF_GENERATION))
        except exceptions.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return b""  # to be healed

    def _read(self, timeout: float) -> list[Any]:
        """Raw entries: first what was given to this consumer before, then new ones."""
        self._tell()
        assert self._pipe is not None
        fresh = self._after == b">"
        block = int(1000 * min(timeout, MOST_BLOCK, 0.5 * self._server.timeout))
        wait = ("BLOCK", block) if fresh and block else ()  # BLOCK 0 would block forever
        count = max(1, min(self.most_entries, self._most_read // self._expected_bytes))
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
        elif not entries and self._present_generation() != self._stream_generation:
            self._find_stream()  # senders do not find it any more
        return entries

    def _decoded(self, entries: list[Any]) -> list[Received]:
        received = []
        largest = 0
        for entry, values in entries:
            if values is None:  # deleted by its sender after it was delivered here
                self._done.append(entry)
                continue
            largest = max(largest, sum([len(value) for value in values]))
            try:
                if len(values) != 2 or values[0] != b"f":
                    raise FrameError(f"an entry has {len(values)} words where a frame has 2")
                head, heads, body = decode_frame(values[1], self._run_id, self._schema)
            except FrameError as error:
                self.refused += 1
                self._refusals.append(f"entry {entry.decode('ascii', 'replace')}: {error}")
                self._done.append(entry)
                continue
            received.append(
                Received(entry, head.member, head.generation, head.sequence, head.item_index, heads, body, head.counts)
            )
        # A large one counts at once, and is forgotten slowly.
        if entries:
            self._expected_bytes = max(largest, self._expected_bytes - self._expected_bytes // 8)
        return received

    def _note(self, committed: Mapping[tuple[str, int], int]) -> None:
        for (member, generation), sequence in committed.items():
            field = field_of(member, generation)
            sequence = max(sequence, self._table.pop(field, 0))  # the one told last stands last
            # Told even when it is not news: who sends again has not heard of it.
            self._table[field] = self._unwritten[field] = sequence
        self._prune()

    def _prune(self) -> None:
        while len(self._table) > MOST_MEMBERS:
            gone = next(iter(self._table))
            del self._table[gone]
            self._unwritten.pop(gone, None)
            self._forgotten.append(gone)

    def _tell(self) -> None:
        """Send acknowledgements; their reply is read with the next reply."""
        pipe = self._pipe
        assert pipe is not None
        if pipe.owed:
            self._settle()
        if not (self._done or self._unwritten or self._forgotten):
            return
        keys, told = self._keys, _Told(self._done[:MOST_TOLD], dict(self._unwritten), list(self._forgotten))
        words = [word for pair in told.sequences.items() for word in pair]
        sizes = self._fence, self._stream_generation, GROUP, len(told.entries), len(words)
        lists = *told.entries, *words, *told.forgotten
        pipe.send([command("EVAL", TELL, 4, keys.state, keys.steps, self._stream, keys.committed, *sizes, *lists)], 1)
        self._told = told

    def _settle(self) -> Any:
        """Read all replies and return the last."""
        assert self._pipe is not None
        replies = self._pipe.drain()
        told, self._told = self._told, None
        if told is not None:
            self._answered(told, replies[0])
        return replies[-1] if replies else None

    def _answered(self, told: _Told, answer: Any) -> None:
        if isinstance(answer, Exception):  # told again with the next
            self.trouble = str(explain(answer, self._server.address))
        elif answer == b"outdated":
            raise self._outdated()
        elif answer == b"told":
            del self._done[: len(told.entries)], self._forgotten[: len(told.forgotten)]
            for field, sequence in told.sequences.items():
                if self._unwritten.get(field) == sequence:
                    del self._unwritten[field]
        # Else the stream has another generation, as the next look tells.

    def _ask(self, *words: Words) -> Any:
        assert self._pipe is not None
        self._pipe.send([command(*words)], 1)
        reply = self._settle()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _troubled(self, error: Exception) -> LinkError:
        told = explain(error, self._server.address)
        self.trouble = str(told)
        self._not_before = time.monotonic() + self._backoff.next()
        self._disconnect()
        return told

    def _outdated(self) -> OwnershipError:
        self._disconnect()
        return outdated(self._server, self._keys)

    def _disconnect(self) -> None:
        self._told = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


class _Told(NamedTuple):
    """Acknowledgements sent in one command."""

    entries: list[bytes]
    sequences: dict[str, int]
    forgotten: list[str]
