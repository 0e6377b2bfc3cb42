"""The batch server: samples a replay for several learners of its host (Gorila, data-parallel Ape-X)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from apexrl.errors import ClosedError, ConfigError, OwnershipError, PriorityError, WaitTimeout
from apexrl.replay.batch import ArraySet
from apexrl.replay.core import Normalize
from apexrl.replay.deadline import deadline_after
from apexrl.replay.served.batch_client import ServedBatches
from apexrl.replay.served.batch_memory import EMPTY, FULL, LEARNER_LOCK, LOST, SERVER_LOCK, BatchMemory
from apexrl.replay.served.batch_sources import Servable
from apexrl.shared.segment import process_name

_CHECK_SECONDS = 0.2  # between checks for learners that died
_STARVED_SECONDS = 0.005  # how long to wait for items


class BatchServer:
    """Keeps ``prefetch`` sampled batches ready for each learner and writes the priorities that learners send.

    The process that calls ``step`` serves, and owns the replay. Another process may take over when it has ended. The
    server and its ``learner(i)`` handles are picklable. Batches are sampled only for learners that are connected.

    Args:
        replay: to sample from: a ``Replay`` of this host, or a sharded one.
        learners: the most learners.
        batch_size, beta, normalize: as for ``Replay.sample``; a learner may ask for another ``beta``.
        prefetch: batches ready or held per learner, at least two: a loop holds one while it asks for the next.
    """

    def __init__(
        self,
        replay: Servable,
        learners: int,
        batch_size: int,
        beta: float = 0.4,
        prefetch: int = 2,
        normalize: Normalize = "batch",
        memory: BatchMemory | None = None,
    ) -> None:
        for name, value, least in (("learners", learners, 1), ("batch_size", batch_size, 1), ("prefetch", prefetch, 2)):
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name}={value!r} must be an integer of at least {least}")
        self._source = replay.batch_source()
        self._source.check_batch(batch_size, beta, normalize)
        self._source.closes(self)
        self.replay = replay
        self._arguments = (learners, batch_size, beta, prefetch, normalize)
        self._normalize: Normalize = normalize
        if memory is None:
            memory = BatchMemory(self._source.layout, learners, batch_size, prefetch)
            for i in range(learners):
                memory.beta(i)[0] = beta
        self._memory = memory
        self._serving = False
        self._sets: list[list[ArraySet]] = []
        self._out: set[tuple[int, int]] = set()  # (learner, batch) that were filled and not yet seen empty again
        self._serials = [0] * learners
        self._first = 0
        self._checked = 0.0
        self._counters = dict.fromkeys(
            ("batches", "priorities_applied", "priorities_stale", "lost_batches", "damaged_words"), 0
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (BatchServer, (self.replay, *self._arguments, self._memory))

    def learner(self, index: int) -> ServedBatches:
        """The handle of learner ``index``, 0 … learners − 1, for any local process."""
        if not 0 <= index < self._memory.learners:
            raise ConfigError(f"learner {index} is out of range 0 … {self._memory.learners - 1}: serve more learners=")
        return ServedBatches(self._memory, index)

    def step(self, timeout: float = 0.1) -> bool:
        """Write priorities that learners sent and fill their empty batches. False: there was nothing to do within
        ``timeout`` seconds.

        Raises:
            OwnershipError: another living process serves, or owns the replay.
            ClosedError: closed.
        """
        deadline = deadline_after(timeout)
        try:
            while not (worked := self._step(min(timeout, _CHECK_SECONDS))):
                if time.monotonic() >= deadline:
                    break
            return worked
        except ClosedError:
            self.close()  # the replay was closed: tell the learners
            raise

    def _step(self, timeout: float) -> bool:
        self._begin()
        memory = self._memory
        seen = memory.segment.load(memory.SERVER_BELL)
        worked = self._write_priorities()
        self._reclaim()
        starved = False
        self._first += 1
        for k in range(memory.prefetch):  # one for each learner before a second: the limiter may allow only a few
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
        """Counts of this process: batches sampled, priorities applied and stale, batches lost with learners that died,
        and damaged words in shared memory (the message or value is dropped)."""
        return dict(self._counters)

    def close(self) -> None:
        """Stop serving every learner; the replay stays open. Batches of a fifo replay that no learner took are lost."""
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
            raise ClosedError("this batch server was closed")
        if self._serves():
            return
        if not segment.try_lock(SERVER_LOCK):
            server = process_name(segment.holder(SERVER_LOCK))
            raise OwnershipError(f"{server} already serves these batches: stop it first, or call step() there")
        self._serving = True
        native = self._source.native
        self._sets = [[memory.arrays(i, k, native) for k in range(memory.prefetch)] for i in range(memory.learners)]
        batches = list(range(memory.prefetch))
        self._out = {
            (i, k) for i in range(memory.learners) for k in batches if segment.load(memory.state(i, k)) != EMPTY
        }
        for i in range(memory.learners):  # continue the numbers of an earlier server
            self._serials[i] = segment.load(memory.serial(i, memory.in_order(i, batches)[-1]))
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

    def _write_priorities(self) -> bool:
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
                        raise PriorityError(f"a message has {n} priorities, a batch {memory.batch_size} items")
                    done = self.replay.update_priorities(keys[:n], magnitudes[:n])
                    self._counters["priorities_applied"] += done.applied
                    self._counters["priorities_stale"] += done.stale
                except PriorityError:  # a learner checks priorities before it sends them
                    self._counters["damaged_words"] += 1
                read = (read + 1) % 2**32
                segment.store(memory.read(learner), read)
                segment.ring(memory.bell(learner))
                worked = True
        return worked

    def _reclaim(self) -> None:
        """Reclaim the batches of learners that died."""
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return
        self._checked = now
        memory, segment = self._memory, self._memory.segment
        for learner in range(memory.learners):
            # While this holds the learner's lock, no process can take the learner's slot.
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
        """No learner holds the batch any more; a fifo replay may then give out as many items."""
        self._source.done(self._memory.batch_size, lost)
