"""Serving sampled batches to several learners of this host: Gorila's global replay, data-parallel Ape-X."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from apexrl.errors import ClosedError, ConfigError, OwnershipError, PriorityError, WaitTimeout
from apexrl.replay.served.batch_client import EMPTY, FULL, LEARNER_LOCK, LOST, SERVER_LOCK, ServedBatches, ServedMemory
from apexrl.replay.served.batch_sources import source_of
from apexrl.shared.segment import process_name

if TYPE_CHECKING:
    from apexrl.replay.batch import ArraySet
    from apexrl.replay.replay import Normalize, Replay
    from apexrl.replay.sharded.batch_bundles import Loads
    from apexrl.replay.sharded.sharded_replay import ShardedReplay

_LOOK_SECONDS = 0.2  # between looks at who of the learners lives
_STARVED_SECONDS = 0.005  # to wait for items


class BatchServer:
    """Keeps ``prefetch`` sampled batches ready for each learner and writes back the priorities that they send.

    The process that calls ``step`` serves, and owns the replay; another may take over when it has ended. Picklable, as
    are the ``learner(i)`` handles. Batches are sampled only for learners that are there.

    Args:
        replay: to sample from: one of this host's, or one that is spread over shards.
        learners: places for learners.
        batch_size, beta, normalize: as for ``Replay.sample``; a learner may ask for another ``beta``.
        prefetch: batches ready or held per learner, at least two: a loop holds one while it asks for the next.
    """

    def __init__(
        self,
        replay: Replay | ShardedReplay | Loads,
        learners: int,
        batch_size: int,
        beta: float = 0.4,
        prefetch: int = 2,
        normalize: Normalize = "batch",
        memory: ServedMemory | None = None,
    ) -> None:
        for name, value, least in (("learners", learners, 1), ("batch_size", batch_size, 1), ("prefetch", prefetch, 2)):
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name}={value!r} must be an integer of at least {least}")
        if not 0.0 <= beta <= 100.0:
            raise ConfigError(f"beta={beta} must be a number from 0 on (1: full correction)")
        self._source = source = source_of(replay, self)
        if source.fifo and batch_size > replay.capacity:
            raise ConfigError(
                f"batch_size={batch_size} is more than the {replay.capacity} items that this replay holds"
            )
        self.replay = replay
        self._arguments = (learners, batch_size, beta, prefetch, normalize)
        self._normalize: Normalize = normalize
        if memory is None:
            memory = ServedMemory(source.layout, learners, batch_size, prefetch)
            for i in range(learners):
                memory.beta(i)[0] = beta
        self._memory = memory
        self._serving = False
        self._sets: list[list[ArraySet]] = []
        self._out: set[tuple[int, int]] = set()  # batches given out and not yet seen empty again
        self._serials = [0] * learners
        self._first = 0
        self._looked = 0.0
        self._counters = dict.fromkeys(
            ("batches", "priorities_applied", "priorities_stale", "lost_batches", "damaged_words"), 0
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (BatchServer, (self.replay, *self._arguments, self._memory))

    def learner(self, index: int) -> ServedBatches:
        """The handle of learner ``index``, 0 … learners − 1, for whatever local process."""
        if not 0 <= index < self._memory.learners:
            raise ConfigError(f"learner {index} is out of range: there are places 0 … {self._memory.learners - 1}")
        return ServedBatches(self._memory, index)

    def step(self, timeout: float = 0.1) -> bool:
        """Write back what learners sent and sample what they miss. False: nothing happened within ``timeout`` seconds.

        Raises:
            OwnershipError: another living process serves, or owns the replay.
            ClosedError: closed.
        """
        deadline = time.monotonic() + timeout
        try:
            while not (worked := self._step(min(timeout, _LOOK_SECONDS))):
                if time.monotonic() >= deadline:
                    break
            return worked
        except ClosedError:
            self.close()  # the replay was closed: learners shall know
            raise

    def _step(self, timeout: float) -> bool:
        self._begin()
        memory = self._memory
        seen = memory.segment.load(memory.SERVER_BELL)
        worked = self._write_back()
        self._bury()
        starved = False
        self._first += 1
        for k in range(memory.prefetch):  # one for each learner, then a second: a limiter's few are shared
            for i in range(memory.learners):
                learner = (self._first + i) % memory.learners
                if starved or not memory.segment.load(memory.leased(learner)):
                    continue
                state = memory.segment.load(memory.state(learner, k))
                if state == LOST:
                    self._lose(learner, k)
                elif state != EMPTY:
                    continue
                starved = not self._fill(learner, k)
                worked |= not starved
        if worked or timeout <= 0:
            return worked
        if starved:
            self._source.wait(min(timeout, _STARVED_SECONDS))
        else:
            memory.segment.wait(memory.SERVER_BELL, seen, timeout)
        return False

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Serve until ``should_stop()``."""
        while not should_stop():
            self.step()

    def stats(self) -> dict[str, int]:
        """Of this process: batches sampled, priorities applied and stale, batches lost with learners that died, words
        in shared memory that no sound learner writes (what they belong to is dropped)."""
        return dict(self._counters)

    def close(self) -> None:
        """End it for every learner; the replay stays. Of a fifo replay, batches that no learner took count as lost."""
        segment, memory = self._memory.segment, self._memory
        if self._serves():
            for learner, k in sorted(self._out):
                self._done(lost=segment.load(memory.state(learner, k)) == FULL)
            self._out.clear()
        segment.store(memory.CLOSED, 1)
        for learner in range(memory.learners):
            segment.ring(memory.bell(learner))
        if self._serves():
            segment.unlock(SERVER_LOCK)
        self._serving = False

    def __enter__(self) -> BatchServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        memory, segment = self._memory, self._memory.segment
        if segment.load(memory.CLOSED):
            raise ClosedError("this server was closed")
        if self._serves():
            return
        if not segment.try_lock(SERVER_LOCK):
            server = process_name(segment.holder(SERVER_LOCK))
            raise OwnershipError(f"{server} serves these batches, and only one may")
        self._serving = True
        native = self._source.native
        self._sets = [[memory.arrays(i, k, native) for k in range(memory.prefetch)] for i in range(memory.learners)]
        places = list(range(memory.prefetch))
        self._out = {
            (i, k) for i in range(memory.learners) for k in places if segment.load(memory.state(i, k)) != EMPTY
        }
        for i in range(memory.learners):  # go on where a predecessor was
            self._serials[i] = segment.load(memory.serial(i, memory.in_order(i, places)[-1]))
        self._source.begin(len(self._out) * memory.batch_size)

    def _fill(self, learner: int, k: int) -> bool:
        memory, size = self._memory, self._memory.batch_size
        if (learner, k) in self._out:
            self._out.discard((learner, k))
            self._done(lost=False)
        beta = float(memory.beta(learner)[0])
        if not 0.0 <= beta <= 100.0:
            self._counters["damaged_words"] += 1
            memory.beta(learner)[0] = beta = self._arguments[2]
        try:
            self._source.fill(self._sets[learner][k], size, beta, self._normalize)
        except WaitTimeout:
            return False
        self._out.add((learner, k))
        self._serials[learner] = serial = (self._serials[learner] + 1) % 2**32
        self._counters["batches"] += 1
        memory.segment.store(memory.serial(learner, k), serial)
        memory.segment.store(memory.state(learner, k), FULL)
        memory.segment.ring(memory.bell(learner))
        return True

    def _write_back(self) -> bool:
        memory, segment = self._memory, self._memory.segment
        worked = False
        for learner in range(memory.learners):
            read = segment.load(memory.read(learner))
            while read != (written := segment.load(memory.written(learner))):
                if (written - read) % 2**32 > memory.messages:
                    self._counters["damaged_words"] += 1
                    segment.store(memory.read(learner), written)
                    break
                count, keys, magnitudes = memory.message(learner, read)
                n = int(cast("Any", count[0]))
                try:
                    if n > memory.batch_size:
                        raise PriorityError(f"a message of {n} priorities, where a batch has {memory.batch_size} items")
                    done = self.replay.update_priorities(keys[:n], magnitudes[:n])
                    self._counters["priorities_applied"] += done.applied
                    self._counters["priorities_stale"] += done.stale
                except PriorityError:  # a learner refuses such before it sends them
                    self._counters["damaged_words"] += 1
                read = (read + 1) % 2**32
                segment.store(memory.read(learner), read)
                segment.ring(memory.bell(learner))
                worked = True
        return worked

    def _bury(self) -> None:
        """Take back what learners held that have died."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        memory, segment = self._memory, self._memory.segment
        for learner in range(memory.learners):
            # Under the learner's lock: nobody takes the place meanwhile.
            if not segment.load(memory.leased(learner)) or not segment.try_lock(LEARNER_LOCK + learner):
                continue
            try:
                segment.store(memory.leased(learner), 0)
                for k in range(memory.prefetch):
                    if segment.load(memory.state(learner, k)) not in (EMPTY, FULL):
                        self._lose(learner, k)
            finally:
                segment.unlock(LEARNER_LOCK + learner)

    def _serves(self) -> bool:
        return self._serving and self._memory.segment.holds(SERVER_LOCK)

    def _lose(self, learner: int, k: int) -> None:
        self._memory.segment.store(self._memory.state(learner, k), EMPTY)
        self._out.discard((learner, k))
        self._counters["lost_batches"] += 1
        self._done(lost=True)

    def _done(self, lost: bool) -> None:
        """A batch is no longer out; of a fifo replay others' items may be drawn again."""
        self._source.done(self._memory.batch_size, lost)
