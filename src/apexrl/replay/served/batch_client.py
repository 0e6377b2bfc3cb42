"""A learner's handle to served batches: takes batches from shared memory and sends priorities back."""

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
from apexrl.errors import ClosedError, ConfigError, OwnershipError, WaitTimeout
from apexrl.replay.batch import ArraySet, Batch
from apexrl.replay.deadline import deadline_after
from apexrl.replay.priorities import checked
from apexrl.replay.served.batch_memory import EMPTY, FULL, LEARNER_LOCK, LOST, SERVER_LOCK, TAKEN, BatchMemory
from apexrl.shared.segment import process_name

_SIGNAL_SECONDS = 0.1  # longest native wait, so that Python can handle signals
_HELD_SECONDS = 0.001  # … and while all batches are held here: dropping one rings no bell
_LEASE_SECONDS = 1.0  # how long to wait for the slot: the server may be reclaiming it from a dead learner


class ServedBatches:
    """Batches of a replay that another process serves: ``sample`` and ``update_priorities`` as on the replay itself.

    Picklable. One process at a time takes a learner's slot, at its first ``sample``. Batches are in shared memory; the
    server fills one again after you dropped all of its arrays and their views.
    """

    def __init__(self, memory: BatchMemory, learner: int) -> None:
        self._memory = memory
        self._learner = learner
        self._process = 0  # token of the process that holds the slot
        self._sets: list[ArraySet] = []
        self._held: set[int] = set()
        self._closed = False
        self._lock = threading.RLock()  # one thread at a time
        _CLIENTS.add(self)

    def __enter__(self) -> ServedBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            self.close()
            if self._held:
                _LINGERING.append(self)  # its batches are still in use: the next client of the slot closes it

    def __reduce__(self) -> tuple[Any, ...]:
        return (ServedBatches, (self._memory, self._learner))

    def sample(self, batch_size: int | None = None, beta: float | None = None, *, timeout: float = 10.0) -> Batch:
        """The next batch that was sampled for this learner.

        Args:
            batch_size: if given, that of the server.
            beta: exponent of the importance weights. Batches that are already sampled still have the previous one.
            timeout: seconds to wait for a batch.

        Raises:
            WaitTimeout: all batches are still held here, the server has sampled none, or no process serves any more
                (another may take over). The message says which.
            ClosedError: the server was closed.
            OwnershipError: another living process holds this learner's slot.
        """
        memory, segment, me = self._memory, self._memory.segment, self._learner
        if batch_size not in (None, memory.batch_size):
            raise ConfigError(f"batch_size={batch_size} must be left out or {memory.batch_size}, as in serve()")
        if beta is not None and not 0.0 <= beta <= 100.0:
            raise ConfigError(f"beta={beta} must be between 0 and 100 (1: full correction)")
        deadline = deadline_after(timeout)
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
            segment.wait(memory.bell(me), seen, min(left, _HELD_SECONDS if all_held else _SIGNAL_SECONDS))

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
        """Send new raw magnitudes |δ| to the replay. Keys whose item was evicted are counted there as stale.

        Args:
            keys: uint64 ``[N]`` of sampled items.
            priorities: ``[N]`` float.
            timeout: seconds to wait while the server is behind.

        Raises:
            PriorityError: a value is NaN, infinite or negative (the row is named); nothing was sent.
            WaitTimeout, ClosedError: as ``sample``.
        """
        keys, magnitudes = checked(keys, priorities)
        deadline = deadline_after(timeout)
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
                    why = "it is behind" if segment.held(SERVER_LOCK) else "no process serves"
                    raise WaitTimeout(f"the server did not read learner {me}'s priorities within {timeout} s: {why}")
                if (written - segment.load(memory.read(me))) % 2**32 >= memory.messages:
                    segment.wait(memory.bell(me), seen, _SIGNAL_SECONDS)
            count, into_keys, into_magnitudes = memory.message(me, written)
            count[0] = n = len(keys[part])
            into_keys[:n], into_magnitudes[:n] = keys[part], magnitudes[part]
            segment.store(memory.written(me), (written + 1) % 2**32)
            segment.ring(memory.SERVER_BELL)

    def give_back(self) -> None:
        """Return the batches that this process dropped to the server; ``sample`` does so too."""
        memory = self._memory
        with self._lock:
            for k in [k for k in self._held if self._sets[k].free()]:
                self._held.discard(k)
                memory.segment.store(memory.state(self._learner, k), EMPTY)
                memory.segment.ring(memory.SERVER_BELL)

    def close(self) -> None:
        """Release the learner's slot. While this process holds one of its batches the slot stays taken: drop them and
        close again."""
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
            raise ClosedError("this handle to served batches was closed")
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
                raise OwnershipError(f"{who} is learner {me} already: use another learner(index), or end that process")
            time.sleep(0.01)
        self._sets = [memory.arrays(me, k, None) for k in range(memory.prefetch)]
        self._held = set()
        for k in range(memory.prefetch):  # taken by a learner that died
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
            return f"all {len(self._held)} batches are still held here: drop one, or serve with a larger prefetch="
        if not self._memory.segment.held(SERVER_LOCK):
            return "no process serves: call step() or run() on the batch server, or restart its process"
        return "the server has sampled none: its replay holds too few items, or its limiter waits for inserts"


_CLIENTS: weakref.WeakSet[ServedBatches] = weakref.WeakSet()
_LINGERING: list[ServedBatches] = []


def _renew_locks() -> None:
    """In a forked child, the thread that held a lock does not exist."""
    for client in _CLIENTS:
        client._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)
