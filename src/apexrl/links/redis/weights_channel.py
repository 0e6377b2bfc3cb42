"""Weights over a Redis server: the newest version in parts, with a notification.

``keys.weights`` is the head: the version and its number of parts. Parts are stored before the head, so a reader of the
head can read everything. The notification only saves waiting; a lost one costs one poll.

For any number of hosts, the server holds at most three versions (the newest, an older one still being read, and one
being uploaded), and `READERS` times `AHEAD` pieces of `PIECE_BYTES` in output buffers: hosts read in turns
(`links.redis.read_turns`), and request another piece when one has arrived.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from redis import exceptions

from apexrl.errors import FrameError
from apexrl.links.backoff import Backoff
from apexrl.links.redis.encoding import Count, Text, decode_weights, encode_weights, packing
from apexrl.links.redis.fences import SHOW, outdated
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.pipe import Pipe, Words, command
from apexrl.links.redis.read_turns import BEING_READ, DROP, ENTER, LEAVE_TURN, READERS, STAY, TURN_SECONDS
from apexrl.links.redis.server import TROUBLE, Server, explain
from apexrl.protocols import Arrays
from apexrl.spec import Array

PART_BYTES: Final = 2**20 - 2**10
"""Of one part, where the server takes that much. A little more than a power of two would take a quarter more memory
there; and while a part comes in, the server holds it in a buffer of its own."""
PIECE_BYTES: Final = 128 * 2**10
AHEAD: Final = 8
"""Pieces that a reader requests before the first has arrived: over a link of 20 ms each way 10 MB take a third of the
time that they take with two, and the weights of a small network one journey less."""
POLL_SECONDS: Final = 2.0
"""Average time between reads of the head without a notification."""
WAITING_POLL_SECONDS: Final = 10.0
"""The same for a reader that waits for its turn, which is notified."""
PATIENCE_SECONDS: Final = 10.0
"""How long publishing waits while two older versions are being read; then readers of the later one must restart."""
ORPHAN_SECONDS: Final = 600
"""Lifetime of parts whose publisher dies before it writes the head."""
MOST_BYTES: Final = 2**32 - 1
"""Of one version."""
_MOST_HEAD: Final = 1024
_SLICE: Final = 0.5


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    run_id: Text
    version: Count
    parts: Annotated[int, Meta(ge=1, le=2**16)]
    part_bytes: Annotated[int, Meta(ge=1, le=512 * 2**20)]  # of each but the last
    nbytes: Annotated[int, Meta(ge=1, le=MOST_BYTES + 2**20)]
    before: Annotated[list[tuple[Count, Annotated[int, Meta(ge=0, le=2**16)]]], Meta(max_length=4)]
    """(version, parts) of older versions that are still stored."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Head)


def _read_head(value: bytes) -> _Head | None:
    """The decoded head; None: there is none.

    Raises:
        FrameError: the value is not a head.
    """
    if not value:
        return None
    try:
        head = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"the head of the weights cannot be read: {error}") from None
    if not (head.parts - 1) * head.part_bytes < head.nbytes <= head.parts * head.part_bytes:
        raise FrameError(f"the head of the weights claims {head.nbytes} bytes in {head.parts} parts")
    return head


def _raise_refusals(pipe: Pipe) -> None:
    for reply in pipe.drain():
        if isinstance(reply, Exception):
            raise reply


