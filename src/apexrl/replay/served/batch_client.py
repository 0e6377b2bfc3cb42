"""A learner's end of a replay that another process samples for it: batches in shared memory, priorities back.

The memory, made by ``Replay.serve``: words of 4 bytes, then per learner its batches and a ring of priority messages. A
batch goes empty → full (server) → taken → empty (learner); lost, when a learner finds what
one that died had taken. Who lives is the kernel's word: server and learners each hold a record lock, which goes with
them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl.errors import ClosedError, ConfigError, OwnershipError, PriorityError, SpecError, WaitTimeout
from apexrl.replay.batch import ArraySet, Batch, holder, over
from apexrl.replay.layout import Layout
from apexrl.replay.writer import as_priorities
from apexrl.shared.segment import process_name
from apexrl.spec import Array

EMPTY, FULL, TAKEN, LOST = 0, 1, 2, 3
SERVER_LOCK, LEARNER_LOCK = 0, 1  # + learner
LARGEST_PRIORITY = 1e150  # as in native/bind.h
_SLICE = 0.1  # seconds between looks at signals while waiting
_HELD_SLICE = 0.001  # … and at batches that were dropped here, which rings no bell
_LEASE_SECONDS = 1.0  # for a place to come free: the server may be clearing up after a learner that died
_LINE = 64


class ServedMemory:
    """Where everything stands in the segment. Picklable.

    Args:
        layout: of the replay.
        learners, batch_size, prefetch: batches of that size kept ready for each learner.
        segment: made by another process; default: a new one.
    """

    SERVER_BELL, CLOSED = 0, 4  # offsets of words

    def __init__(
        self, layout: Layout, learners: int, batch_size: int, prefetch: int, segment: _native.Segment | None = None
    ) -> None:
        self.layout = layout
        self.learners = learners
        self.batch_size = batch_size
        self.prefetch = prefetch
        self.messages = 2 * prefetch + 2  # priority messages that may wait, of one learner
        self._end = _LINE
        self._bells = [self._take(_LINE) for _ in range(learners)]  # bell, leased, written, read; beta at + 16
        self._states = [[self._take(_LINE) for _ in range(prefetch)] for _ in range(learners)]  # state, serial
        self._arrays: list[list[dict[str, int]]] = [[{} for _ in range(prefetch)] for _ in range(learners)]
        for sets in self._arrays:
            for offsets in sets:
                ArraySet(None, layout, batch_size, self._placing(offsets))
        self._rings = [
            [(self._take(8), self._take(8 * batch_size), self._take(8 * batch_size)) for _ in range(self.messages)]
            for _ in range(learners)
        ]
        self.segment = _native.Segment(self._end) if segment is None else segment
        if self.segment.nbytes < self._end:
            raise ConfigError(
                f"served batches need {self._end} bytes, and {self.segment.name} has {self.segment.nbytes}: it is "
                "that of other batches"
            )
        # No array itself: views of the arrays made over it then refer to those, which tells when they are free.
        self._owner = holder(self.segment.view())

    def __reduce__(self) -> tuple[Any, ...]:
        return (ServedMemory, (self.layout, self.learners, self.batch_size, self.prefetch, self.segment))

    # Words of a learner.
    def bell(self, learner: int) -> int:
        """Rung when a batch has come or a message was read."""
        return self._bells[learner]

    def leased(self, learner: int) -> int:
        """Whether a learner holds this place; set by it, cleared by it or after its death."""
        return self._bells[learner] + 4

    def written(self, learner: int) -> int:
        """Priority messages ever written (mod 2^32)."""
        return self._bells[learner] + 8

    def read(self, learner: int) -> int:
        """… and read by the server."""
        return self._bells[learner] + 12

    def state(self, learner: int, batch: int) -> int:
        return self._states[learner][batch]

    def serial(self, learner: int, batch: int) -> int:
        """Counts the batches of a learner (mod 2^32), so that the oldest is taken first."""
        return self._states[learner][batch] + 4

    def in_order(self, learner: int, batches: list[int]) -> list[int]:
        """Oldest first. Serials wrap around: the oldest is the one farthest behind any other."""
        some = self.segment.load(self.serial(learner, batches[0]))
        return sorted(batches, key=lambda k: (self.segment.load(self.serial(learner, k)) - some + 2**31) % 2**32)

    def beta(self, learner: int) -> NDArray[np.float64]:
        """[1]: the exponent that the learner asks for."""
        beta: NDArray[np.float64] = self.array((1,), "float64", self._bells[learner] + 16)
        return beta

    def array(self, shape: tuple[int, ...], dtype: str, offset: int) -> Any:
        return over(self._owner, shape, dtype, offset)

    def arrays(self, learner: int, batch: int, native: _native.Replay | None) -> ArraySet:
        """The arrays of one batch; ``native``: to sample into."""
        offsets = iter(self._arrays[learner][batch].values())
        return ArraySet(
            native, self.layout, self.batch_size, lambda shape, dtype: self.array(shape, dtype, next(offsets))
        )

    def message(self, learner: int, number: int) -> tuple[Array, NDArray[np.uint64], NDArray[np.float64]]:
        """Count [1], keys and magnitudes [batch_size] of a priority message."""
        count, keys, magnitudes = self._rings[learner][number % self.messages]
        size = (self.batch_size,)
        return (
            self.array((1,), "uint64", count),
            self.array(size, "uint64", keys),
            self.array(size, "float64", magnitudes),
        )

    def _take(self, nbytes: int) -> int:
        offset, self._end = self._end, -(-(self._end + nbytes) // _LINE) * _LINE
        return offset

    def _placing(self, offsets: dict[str, int]) -> Any:
        def place(shape: tuple[int, ...], dtype: str) -> Array:
            offsets[str(len(offsets))] = self._take(int(np.prod(shape)) * np.dtype(dtype).itemsize)
            return np.empty(0, dtype)

        return place


class ServedBatches:
    """Batches of a replay that another process serves: ``sample`` and ``update_priorities`` as on the replay itself.

    Picklable; one process at a time takes a learner's place, at its first ``sample``. Batches lie in shared memory and
    are yours as long as you hold one of their arrays (or a view): then the server fills them again.
    """

    def __init__(self, memory: ServedMemory, learner: int) -> None:
        self._memory = memory
        self._learner = learner
        self._process = 0  # where it was taken
        self._sets: list[ArraySet] = []
        self._held: set[int] = set()
        self._closed = False
        self._lock = threading.RLock()  # of this process: one thread at a time
        _PLACES.add(self)

    def __enter__(self) -> ServedBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end
            self.close()
            if self._held:
                _LINGERING.append(self)  # its batches are still in use: who wants the place next looks again

    def __reduce__(self) -> tuple[Any, ...]:
        return (ServedBatches, (self._memory, self._learner))

    def sample(self, batch_size: int | None = None, beta: float | None = None, *, timeout: float = 10.0) -> Batch:
        """The next batch that was sampled for this learner.

        Args:
            batch_size: if given, that of the server.
            beta: exponent of the importance weights, from some batches on: those that lie ready have the earlier one.
            timeout: seconds to wait for a batch.

        Raises:
            WaitTimeout: no batch came: all are still held here, the server has none, or none serves any more (another
                process may take over). The message says which.
            ClosedError: the server was closed.
            OwnershipError: another living process holds this learner's place.
        """
        memory, segment, me = self._memory, self._memory.segment, self._learner
        if batch_size not in (None, memory.batch_size):
            raise ConfigError(f"batch_size={batch_size}: this server's batches have {memory.batch_size} items")
        if beta is not None and not 0.0 <= beta <= 100.0:
            raise ConfigError(f"beta={beta} must be a number from 0 on (1: full correction)")
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                self._lease()
                if beta is not None:
                    memory.beta(me)[0] = beta
                seen = segment.load(memory.bell(me))
                batch = self._take()
                if batch is not None:
                    return batch
                self._check_server()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(f"no batch for learner {me} within {timeout} s: {self._why_none()}")
                all_held = len(self._held) == memory.prefetch
            segment.wait(memory.bell(me), seen, min(left, _HELD_SLICE if all_held else _SLICE))

    def _take(self) -> Batch | None:
        """The oldest batch that is ready."""
        memory, segment, me = self._memory, self._memory.segment, self._learner
        self.give_back()
        full = [k for k in range(memory.prefetch) if segment.load(memory.state(me, k)) == FULL]
        if not full:
            return None
        k = memory.in_order(me, full)[0]
        self._held.add(k)
        segment.store(memory.state(me, k), TAKEN)
        return self._sets[k].batch()

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float = 10.0) -> None:
        """Send new raw magnitudes |δ| to the replay. Those whose item has gone are counted there as stale.

        Args:
            keys: uint64 ``[N]`` of sampled items.
            priorities: ``[N]`` float.
            timeout: seconds to wait while the server is behind.

        Raises:
            PriorityError: a value is NaN, infinite or negative (the row is named); nothing was sent.
            WaitTimeout, ClosedError: as ``sample``.
        """
        keys = np.ascontiguousarray(keys)
        if keys.ndim != 1 or keys.dtype != np.uint64:
            raise SpecError(f"keys must be the uint64 [B] of a batch, got {keys.dtype} {list(keys.shape)}")
        magnitudes = as_priorities(priorities, len(keys)).astype(np.float64)
        wrong = ~((magnitudes >= 0) & (magnitudes <= LARGEST_PRIORITY))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise PriorityError(
                f"priority of row {row} is {magnitudes[row]}: priorities are finite magnitudes |δ| from 0 to 1e150"
            )
        deadline = time.monotonic() + timeout
        with self._lock:
            self._lease()
            self._send(keys, magnitudes, deadline, timeout)

    def _send(self, keys: NDArray[np.uint64], magnitudes: NDArray[np.float64], deadline: float, timeout: float) -> None:
        memory, segment, me = self._memory, self._memory.segment, self._learner
        for start in range(0, len(keys), memory.batch_size):
            part = slice(start, start + memory.batch_size)
            written = segment.load(memory.written(me))
            while (written - segment.load(memory.read(me))) % 2**32 >= memory.messages:
                seen = segment.load(memory.bell(me))
                self._check_server()
                if time.monotonic() >= deadline:
                    why = "it is behind" if segment.held(SERVER_LOCK) else "none runs"
                    raise WaitTimeout(f"the server did not take learner {me}'s priorities within {timeout} s: {why}")
                if (written - segment.load(memory.read(me))) % 2**32 >= memory.messages:
                    segment.wait(memory.bell(me), seen, _SLICE)
            count, into_keys, into_magnitudes = memory.message(me, written)
            count[0] = n = len(keys[part])
            into_keys[:n], into_magnitudes[:n] = keys[part], magnitudes[part]
            segment.store(memory.written(me), (written + 1) % 2**32)
            segment.ring(memory.SERVER_BELL)

    def give_back(self) -> None:
        """Let the server fill the batches that are no longer held here; ``sample`` does so too."""
        memory = self._memory
        with self._lock:
            for k in [k for k in self._held if self._sets[k].free()]:
                self._held.discard(k)
                memory.segment.store(memory.state(self._learner, k), EMPTY)
                memory.segment.ring(memory.SERVER_BELL)

    def close(self) -> None:
        """Leave the learner's place. It stays taken while this process holds one of its batches: then close again."""
        memory = self._memory
        with self._lock:
            self._closed = True
            if self._process != _native.process_token():
                return
            self.give_back()
            if not self._held:
                self._process = 0
                memory.segment.store(memory.leased(self._learner), 0)
                memory.segment.unlock(LEARNER_LOCK + self._learner)

    def _lease(self) -> None:
        if self._closed:
            raise ClosedError("these served batches were closed")
        if self._process == _native.process_token():
            return
        memory, segment, me = self._memory, self._memory.segment, self._learner
        self._check_server()
        patience = time.monotonic() + _LEASE_SECONDS
        while not segment.try_lock(LEARNER_LOCK + me):
            for left in _LINGERING.copy():
                left.close()
                if not left._held:
                    _LINGERING.remove(left)
            if time.monotonic() >= patience:
                who = process_name(segment.holder(LEARNER_LOCK + me))
                raise OwnershipError(f"{who} holds the place of learner {me}")
            time.sleep(0.01)
        self._sets = [memory.arrays(me, k, None) for k in range(memory.prefetch)]
        self._held = set()
        for k in range(memory.prefetch):  # left by one that died
            if segment.load(memory.state(me, k)) not in (EMPTY, FULL):
                segment.store(memory.state(me, k), LOST)
        self._process = _native.process_token()
        segment.store(memory.leased(me), 1)
        segment.ring(memory.SERVER_BELL)

    def _check_server(self) -> None:
        if self._memory.segment.load(self._memory.CLOSED):
            raise ClosedError("the server of these batches was closed")

    def _why_none(self) -> str:
        if len(self._held) == self._memory.prefetch:
            return f"all {len(self._held)} are still held here: drop one, or serve with a larger prefetch="
        if not self._memory.segment.held(SERVER_LOCK):
            return "no process serves: call step() or run() on the server, or restart the one that did"
        return "the server has sampled none: its replay holds too little, or its limiter waits"


_PLACES: weakref.WeakSet[ServedBatches] = weakref.WeakSet()
_LINGERING: list[ServedBatches] = []


def _renew_locks() -> None:
    """In a forked child: the thread that held a lock does not exist here."""
    for place in _PLACES:
        place._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)
