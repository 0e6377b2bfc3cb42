"""The writer of a replay: appends finished rows in rows mode, steps in streams mode."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl._native import WriteStatus
from apexrl.errors import ApexrlError, ClosedError, ExhaustedError, SpecError, WaitTimeout
from apexrl.replay.core import ReplayCore
from apexrl.replay.deadline import deadline_after
from apexrl.replay.pending import PendingItems
from apexrl.replay.priorities import as_priorities, bad_priority
from apexrl.shared.segment import process_name
from apexrl.spec import Array

PriorityFn = Callable[[Mapping[str, Array]], Any]

_OK, _PUBLISH = WriteStatus.ok, WriteStatus.publish  # globals, for the fast paths
_SIGNAL_SECONDS = 0.1  # longest native wait, so that Python can handle signals
_LEASE_SECONDS = 1.0  # how long to wait for a free lane before that is an error
_PUBLISH_ITEMS = 256  # complete items whose priorities are computed together
_PUBLISH_SECONDS = 0.02  # how long a complete item may wait for that while another process samples


class Writer:
    """Appends to a replay from this process. Make one per thread with ``replay.writer()``.

    It leases one of the replay's ``writers=`` lanes at its first use. ``close()`` returns the lane, and so does the end
    of its process, even by a kill. After pickling or a fork, the copy leases a lane of its own.
    """

    def __init__(self, core: ReplayCore, streams: int | None, priority_fn: PriorityFn | None) -> None:
        self._core = core
        self._streams = streams
        self._priority_fn = priority_fn
        self._layout = core.layout
        self._native = _native.Writer(core.native, streams or 1)
        self._closed = False
        self._lock = threading.RLock()  # no other thread may run between pending, priority_fn and publish
        self._waiting_since = 0.0
        self._publishing = False
        self.published = 0  # items that this writer has published
        self.stored_rows = 0  # of the last `extend` that raised WaitTimeout
        _WRITERS.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Writer, (self._core, self._streams, self._priority_fn))

    def lease(self) -> bool:
        """Lease a lane now, and not at the first use. True: this writer had none, so its streams begin.

        Raises:
            ClosedError, ExhaustedError: closed, or no lane or stream is free.
        """
        with self._lock:
            if not self._closed and self._native.leased:
                return False
            self._lease()
            return True

    def extend(self, values: Mapping[str, Any], priorities: Any = None, timeout: float = 10.0) -> None:
        """Append N finished rows (rows mode).

        Args:
            values: field name -> ``[N, ...]`` of the declared dtype.
            priorities: raw magnitudes |δ| ``[N]``, float; default: the largest so far (1 when there is none).
            timeout: seconds to wait for a free slot or for the limiter.

        Raises:
            SpecError: a name, shape or dtype is wrong; nothing was stored.
            PriorityError: a priority is NaN, infinite or negative; nothing was stored.
            WaitTimeout: no room in time; the message says how many rows were stored.
            ClosedError, ExhaustedError: closed, or no lane is free.
        """
        if self._layout.kind != "rows":
            raise ApexrlError("extend() is for kind='rows'; this replay takes steps: use append()")
        if timeout != timeout:
            deadline_after(timeout)  # refuses it before anything is stored
        with self._lock:
            if self._closed or not self._native.leased:
                self._lease()
            try:
                start, status, bad = self._native.extend(values, priorities, 0)
            except TypeError:
                start, status, bad = 0, WriteStatus.irregular, 0
            if status is _OK:
                return
            if status is WriteStatus.irregular:
                values = self._layout.plain(values)
                if priorities is not None:
                    priorities = as_priorities(priorities, len(next(iter(values.values()))))
                start, status, bad = self._native.extend(values, priorities, 0)
            deadline = deadline_after(timeout)
            while status is not WriteStatus.ok:
                self._raise(status, bad, priorities)
                left = deadline - time.monotonic()
                if left <= 0:
                    total, self.stored_rows = len(next(iter(values.values()))), start
                    raise WaitTimeout(f"{self._why_no_room(timeout)}; {start} of {total} rows were stored")
                if not self._core.own_to_evict():
                    self._native.wait(min(left, _SIGNAL_SECONDS))
                if self._closed:
                    raise ClosedError(f"this writer was closed while it waited; {start} rows were stored")
                start, status, bad = self._native.extend(values, priorities, start)

    def append(self, values: Mapping[str, Any], streams: Sequence[int] | None = None, timeout: float = 10.0) -> None:
        """Append one step of each stream (streams mode).

        A step is an observation, the action taken on it and that action's results. After an episode ends, the stream's
        next step carries the final observation; its action and results are ignored, and it is not an item. The step
        after that begins the next episode. Gymnasium's NEXT_STEP autoreset yields steps in this form.

        Args:
            values: declared fields ``[B, ...]``; ``reward`` (any number; kept as float32), ``terminated`` and
                ``truncated`` (bool), ``[B]``.
            streams: which streams the rows belong to; default: all, in order.
            timeout: seconds to wait for a free slot or for the limiter.

        Raises:
            SpecError: a name, shape or dtype is wrong, or a reward is not finite; nothing was stored.
            WaitTimeout: no room in time; nothing was stored, the call may be repeated.
            ClosedError, ExhaustedError: closed, or no lane or stream is free.
            Exceptions of ``priority_fn``: the steps were stored nevertheless and must not be appended again. Their
            items are published with the next call, or with the largest priority so far if their chunk is full.
        """
        if self._layout.kind == "rows":
            raise ApexrlError("append() is not for kind='rows'; this replay takes finished rows: use extend()")
        if timeout != timeout:
            deadline_after(timeout)
        with self._lock:
            if self._closed or not self._native.leased:
                self._lease()
            which = None if streams is None else self._numbers(streams)
            failed: BaseException | None = None
            stored, status, pending, bad = self._append(values, which)
            if not stored:
                if status is WriteStatus.irregular:
                    values = self._layout.plain(values, self._rows(which))
                    stored, status, pending, bad = self._append(values, which)
                deadline = deadline_after(timeout)
                while not stored:
                    self._raise(status, bad, None)
                    if status is WriteStatus.publish:
                        try:
                            self._publish()
                        except Exception as error:
                            failed = error
                            self._native.publish(None)
                    elif not self._core.own_to_evict():
                        left = deadline - time.monotonic()
                        if left <= 0:
                            raise WaitTimeout(
                                f"{self._why_no_room(timeout)}; nothing was stored, the call may be repeated"
                            )
                        self._native.wait(min(left, _SIGNAL_SECONDS))
                    if self._closed:
                        raise ClosedError("this writer was closed while it waited; nothing was stored")
                    stored, status, pending, bad = self._append(values, which)
            if failed is not None:
                raise failed
            if status is _PUBLISH or pending >= _PUBLISH_ITEMS or (pending and self._layout.steps):
                self._publish()
            elif pending:
                self._publish_if_due()

    def flush(self, timeout: float = 5.0) -> None:
        """Wait until everything appended can be sampled, or is published while nobody samples yet.

        Raises:
            WaitTimeout: the owner did not absorb it within ``timeout`` seconds; nothing was lost.
        """
        with self._lock:
            if not self._native.leased:
                return
            if self._native.pending_count:
                self._publish()
            deadline = deadline_after(timeout)
            while not self._native.all_settled() and (owner := self._core.native.counters()["owner_pid"]):
                if self._core.native.closed:
                    raise ClosedError("the replay was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(
                        f"the owner, {process_name(owner)}, did not absorb what was appended within {timeout} s"
                    )
                self._native.wait(min(left, 0.01))

    def close(self) -> None:
        """Publish complete items and return the lane. Steps whose window is not complete are dropped."""
        self.stop_waiting()
        with self._lock:
            if self._native.leased:
                try:
                    if self._native.pending_count:
                        self._publish()
                finally:
                    self._native.release()
        self._core.drop_writer(self)

    def stop_waiting(self) -> None:
        """Make a call that waits in another thread raise ClosedError."""
        self._closed = True

    def publish_for_sampler(self) -> None:
        """Publish complete items, unless the writer's own thread does so at this moment."""
        if self._native.pending_count and self._lock.acquire(blocking=False):
            try:
                if self._native.pending_count and not self._publishing:
                    self._publish()
            finally:
                self._lock.release()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            self.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _lease(self) -> None:
        if self._closed:
            raise ClosedError("this writer was closed: create another with replay.writer()")
        status = self._native.lease()
        patience = time.monotonic() + _LEASE_SECONDS
        while status in (WriteStatus.no_lane, WriteStatus.no_streams) and time.monotonic() < patience:
            time.sleep(0.02)  # the owner may be reclaiming a dead worker's lane
            status = self._native.lease()
        counters = self._core.native.counters()
        if status is WriteStatus.no_lane:
            raise ExhaustedError(
                f"all {counters['lanes']} writer lanes of this replay are in use: close a writer, or create the replay "
                f"with a larger writers="
            )
        if status is WriteStatus.no_streams:
            raise ExhaustedError(
                f"this writer needs {self._streams} streams, more than are free of the replay's "
                f"{self._core.options['streams']}: create the replay with a larger streams="
            )
        self._raise(status, 0, None)

    def _append(self, values: Mapping[str, Any], which: NDArray[np.int64] | None) -> tuple[bool, WriteStatus, int, int]:
        try:
            return self._native.append(values, values["reward"], values["terminated"], values["truncated"], which)
        except (TypeError, KeyError):
            return False, WriteStatus.irregular, 0, 0

    def _numbers(self, streams: Sequence[int]) -> NDArray[np.int64]:
        numbers = np.asarray(streams)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise SpecError(
                f"streams= takes stream numbers, got {numbers.dtype}: convert a mask with np.flatnonzero(mask)"
            )
        return np.ascontiguousarray(numbers, np.int64)

    def _rows(self, which: NDArray[np.int64] | None) -> int:
        if which is None:
            return self._streams or 1
        if which.ndim != 1 or (which < 0).any() or (which >= (self._streams or 1)).any():
            raise SpecError(f"streams= must name streams 0 … {(self._streams or 1) - 1} of this writer")
        if len(np.unique(which)) != len(which):
            raise SpecError("streams= names a stream twice")
        return len(which)

    def _publish_if_due(self) -> None:
        if not self._core.owned_elsewhere:
            return
        now = time.monotonic()
        if not self._waiting_since:
            self._waiting_since = now
        elif now - self._waiting_since >= _PUBLISH_SECONDS:
            self._publish()

    def _publish(self) -> None:
        """Compute the priorities of all complete items at once and publish the items."""
        self._waiting_since = 0.0
        self._publishing = True  # priority_fn may use the replay, which would publish again
        try:
            self._publish_all()
        finally:
            self._publishing = False

    def _publish_all(self) -> None:
        while True:  # once more if the first windows of the next chunk are complete too
            priorities = None
            count = self._native.pending()
            if count and self._priority_fn is not None:
                priorities = as_priorities(self._priority_fn(PendingItems(self._native, self._layout, count)), count)
            status, bad = self._native.publish(priorities)
            self._raise(status, bad, priorities)
            self.published += count
            if not self._native.pending_count:
                return

    def _raise(self, status: WriteStatus, bad: int, priorities: Any) -> None:
        if status is WriteStatus.closed:
            raise ClosedError("the replay was closed")
        if status is WriteStatus.bad_priority:
            raise bad_priority(bad, priorities)
        if status is WriteStatus.busy:
            raise ApexrlError("this writer is in use by another thread: create one writer per thread")
        if status is WriteStatus.bad_reward:
            raise SpecError(f"field 'reward' of row {bad} is NaN or infinite: rewards must be finite")

    def _why_no_room(self, timeout: float) -> str:
        counters = self._core.native.counters()
        owner = counters["owner_pid"]
        if counters["growth_refused"]:
            used, slots = counters["slots_used"], counters["slots"]
            return (
                f"no free slot within {timeout:.3g} s: the system refused memory for more than {used} of {slots} slots"
            )
        if self._core.fifo:
            waiting = "no process samples it" if not owner else f"{process_name(owner)} has not sampled enough"
            held, capacity = int(self._core.native.size()), self._core.capacity
            if held < capacity:
                return (
                    f"no free chunk within {timeout:.3g} s: the fifo replay holds {held} of {capacity} items, in "
                    f"part-filled chunks, and {waiting}"
                )
            return f"the fifo replay held its {capacity} items for {timeout:.3g} s: {waiting}"
        if counters["samples_per_insert"] > 0 and (owner or counters["slots_used"] < counters["slots"]):
            sampler = process_name(owner) if owner else "some process"
            return f"no room within {timeout:.3g} s: the limiter holds inserts back until {sampler} has sampled more"
        if not owner:
            return f"no free slot within {timeout:.3g} s: the replay is full and no process samples it"
        return f"no free slot within {timeout:.3g} s: the owner, {process_name(owner)}, does not respond"


_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked child, the thread that held a lock does not exist."""
    for writer in _WRITERS:
        writer._lock = threading.RLock()


def _close_all() -> None:
    """At interpreter exit: publish complete items."""
    for writer in list(_WRITERS):
        with contextlib.suppress(Exception):
            writer.close()


os.register_at_fork(after_in_child=_renew_locks)
atexit.register(_close_all)
