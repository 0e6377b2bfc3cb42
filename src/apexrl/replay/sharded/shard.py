"""A shard of a sharded replay, and its clients in the same process."""

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
"""How long a fifo shard may wait for the items of a draw: asking again and again costs more."""
_RATES = (1e6, 5e5)  # samples per insert, too high to limit sampling; switching between the two resets the limiter


class ShardStatus(NamedTuple):
    """The counters of a shard."""

    size: int  # items
    mass: float  # sum of their powered priorities: an item's share of it is its probability; fifo: items
    inserted: int  # items ever inserted
    generation: str  # id of this start of the shard: keys are valid in one generation only
    sampled: int  # items ever sampled
    moment: int  # ns by the node's clock: orders the answers of one generation


class DrawResult(NamedTuple):
    """A shard's answer to a draw: items, if there were any, and its status after that."""

    data: dict[str, Array]  # as in `Batch`; empty when nothing was drawn
    keys: NDArray[np.uint64]  # [n], valid in the shard's generation
    probabilities: NDArray[np.float64]  # [n], P(i) within this shard when it was drawn
    status: ShardStatus


class UpdateResult(NamedTuple):
    """A shard's answer to new priorities."""

    updated: Updated
    status: ShardStatus


class Answer(Protocol):
    """The answer of a call to a shard, which may still be under way."""

    def ready(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds. True: the answer has arrived."""

    def take(self) -> Any:
        """The answer. ClosedError: the shard was lost."""


class ShardClient(Protocol):
    """A sampler's client of one shard, in any process. Calls return at once; ``ShardedReplay`` bounds how many wait."""

    def draw(self, count: int, until: int | None) -> Answer: ...  # of a DrawResult

    # of an UpdateResult
    def update(self, generation: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> Answer: ...


class Shard:
    """Answers draws and updates on a replay that this process owns, for one ``ShardedReplay``.

    Args:
        replay: without a limiter of its own, which would count only this shard's items.
        patience: (fifo) seconds to wait when there are fewer items than a draw asks for.
        generation: given if another process answered for the same memory before.
    """

    def __init__(self, replay: Replay, patience: float = 0.0, generation: str = "") -> None:
        if replay.core.options["samples_per_insert"]:
            raise ConfigError(
                "a shard cannot have a limiter of its own: give samples_per_insert= to ShardedReplay instead"
            )
        self.replay = replay
        self._fifo = replay.core.fifo
        self.patience = patience if self._fifo else 0.0
        self.generation = generation or uuid.uuid4().hex
        self._rate = int(replay.core.native.counters()["samples_per_insert"] == _RATES[1])
        self._until = -1
        replay.core.own()

    def draw(self, count: int, until: int | None = None) -> DrawResult:
        """Draw ``count`` items, or none if there are too few (fifo: what there is). 0: only the status.

        Args:
            until: as in ``admit``.
        """
        self.admit(until)
        return self.draw_all(count, self.patience) or self.draw_available(count)

    def admit(self, until: int | None) -> None:
        """Let writers insert until ``until`` items were ever inserted; then they wait. The limit never falls. None: no
        change."""
        replay = self.replay
        if until is not None and until > self._until:
            self._until = until
            self._rate = 1 - self._rate
            room = max(0, until - int(replay.core.native.counters()["inserted"]))
            rate = _RATES[self._rate]
            replay.set_limiter(min_size=min(1, replay.capacity), samples_per_insert=rate, insert_band=room)

    def draw_all(self, count: int, timeout: float) -> DrawResult | None:
        """``count`` items, or None if there are fewer within ``timeout`` seconds."""
        if not count:
            return self._drawn(None)
        batch = self._sample(self._most(count), timeout)
        return None if batch is None else self._drawn(batch)

    def draw_available(self, count: int) -> DrawResult:
        """(fifo) The items that there are, at most ``count``; otherwise none."""
        return self._drawn(self._sample(min(self._most(count), len(self.replay)), 0.0) if self._fifo else None)

    def release(self) -> None:
        """Stop owning the replay, so that another process of this host can."""
        self.replay.release()

    def _most(self, count: int) -> int:
        """(fifo) It may hold a chunk more than its capacity, but draws at most its capacity."""
        return min(count, self.replay.capacity) if self._fifo else count

    def _drawn(self, batch: Batch | None) -> DrawResult:
        if batch is None:
            return DrawResult({}, np.empty(0, np.uint64), np.empty(0, np.float64), self._status())
        return DrawResult(batch.data, batch.keys, batch.probabilities, self._status())

    def _sample(self, count: int, timeout: float) -> Batch | None:
        """None: there are fewer, or ``count`` is 0."""
        try:
            return self.replay.sample(count, beta=0.0, normalize="none", timeout=timeout) if count else None
        except WaitTimeout:
            return None

    def update(self, generation: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> UpdateResult:
        """Write raw magnitudes |δ| for items that ``draw`` gave in the same ``generation``."""
        updated = Updated(0, len(keys))
        if generation == self.generation:
            updated = self.replay.update_priorities(np.ascontiguousarray(keys), priorities)
        return UpdateResult(updated, self._status())

    def _status(self) -> ShardStatus:
        size, counters = len(self.replay), self.replay.core.native.counters()
        moment = time.monotonic_ns()
        return ShardStatus(size, counters["mass"], counters["inserted"], self.generation, counters["sampled"], moment)


class LazyDraw:
    """A draw from a shard in the same process, made when the answer is first read.

    So a batch that was asked for ahead is as new as any, and the reader decides how long to wait for a fifo shard.
    """

    def __init__(self, shard: Shard, count: int) -> None:
        self._shard = shard
        self._count = count
        self._late = math.inf  # monotonic time after which fewer items will do
        self._answer: DrawResult | None = None
        self._lost = ""  # why there is no answer; an exception's traceback would keep the memory

    def ready(self, timeout: float) -> bool:
        if self._answer is None and not self._lost:
            now = time.monotonic()
            self._late = min(self._late, now + self._shard.patience)
            try:
                if self._shard.replay.core.closed:
                    raise ClosedError("this shard was lost")
                self._answer = self._shard.draw_all(self._count, min(timeout, max(0.0, self._late - now)))
                if self._answer is None and time.monotonic() >= self._late:
                    self._answer = self._shard.draw_available(self._count)
            except ClosedError as error:
                self._lost = str(error)
        return self._answer is not None or bool(self._lost)

    def take(self) -> DrawResult:
        while not self.ready(QUEUE_SECONDS):
            pass
        if self._answer is None:
            raise ClosedError(self._lost)
        return self._answer


class ReadyAnswer:
    """An answer that has arrived."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def ready(self, timeout: float) -> bool:
        return True

    def take(self) -> Any:
        return self._value
