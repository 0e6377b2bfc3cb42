"""Weights through a server: the newest version alone, in parts, with a doorbell.

``keys.weights`` is the head: which version, in how many parts. The parts are there before the head is, so whoever comes
late reads the head and has everything; the doorbell only saves waiting, and a lost ring costs one poll.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from redis import exceptions

from apexrl.errors import FrameError
from apexrl.links.backoff import Backoff
from apexrl.links.redis.fences import CURRENT, SHOW, outdated
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.pipe import Pipe, command
from apexrl.links.redis.server import TROUBLE, Server, explain
from apexrl.links.redis.wire import Count, Text, decode_weights, encode_weights, packing
from apexrl.protocols import Arrays
from apexrl.spec import Array

PART_BYTES: Final = 8 * 2**20
"""Of one part, where the server takes that much."""
POLL_SECONDS: Final = 2.0
"""Between two looks at the head when no bell rings."""
ORPHAN_SECONDS: Final = 600
"""That parts live whose publisher dies before it writes the head."""
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
    """(version, parts) of what is still there of older ones."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Head)


def _read_head(value: bytes) -> _Head | None:
    """The head on the server; None when there is none.

    Raises:
        FrameError: it is no head.
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
        run_id: other runs' weights under these keys are replaced.
        fence: the ``taken`` of the `LearnerPlace` that this works for; 0: whoever's the run is.
        compression: ``none`` or ``zlib``.
    """

    def __init__(
        self, server: Server, keys: RunKeys, *, run_id: str, fence: int = 0, compression: str = "none"
    ) -> None:
        self._server, self._keys, self._run_id, self._fence = server, keys, run_id, fence
        self._packed = packing(compression)
        self._pipe: Pipe | None = None

    def publish(self, weights: Arrays, version: int) -> None:
        """Make ``version`` the newest; the one before stays for those who are reading it.

        Raises:
            LinkError: the server cannot take it now; try again, with the newest.
            OwnershipError: a newer learner has the run; its weights stand.
            FrameError: an array is not of plain numbers.
        """
        blob = encode_weights(self._run_id, version, weights, self._packed)
        self._guarded(lambda pipe: self._publish(pipe, memoryview(blob), version))

    def published(self) -> int:
        """The version that the server has of this run; 0 when it has none (it may have lost it: publish again).

        Raises:
            LinkError: the server cannot be asked now.
        """
        head = self._guarded(self._head)
        return head.version if head is not None and head.run_id == self._run_id else 0

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _publish(self, pipe: Pipe, blob: memoryview, version: int) -> None:
        keys = self._keys
        if not pipe.ask("EVAL", CURRENT, 1, keys.state, self._fence):
            raise outdated(self._server, keys)
        part_bytes = min(PART_BYTES, pipe.facts.most_bulk)
        parts = -(-len(blob) // part_bytes)
        old = self._head(pipe)
        before, stale = [], []
        if old is not None and old.version == version:  # published again
            before = old.before
        elif old is not None:
            before = [(old.version, old.parts)]
            stale = [one for one in old.before if one[0] not in (version, old.version)]
        head = _Head(self._run_id, version, parts, part_bytes, len(blob), before)
        for part in range(parts):
            data = blob[part * part_bytes : (part + 1) * part_bytes]
            setting = command("SETEX", keys.weights_part(version, part), ORPHAN_SECONDS, more=1)
            pipe.send([b"%b$%d\r\n" % (setting, len(data)), bytes(data), b"\r\n"], 1)
        _raise_refusals(pipe)
        new = [keys.weights_part(version, part) for part in range(parts)]
        gone = [keys.weights_part(one, part) for one, parts_ in stale for part in range(parts_)]
        touched = keys.state, keys.weights, *new, *gone
        arguments = self._fence, _encoder.encode(head), keys.doorbell, version, parts
        if not pipe.ask("EVAL", SHOW, len(touched), *touched, *arguments):
            raise outdated(self._server, keys)

    def _head(self, pipe: Pipe) -> _Head | None:
        try:
            return _read_head(pipe.ask("GETRANGE", self._keys.weights, 0, _MOST_HEAD - 1))
        except FrameError:
            return None  # to be replaced

    def _guarded(self, act: Callable[[Pipe], Any]) -> Any:
        try:
            if self._pipe is None:
                self._pipe = Pipe(self._server)
            return act(self._pipe)
        except (*TROUBLE, exceptions.ResponseError) as error:
            self.close()
            raise explain(error, self._server.address) from None


class WeightsDownloader:
    """Pulls the newest weights of a run, for all actors of a host. For one thread.

    Args:
        most_bytes: more than that is refused, before it is fetched.
    """

    def __init__(self, server: Server, keys: RunKeys, *, run_id: str, most_bytes: int = MOST_BYTES) -> None:
        self._server, self._keys, self._run_id, self._most_bytes = server, keys, run_id, most_bytes
        self._pipe: Pipe | None = None
        self._bell: Pipe | None = None
        self._backoff = Backoff()
        self._not_before = 0.0
        self._next_poll = 0.0
        self.trouble = ""
        """Why none can be had, in words; empty when all is well."""
        self.transfers = 0
        self.refused = 0
        """Weights that were damaged, hostile, or of another run."""
        self.reconnects = -1

    @property
    def connected(self) -> bool:
        return self._bell is not None

    def wait(self, newer_than: int, timeout: float) -> tuple[int, dict[str, Array]] | None:
        """The newest (version, weights) after ``newer_than``, waiting up to ``timeout`` seconds; None: none came.

        Trouble with the server is waited out, and told by ``trouble``.
        """
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            try:
                if now < self._not_before:
                    time.sleep(max(0.0, min(self._not_before, deadline) - now))
                elif self._rung(min(deadline - now, self._next_poll - now, _SLICE)) or now >= self._next_poll:
                    got = self._fetch(newer_than)
                    self._next_poll = time.monotonic() + POLL_SECONDS
                    if got is not None:
                        return got
            except FrameError as error:
                self.refused += 1
                self.trouble = str(error)
                self._next_poll = time.monotonic() + POLL_SECONDS  # or with the next ring
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
        """Whether the bell rang; a connection that is new looks as well."""
        if self._bell is None or self._pipe is None:
            self._pipe = Pipe(self._server, read_bytes=2**20)
            self._bell = Pipe(self._server)
            self._bell.ask("SUBSCRIBE", self._keys.doorbell)
            self.reconnects += 1
            return True
        rung = False
        while self._bell.arrived(0.0 if rung else max(0.0, timeout)):
            self._bell.owed += 1  # what it says does not matter
            self._bell.drain()
            rung = True
        return rung

    def _fetch(self, newer_than: int) -> tuple[int, dict[str, Array]] | None:
        pipe = self._pipe
        assert pipe is not None
        for _ in range(3):  # a version may be deleted while it is being fetched, by two newer ones
            head = _read_head(pipe.ask("GETRANGE", self._keys.weights, 0, _MOST_HEAD - 1))
            if head is not None and head.run_id != self._run_id:
                raise FrameError(f"the weights on the server belong to another run ({head.run_id})")
            self._backoff.reset()
            self.trouble = ""
            if head is None or head.version <= newer_than:
                return None
            if head.nbytes > self._most_bytes:
                raise FrameError(f"the weights claim {head.nbytes} bytes; at most {self._most_bytes} are taken")
            blob = self._parts(pipe, head)
            if blob is not None:
                version, weights = decode_weights(blob, self._run_id, self._most_bytes)
                if version != head.version:
                    raise FrameError(f"the weights are version {version}, and their head says {head.version}")
                return version, weights
        return None

    def _parts(self, pipe: Pipe, head: _Head) -> bytearray | None:
        """All parts in one buffer, or None when one is not there any more.

        All are asked for at once, so the server has queued them before it hears of newer versions: a slow link is no
        reason to starve.
        """
        pieces = []
        for part in range(head.parts):
            key = self._keys.weights_part(head.version, part)
            pieces.append(command("GETRANGE", key, 0, head.part_bytes))  # a byte more than there should be
        pipe.send(pieces, head.parts)
        blob = bytearray(head.nbytes)
        begin, missing, refusal = 0, False, None
        for _ in range(head.parts):
            data = pipe.read()
            if isinstance(data, Exception):
                refusal = data
                continue
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
