"""Pulls weights from a Redis server, by turns with other hosts."""

from __future__ import annotations

import random
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from redis import exceptions

from apexrl.errors import FrameError
from apexrl.links.backoff import Backoff
from apexrl.links.redis.encoding import decode_weights
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.pipe import Pipe, Words, command
from apexrl.links.redis.read_turns import ENTER, LEAVE_TURN, READERS, STAY, TURN_SECONDS
from apexrl.links.redis.server import TROUBLE, Server, explain
from apexrl.links.redis.weights_head import MOST_BYTES, Head, raise_refusals, read_head
from apexrl.spec import Array

PIECE_BYTES: Final = 128 * 2**10
AHEAD: Final = 8
"""Pieces that a reader requests before the first has arrived: over a link of 20 ms each way 10 MB take a third of the
time that they take with two, and the weights of a small network one journey less."""
POLL_SECONDS: Final = 2.0
"""Average time between reads of the head without a notification."""
WAITING_POLL_SECONDS: Final = 10.0
"""The same for a reader that waits for its turn, which is notified."""
_SLICE: Final = 0.5


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
            raise_refusals(self._bell)
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
                head = read_head(told)
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

    def _parts(self, pipe: Pipe, head: Head) -> bytearray | None:
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


def _pieces(head: Head) -> Iterator[tuple[int, int, int]]:
    """(part, first byte, last byte) of every read, in order, with one byte more than each part should have."""
    for part in range(head.parts):
        nbytes = min(head.part_bytes, head.nbytes - part * head.part_bytes)
        for first in range(0, nbytes, PIECE_BYTES):
            end = first + PIECE_BYTES
            yield part, first, end - 1 if end < nbytes else nbytes


def _after(seconds: float) -> float:
    """Monotonic time in about ``seconds``, with jitter so that hosts do not poll together."""
    return time.monotonic() + seconds * random.uniform(0.75, 1.25)