class WeightsUploader:
    """Publishes a run's weights. For one thread.

    Args:
        run_id: weights of other runs under these keys are replaced.
        fence: the ``taken`` of the `LearnerLease` that this works for; 0: no fence.
        compression: ``none`` or ``zlib``.
        rounded: whether large matrices travel as bfloat16.
    """

    def __init__(
        self,
        server: Server,
        keys: RunKeys,
        *,
        run_id: str,
        fence: int = 0,
        compression: str = "none",
        rounded: bool = False,
    ) -> None:
        self._server, self._keys, self._run_id, self._fence = server, keys, run_id, fence
        self._packed, self._rounded = packing(compression), rounded
        self._pipe: Pipe | None = None
        self._unshown: list[str] = []  # parts on the server without a head
        self._held_since: float | None = None  # monotonic seconds

    def publish(self, weights: Arrays, version: int) -> bool:
        """Publish ``version``. The previous one stays while it is being read.

        Returns:
            False: two older versions are still being read. Try again soon, with the newest weights.

        Raises:
            LinkError: the server cannot take it now; try again with the newest weights.
            OwnershipError: a newer learner has the run.
            FrameError: an array is not of plain numbers, or the weights have more than 4 GiB.
        """
        return bool(self._guarded(lambda pipe: self._publish(pipe, weights, version)))

    def published(self) -> int:
        """The version that the server has of this run; 0: none, perhaps because it lost it. Also deletes older versions
        that are not being read any more.

        Raises:
            LinkError: the server cannot be reached now.
            OwnershipError: a newer learner has the run.
        """

        def look(pipe: Pipe) -> int:
            head = self._head(pipe)
            self._tidy(pipe, head)
            return head.version if head is not None and head.run_id == self._run_id else 0

        return int(self._guarded(look))

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _publish(self, pipe: Pipe, weights: Arrays, version: int) -> bool:
        keys, old = self._keys, self._head(pipe)
        before = self._tidy(pipe, old, version)
        if before is None:
            return False
        blob = memoryview(encode_weights(self._run_id, version, weights, self._packed, self._rounded))
        if len(blob) > MOST_BYTES:
            raise FrameError(f"weights of {len(blob)} bytes are more than {MOST_BYTES} and do not travel")
        part_bytes = min(PART_BYTES, pipe.facts.most_bulk)
        parts = -(-len(blob) // part_bytes)
        head = _Head(self._run_id, version, parts, part_bytes, len(blob), before)
        new = [keys.weights_part(version, part) for part in range(parts)]
        if old is None or old.version != version:
            self._unshown = new
        for part, key in enumerate(new):
            data = blob[part * part_bytes : (part + 1) * part_bytes]
            setting = command("SETEX", key, ORPHAN_SECONDS, more=1)
            pipe.send([b"%b$%d\r\n" % (setting, len(data)), bytes(data), b"\r\n"], 1)
        _raise_refusals(pipe)
        arguments = self._fence, _encoder.encode(head), keys.doorbell, version
        if not pipe.ask("EVAL", SHOW, 2 + parts, keys.state, keys.weights, *new, *arguments):
            raise outdated(self._server, keys)
        self._unshown = []
        return True

    def _tidy(self, pipe: Pipe, old: _Head | None, version: int | None = None) -> list[tuple[int, int]] | None:
        """Delete versions that are not being read. Answers those left besides ``version``; None: too many to
        publish."""
        keys = self._keys
        told = pipe.ask("EVAL", BEING_READ, 2, keys.state, keys.weights_readers, self._fence)
        if told is None:
            raise outdated(self._server, keys)
        read = {int(one) for one in told}
        older = [one for one in old.before if one[0] != old.version] if old is not None else []
        kept = [one for one in older if one[0] in read and one[0] != version]
        now = time.monotonic()
        if len(kept) < 2:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now
        elif version is not None and now - self._held_since > PATIENCE_SECONDS:
            kept = kept[-1:]  # the earliest: it was read for the longest time
        gone = self._unshown + [
            keys.weights_part(one, part)
            for one, parts in older
            if (one, parts) not in kept and one != version
            for part in range(parts)
        ]
        if gone:
            if not pipe.ask("EVAL", DROP, 1 + len(gone), keys.state, *gone, self._fence):
                raise outdated(self._server, keys)
            self._unshown = []
        if len(kept) > 1:
            return None
        return kept if old is None or old.version == version else [(old.version, old.parts), *kept]

    def _head(self, pipe: Pipe) -> _Head | None:
        try:
            return _read_head(pipe.ask("GETRANGE", self._keys.weights, 0, _MOST_HEAD - 1))
        except FrameError:
            return None  # to be replaced

    def _guarded(self, act: Callable[[Pipe], Any]) -> Any:
        try:
            if self._pipe is None:
                self._pipe = Pipe(self._server, self._keys)
            return act(self._pipe)
        except (*TROUBLE, exceptions.ResponseError) as error:
            self._abandon(error)
            raise explain(error, self._server.address) from None

    def _abandon(self, error: Exception) -> None:
        """Close the connection; on a full server, first delete parts without a head."""
        with suppress(*TROUBLE, exceptions.ResponseError):
            if self._unshown and self._pipe is not None and isinstance(error, exceptions.OutOfMemoryError):
                self._pipe.ask("EVAL", DROP, 1 + len(self._unshown), self._keys.state, *self._unshown, self._fence)
                self._unshown = []
        self.close()


class WeightsDownloader:
    """Pulls the newest weights of a run, for all actors of a host. For one thread.

    Args:
        most_bytes: larger weights are refused before they are fetched.
    """

    def __init__(self, server: Server, keys: RunKeys, *, run_id: str, most_bytes: int = MOST_BYTES) -> None:
        self._server, self._keys, self._run_id, self._most_bytes = server, keys, run_id, most_bytes
        self._pipe: Pipe | None = None
        self._bell: Pipe | None = None
        self._backoff = Backoff()
        self._not_before = 0.0
        self._next_poll = 0.0
        self._token = uuid.uuid4().hex
        self._has_turn = self._waits = False
        self._overtaken = 0  # a version of a learner whose successor published an earlier one since
        self.trouble = ""
        """Why there are none; empty: no problem."""
        self.transfers = 0
        self.refused = 0
        """Number of refused weights: damaged, hostile, or of another run."""
        self.reconnects = -1

    @property
    def connected(self) -> bool:
        return self._bell is not None

    def wait(self, newer_than: int, timeout: float) -> tuple[int, dict[str, Array]] | None:
        """The newest (version, weights) after ``newer_than``. None: none within ``timeout`` seconds. An earlier version
        is newer where a learner has gone on from a checkpoint of another.

        Failures of the connection are retried; ``trouble`` describes them.
        """
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            try:
                if now < self._not_before:
                    time.sleep(max(0.0, min(self._not_before, deadline) - now))
                elif self._rung(min(deadline - now, self._next_poll - now, _SLICE)) or now >= self._next_poll:
                    got = self._fetch(newer_than)
                    self._next_poll = _after(WAITING_POLL_SECONDS if self._waits else POLL_SECONDS)
                    if got is not None:
                        return got
            except FrameError as error:
                self.refused += 1
                self.trouble = str(error)
                self._next_poll = _after(POLL_SECONDS)  # or with the next ring
            except (*TROUBLE, exceptions.ResponseError) as error:
                self.trouble = str(explain(error, self._server.address))
                self._not_before = time.monotonic() + self._backoff.next()
                self.close()
            if time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        for pipe in (self._pipe, self._bell):
            if pipe is not None:
                pipe.close()
        self._pipe = self._bell = None

    def _rung(self, timeout: float) -> bool:
        """Whether there was a notification, or the connection is new."""
        if self._bell is None or self._pipe is None:
            self._pipe = Pipe(self._server, self._keys, read_bytes=2**20)
            self._bell = Pipe(self._server, self._keys)
            self._bell.send([command("SUBSCRIBE", self._keys.doorbell, self._own_bell)], 2)
            _raise_refusals(self._bell)
            self.reconnects += 1
            self._waits = False
            return True
        rung = heard = False
        while self._bell.arrived(max(0.0, 0.0 if heard else timeout)):
            heard = True
            self._bell.owed += 1
            (ring,) = self._bell.drain()
            own = isinstance(ring, list) and len(ring) == 3 and ring[1] == self._own_bell.encode()
            rung |= own or not self._waits  # who waits need not look again when there is something newer still
        return rung

    def _fetch(self, newer_than: int) -> tuple[int, dict[str, Array]] | None:
        """The newest weights, if it is this reader's turn."""
        pipe = self._pipe
        assert pipe is not None
        for _ in range(3):  # an older one may be deleted while it is being read, after `PATIENCE_SECONDS`
            if newer_than == self._overtaken:
                newer_than = 0
            told, turn = pipe.ask(*self._turn(ENTER, newer_than))
            self._has_turn, self._waits = turn == b"read", turn == b"wait"
            try:
                head = _read_head(told)
                if head is not None and head.version < newer_than and head.run_id == self._run_id:
                    self._overtaken = newer_than
                    continue
                if head is not None and head.run_id != self._run_id:
                    raise FrameError(f"the weights on the server belong to another run ({head.run_id})")
                self._backoff.reset()
                self.trouble = ""
                if head is None or head.version <= newer_than or not self._has_turn:
                    return None
                if head.nbytes > self._most_bytes:
                    raise FrameError(f"the weights claim {head.nbytes} bytes; at most {self._most_bytes} are taken")
                blob = self._parts(pipe, head)
            finally:
                if self._has_turn:
                    self._leave_turn(pipe)
            if blob is not None:
                version, weights = decode_weights(blob, self._run_id, self._most_bytes)
                if version != head.version:
                    raise FrameError(f"the weights are version {version}, and their head says {head.version}")
                return version, weights
        return None

    def _parts(self, pipe: Pipe, head: _Head) -> bytearray | None:
        """All parts in one buffer. None: one was deleted, or the turn ended."""
        pieces = list(_pieces(head))
        asked: deque[int] = deque()  # replies that are to come: bytes of a piece at most, or 0 of a word about the turn
        blob = bytearray(head.nbytes)
        begin, missing, refusal = 0, False, None
        stay_at = time.monotonic() + TURN_SECONDS / 4
        sent = 0
        while asked or (sent < len(pieces) and not missing and refusal is None):
            while sent < len(pieces) and sum(map(bool, asked)) < AHEAD and not missing and refusal is None:
                part, first, last = pieces[sent]
                words = [command("GETRANGE", self._keys.weights_part(head.version, part), first, last)]
                asked.append(last - first + 1)
                sent += 1
                if time.monotonic() >= stay_at:
                    words.append(command(*self._turn(STAY, head.version)))
                    asked.append(0)
                    stay_at = time.monotonic() + TURN_SECONDS / 4
                pipe.send(words, len(words))
            data, most = pipe.read(), asked.popleft()
            if isinstance(data, Exception):
                refusal = data
            elif not most:
                missing |= data != 1
            else:
                missing |= not data
                if begin + len(data) <= head.nbytes:
                    blob[begin : begin + len(data)] = data
                begin += len(data)
        if refusal is not None:
            raise refusal
        self.transfers += 1
        if missing:
            return None
        if begin != head.nbytes:
            raise FrameError(f"the weights have {begin} bytes where their head says {head.nbytes}")
        return blob

    @property
    def _own_bell(self) -> str:
        return f"{self._keys.doorbell}:{self._token}"

    def _turn(self, script: str, *more: int) -> tuple[Words, ...]:
        keys = self._keys
        touched = keys.weights_readers, keys.weights_waiting
        return "EVAL", script, 2, *touched, self._token, 1000 * TURN_SECONDS, READERS, f"{keys.doorbell}:", *more

    def _leave_turn(self, pipe: Pipe) -> None:
        self._has_turn = False
        with suppress(*TROUBLE):  # the turn then expires
            pipe.send([command(*self._turn(LEAVE_TURN))], 1)


def _pieces(head: _Head) -> Iterator[tuple[int, int, int]]:
    """(part, first byte, last byte) of every read, in order, with one byte more than each part should have."""
    for part in range(head.parts):
        nbytes = min(head.part_bytes, head.nbytes - part * head.part_bytes)
        for first in range(0, nbytes, PIECE_BYTES):
            end = first + PIECE_BYTES
            yield part, first, end - 1 if end < nbytes else nbytes


def _after(seconds: float) -> float:
    """Monotonic time in about ``seconds``, with jitter so that hosts do not poll together."""
    return time.monotonic() + seconds * random.uniform(0.75, 1.25)
