"""The worker's end of a replay: finished rows in rows mode, steps in streams mode."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl.errors import ApexrlError, ClosedError, ExhaustedError, PriorityError, SpecError, WaitTimeout
from apexrl.replay.batch import step_arrays
from apexrl.replay.layout import Layout
from apexrl.shared.segment import process_name
from apexrl.spec import Array

if TYPE_CHECKING:
    from apexrl.replay.replay import Replay

PriorityFn = Callable[[Mapping[str, Array]], Any]

# Answers of the native calls (native/lease.h Status, native/bind.h).
OK, WAIT, CLOSED, NO_LANE, NO_STREAMS, PUBLISH = 0, 1, 2, 3, 4, 5
IRREGULAR, BAD_PRIORITY, BUSY, BAD_REWARD, YIELDED = -1, -2, -3, -4, -5

_SLICE = 0.1  # seconds between looks at signals while waiting
_LEASE_SECONDS = 1.0  # for a lane to come free before that is an error
_PUBLISH_ITEMS = 256  # complete items that wait at most for their priorities to be computed together
_PUBLISH_SECONDS = 0.02  # … and how long the first of them waits while another process samples


class Writer:
    """Appends to a replay from this process. Make one per thread with ``replay.writer()``.

    It leases one of the replay's ``writers=`` lanes at its first use and gives it back at ``close()``, or when its
    process ends in whatever way. Pickled, or inherited by a fork, it leases a lane of its own there.
    """

    def __init__(self, replay: Replay, streams: int | None, priority_fn: PriorityFn | None) -> None:
        self._replay = replay
        self._streams = streams
        self._priority_fn = priority_fn
        self._layout: Layout = replay._layout
        self._native = _native.Writer(replay._native, streams or 1)
        self._closed = False
        self._lock = threading.RLock()  # of this process: pending → priority_fn → publish must not be interrupted
        self._waiting_since = 0.0
        self._publishing = False
        self.published = 0  # items that this writer has published
        _WRITERS.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Writer, (self._replay, self._streams, self._priority_fn))

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
            raise ApexrlError("extend() is for rows mode; this replay takes steps: use append()")
        with self._lock:
            if self._closed or not self._native.leased:
                self._lease()
            try:
                start, status, bad = self._native.extend(values, priorities, 0)
            except TypeError:
                start, status, bad = 0, IRREGULAR, 0
            if status == OK:
                return
            if status == IRREGULAR:
                values = self._layout.plain(values)
                if priorities is not None:
                    priorities = as_priorities(priorities, len(next(iter(values.values()))))
                start, status, bad = self._native.extend(values, priorities, 0)
            deadline = time.monotonic() + timeout
            while status != OK:
                self._raise(status, bad, priorities)
                left = deadline - time.monotonic()
                if left <= 0:
                    total = len(next(iter(values.values())))
                    raise WaitTimeout(f"{self._why_no_room(timeout)}; {start} of {total} rows were stored")
                if not self._replay._own_if_alone():
                    self._native.wait(min(left, _SLICE))
                if self._closed:
                    raise ClosedError(f"this writer was closed while it waited; {start} rows were stored")
                start, status, bad = self._native.extend(values, priorities, start)

    def append(self, values: Mapping[str, Any], streams: Sequence[int] | None = None, timeout: float = 10.0) -> None:
        """Append one step of each stream (streams mode).

        A step is an observation, the action taken on it and that action's results. After an end, the stream's next
        step carries the final observation (its action and results are ignored, it is no item); the one after that
        begins the next episode: what Gymnasium's NEXT_STEP autoreset yields.

        Args:
            values: declared fields ``[B, ...]``; ``reward`` (any number; kept as float32), ``terminated`` and
                ``truncated`` (bool), ``[B]``.
            streams: which streams the rows belong to; default: all, in order.
            timeout: seconds to wait for a free slot or for the limiter.

        Raises:
            SpecError: a name, shape or dtype is wrong, or a reward is not finite; nothing was stored.
            WaitTimeout: no room in time; nothing was stored, the call may be repeated.
            ClosedError, ExhaustedError: closed, or no lane or stream is free.
            What ``priority_fn`` raises: the steps were stored all the same and must not be appended again. Its items
            wait for the next call, or get the largest priority so far where their chunk is full.
        """
        if self._layout.kind == "rows":
            raise ApexrlError("append() is for streams mode; this replay takes finished rows: use extend()")
        with self._lock:
            if self._closed or not self._native.leased:
                self._lease()
            which = None if streams is None else self._numbers(streams)
            failed: BaseException | None = None
            stored, status, pending, bad = self._append(values, which)
            if status == IRREGULAR:
                values = self._layout.plain(values, self._rows(which))
                stored, status, pending, bad = self._append(values, which)
            if not stored:
                deadline = time.monotonic() + timeout
                while not stored:
                    self._raise(status, bad, None)
                    if status == PUBLISH:
                        try:
                            self._publish()
                        except Exception as error:
                            failed = error
                            self._native.publish(None)
                    elif not self._replay._own_if_alone():
                        left = deadline - time.monotonic()
                        if left <= 0:
                            raise WaitTimeout(
                                f"{self._why_no_room(timeout)}; nothing was stored, the call may be repeated"
                            )
                        self._native.wait(min(left, _SLICE))
                    if self._closed:
                        raise ClosedError("this writer was closed while it waited; nothing was stored")
                    stored, status, pending, bad = self._append(values, which)
            if failed is not None:
                raise failed
            if status == PUBLISH or pending >= _PUBLISH_ITEMS or (pending and self._layout.steps):
                self._publish()
            elif pending:
                self._publish_if_due()

    def flush(self, timeout: float = 5.0) -> None:
        """Wait until everything appended can be sampled (when nobody samples yet: until it is published).

        Raises:
            WaitTimeout: the owner did not take it in within ``timeout`` seconds; nothing was lost.
        """
        with self._lock:
            if not self._native.leased:
                return
            if self._native.pending_count:
                self._publish()
            deadline = time.monotonic() + timeout
            while not self._native.all_settled() and self._replay.owner_pid:
                if self._replay._native.closed:
                    raise ClosedError("the replay was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(
                        f"the owner, {process_name(self._replay.owner_pid)}, did not take in what was appended in "
                        f"{timeout} s"
                    )
                self._native.wait(min(left, 0.01))

    def close(self) -> None:
        """Publish what is complete and give the lane back. Steps whose window is not complete are dropped."""
        self._closed = True  # a thread that waits inside sees it and lets go
        with self._lock:
            if self._native.leased:
                try:
                    if self._native.pending_count:
                        self._publish()
                finally:
                    self._native.release()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end
            self.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _publish_for_sampler(self) -> None:
        """Publish what is complete, unless the writer's own thread is at it."""
        if self._native.pending_count and self._lock.acquire(blocking=False):
            try:
                if self._native.pending_count and not self._publishing:
                    self._publish()
            finally:
                self._lock.release()

    def _lease(self) -> None:
        if self._closed:
            raise ClosedError("this writer was closed; make another with replay.writer()")
        status = self._native.lease()
        patience = time.monotonic() + _LEASE_SECONDS
        while status in (NO_LANE, NO_STREAMS) and time.monotonic() < patience:
            time.sleep(0.02)  # a dead worker's lane may be in the owner's hands at this moment
            status = self._native.lease()
        counters = self._replay._native.counters()
        if status == NO_LANE:
            raise ExhaustedError(
                f"all {counters['lanes']} writer lanes of this replay are in use: close a writer, or make the replay "
                f"with a larger writers="
            )
        if status == NO_STREAMS:
            raise ExhaustedError(
                f"this writer asks for {self._streams} streams, more than are left of the replay's "
                f"{self._replay._options['streams']}: make the replay with a larger streams="
            )
        self._raise(status, 0, None)

    def _append(self, values: Mapping[str, Any], which: NDArray[np.int64] | None) -> tuple[bool, int, int, int]:
        try:
            return self._native.append(values, values["reward"], values["terminated"], values["truncated"], which)
        except (TypeError, KeyError):
            return False, IRREGULAR, 0, 0

    def _numbers(self, streams: Sequence[int]) -> NDArray[np.int64]:
        numbers = np.asarray(streams)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise SpecError(
                f"streams= takes the numbers of streams, got {numbers.dtype}: for a mask, np.flatnonzero(mask)"
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
        if not self._replay._owned_elsewhere:
            return
        now = time.monotonic()
        if not self._waiting_since:
            self._waiting_since = now
        elif now - self._waiting_since >= _PUBLISH_SECONDS:
            self._publish()

    def _publish(self) -> None:
        """Compute the priorities of all complete items at once and make them visible."""
        self._waiting_since = 0.0
        self._publishing = True  # priority_fn may look at the replay
        try:
            self._publish_all()
        finally:
            self._publishing = False

    def _publish_all(self) -> None:
        while True:  # once more when the next chunk's first windows are complete too
            priorities = None
            count = self._native.pending()
            if count and self._priority_fn is not None:
                priorities = as_priorities(self._priority_fn(PendingItems(self._native, self._layout, count)), count)
            status, bad = self._native.publish(priorities)
            self._raise(status, bad, priorities)
            self.published += count
            if not self._native.pending_count:
                return

    def _raise(self, status: int, bad: int, priorities: Any) -> None:
        if status == CLOSED:
            raise ClosedError("the replay was closed")
        if status == BAD_PRIORITY:
            value = np.asarray(priorities).reshape(-1)[bad]
            raise PriorityError(
                f"priority of row {bad} is {value}: priorities are finite magnitudes |δ| from 0 to 1e150"
            )
        if status == BUSY:
            raise ApexrlError("this writer is in use by another thread: make one writer per thread")
        if status == BAD_REWARD:
            raise SpecError(f"field 'reward' of row {bad} is NaN or infinite")

    def _why_no_room(self, timeout: float) -> str:
        counters = self._replay._native.counters()
        owner = counters["owner_pid"]
        if counters["growth_refused"]:
            used, slots = counters["slots_used"], counters["slots"]
            return f"no free slot within {timeout} s: memory for more than {used} of its {slots} slots is refused"
        if self._replay._options["sampler"] == "fifo":
            waiting = "no process samples it" if not owner else f"{process_name(owner)} has not sampled enough"
            held, capacity = int(self._replay._native.size()), self._replay.capacity
            if held < capacity:
                return (
                    f"no free chunk within {timeout} s: the fifo replay holds {held} of {capacity} items, in chunks "
                    f"that ended part-filled, and {waiting}"
                )
            return f"the fifo replay held its {capacity} items for {timeout} s: {waiting}"
        if not owner:
            return f"no free slot within {timeout} s: the replay is full and no process samples it"
        if counters["samples_per_insert"] > 0:
            sampler = process_name(owner)
            return f"no room within {timeout} s: the limiter holds inserts back until {sampler} has sampled more"
        return f"no free slot within {timeout} s: the owner, {process_name(owner)}, does not respond"


_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked child: the thread that held a lock does not exist here."""
    for writer in _WRITERS:
        writer._lock = threading.RLock()


def _close_all() -> None:
    """At the interpreter's end: what is complete is published."""
    for writer in list(_WRITERS):
        with contextlib.suppress(Exception):
            writer.close()


os.register_at_fork(after_in_child=_renew_locks)
atexit.register(_close_all)


class PendingItems(Mapping[str, Array]):
    """Freshly completed items, as ``priority_fn`` sees them: gathered only when a name is read.

    Names as in ``Batch.data``; with transitions every declared field ``f`` also as ``next_f``, its value m ≤ n steps
    later.
    """

    def __init__(self, native: _native.Writer, layout: Layout, count: int) -> None:
        self._native = native
        self._columns = {column.name: (i, column) for i, column in enumerate(layout.columns)}
        self._count = count
        self._layout = layout
        self._steps: dict[str, Array] = {}

    @property
    def count(self) -> int:
        """N, the number of items."""
        return self._count

    def __getitem__(self, name: str) -> Array:
        if name in self._step_names():
            if not self._steps:
                self._steps = step_arrays(self._layout, self._count)
                self._native.gather_pending_steps(**self._steps)
            return self._steps[name]
        later = name not in self._columns and name.startswith("next_") and not self._layout.steps
        index, column = self._columns[name[5:] if later else name]
        out = np.empty((self._count, *column.window_shape), column.field.dtype)
        self._native.gather_pending(index, later, out)
        return out

    def __iter__(self) -> Iterator[str]:
        for name in self._columns:
            yield name
            if not self._layout.steps:
                yield "next_" + name
        yield from self._step_names()

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _step_names(self) -> tuple[str, ...]:
        return ("reward", "discount", "mask", "first") if self._layout.steps else ("reward", "discount")


def as_priorities(value: Any, rows: int) -> NDArray[np.floating[Any]]:
    """Priorities as a contiguous float array ``[rows]``; SpecError when they are something else."""
    try:
        array = np.ascontiguousarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"priorities: cannot make an array of them ({error})") from None
    if array.shape != (rows,):
        raise SpecError(f"priorities have shape {list(array.shape)}, expected [{rows}]: one for each row")
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "iuf":
        raise SpecError(f"priorities have dtype {array.dtype}, expected float32 or float64")
    return array.astype(np.float64)
