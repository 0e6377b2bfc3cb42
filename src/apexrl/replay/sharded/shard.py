"""One shard of a replay that is spread over several processes: what a sampler asks of it (``sharded_replay``)."""

from __future__ import annotations

import math
import time
import uuid
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ClosedError, ConfigError, WaitTimeout
from apexrl.replay.batch import Batch, Updated
from apexrl.replay.replay import Replay
from apexrl.spec import Array

QUEUE_SECONDS = 0.2
"""That a queue may take to hold what it is asked for: to ask it again and again costs more."""
_RATES = (1e6, 5e5)  # samples per insert so high that samples count for nothing; a change begins the count anew


class Standing(NamedTuple):
    """How a shard stands."""

    size: int  # items
    mass: float  # sum of their powered priorities: an item's share of it is its probability; fifo: items
    inserted: int  # items ever
    life: str  # of the shard: keys mean nothing in another one
    sampled: int  # items that it ever gave
    moment: int  # of the answer, by the node's clock: of two, the later is the newer


class Drawn(NamedTuple):
    """A shard's answer to a draw: items, if there were any, and how it stands after that."""

    data: dict[str, Array]  # as of `Batch`; empty when nothing was drawn
    keys: NDArray[np.uint64]  # [n], of this shard's life
    probabilities: NDArray[np.float64]  # [n], P(i) within this shard at the draw
    standing: Standing


class Written(NamedTuple):
    """A shard's answer to new priorities."""

    updated: Updated
    standing: Standing


class Answer(Protocol):
    """What will come of a call to a shard."""

    def ready(self, timeout: float) -> bool:
        """Whether it has come, at the latest ``timeout`` seconds from now."""
        ...

    def take(self) -> Any:
        """It. ClosedError: the shard was lost."""
        ...


class ShardEnd(Protocol):
    """A shard as its sampler sees it, wherever it is. Calls return at once; ``sharded_replay`` bounds how many wait."""

    def draw(self, count: int, until: int | None) -> Answer: ...  # of Drawn
    def update(self, life: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> Answer: ...  # of Written


class Shard:
    """Answers for a replay that this process owns, for one sampler of several shards.

    Args:
        replay: with no limiter of its own, which would see only its part.
        patience: (fifo) seconds that items may take to be there, where fewer are than a draw asks for.
        life: of the same memory, where another process answered for it before.
    """

    def __init__(self, replay: Replay, patience: float = 0.0, life: str = "") -> None:
        if replay._options["samples_per_insert"]:
            raise ConfigError(
                "a shard has no limiter of its own: leave samples_per_insert= to the sampler of all shards"
            )
        self.replay = replay
        self._fifo = replay._options["sampler"] == "fifo"
        self.patience = patience if self._fifo else 0.0
        self.life = life or uuid.uuid4().hex
        self._turn = int(replay._native.counters()["samples_per_insert"] == _RATES[1])
        self._until = -1
        replay._own()

    def draw(self, count: int, until: int | None = None) -> Drawn:
        """``count`` items if there are any (fifo: as many as there are, at most ``count``); 0: only how things stand.

        Args:
            until: as of ``admit``.
        """
        self.admit(until)
        return self.whole(count, self.patience) or self.rest(count)

    def admit(self, until: int | None) -> None:
        """Items up to the ``until``-th ever may be inserted, unless a later call says more; then writers wait. None:
        what was said before holds."""
        replay = self.replay
        if until is not None and until > self._until:
            self._until = until
            self._turn = 1 - self._turn
            room = max(0, until - int(replay._native.counters()["inserted"]))
            rate = _RATES[self._turn]
            replay.set_limiter(min_size=min(1, replay.capacity), samples_per_insert=rate, insert_band=room)

    def whole(self, count: int, timeout: float) -> Drawn | None:
        """``count`` items, or None if they are not there within ``timeout`` seconds."""
        if not count:
            return self._drawn(None)
        batch = self._sample(self._most(count), timeout)
        return None if batch is None else self._drawn(batch)

    def rest(self, count: int) -> Drawn:
        """What there is of ``count`` items that are not all there."""
        return self._drawn(self._sample(min(self._most(count), len(self.replay)), 0.0) if self._fifo else None)

    def release(self) -> None:
        """Let another process of this host sample the replay in its place."""
        self.replay.release()

    def _most(self, count: int) -> int:
        """(fifo) It may hold a chunk more than its capacity, but gives no more."""
        return min(count, self.replay.capacity) if self._fifo else count

    def _drawn(self, batch: Batch | None) -> Drawn:
        if batch is None:
            return Drawn({}, np.empty(0, np.uint64), np.empty(0, np.float64), self._standing())
        return Drawn(batch.data, batch.keys, batch.probabilities, self._standing())

    def _sample(self, count: int, timeout: float) -> Batch | None:
        """None: there are not so many, or nobody wants any."""
        try:
            return self.replay.sample(count, beta=0.0, normalize="none", timeout=timeout) if count else None
        except WaitTimeout:
            return None

    def update(self, life: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> Written:
        """Write raw magnitudes |δ| for items that ``draw`` gave in the same ``life``."""
        updated = Updated(0, len(keys))
        if life == self.life:
            updated = self.replay.update_priorities(np.ascontiguousarray(keys), priorities)
        return Written(updated, self._standing())

    def _standing(self) -> Standing:
        size, counters = len(self.replay), self.replay._native.counters()
        moment = time.monotonic_ns()
        return Standing(size, counters["mass"], counters["inserted"], self.life, counters["sampled"], moment)


class Here:
    """The end of a shard in this very process (``ShardEnd``)."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def draw(self, count: int, until: int | None) -> Answer:
        return Given(self._shard.draw(count, until))

    def update(self, life: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> Answer:
        return Given(self._shard.update(life, keys, priorities))


class Soon:
    """Items of a shard in this process, drawn when they are looked for: who asks ahead finds no older ones than who
    asks late, and waits for a queue no longer than it wants to."""

    def __init__(self, shard: Shard, count: int) -> None:
        self._shard = shard
        self._count = count
        self._late = math.inf  # monotonic seconds, after which what there is will do
        self._answer: Drawn | None = None
        self._lost = ""  # why it never comes; an error would hold the memory by its traceback

    def ready(self, timeout: float) -> bool:
        if self._answer is None and not self._lost:
            now = time.monotonic()
            self._late = min(self._late, now + self._shard.patience)
            try:
                if self._shard.replay._closed:
                    raise ClosedError("this shard was lost")
                self._answer = self._shard.whole(self._count, min(timeout, max(0.0, self._late - now)))
                if self._answer is None and time.monotonic() >= self._late:
                    self._answer = self._shard.rest(self._count)
            except ClosedError as error:
                self._lost = str(error)
        return self._answer is not None or bool(self._lost)

    def take(self) -> Drawn:
        while not self.ready(QUEUE_SECONDS):
            pass
        if self._answer is None:
            raise ClosedError(self._lost)
        return self._answer


class Given:
    """An answer that is there."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def ready(self, timeout: float) -> bool:
        return True

    def take(self) -> Any:
        return self._value
