"""How long this thread has computed, and how long it had to wait for a core."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_MOST_LOOKS = 10  # at clock and counts


class ThreadSeconds(NamedTuple):
    """Of one thread since it began: in which it computed, and in which it could have but had no core."""

    computed: float
    queued: float


def thread_seconds() -> ThreadSeconds:
    """Of this thread; ``queued`` is 0 where the system does not count it."""
    try:
        computed, queued, _ = _SCHEDSTAT.read_text().split()
        return ThreadSeconds(int(computed) / 1e9, int(queued) / 1e9)
    except (OSError, ValueError):  # not Linux, or a kernel that does not count
        return ThreadSeconds(time.thread_time(), 0.0)


class Moment(NamedTuple):
    """By the clock, and by what the kernel has counted of this thread until then: seconds."""

    clock: float
    computed: float
    queued: float

    def own_until(self, later: Moment) -> float:
        """Seconds until ``later`` in which it computed or waited, but not for a core; above 0."""
        return max(1e-9, later.clock - self.clock - (later.queued - self.queued))


def moment() -> Moment:
    """Now. The thread has not lost its core between two of its numbers, as far as can be had."""
    before = thread_seconds()
    for _ in range(_MOST_LOOKS):
        clock, after = time.perf_counter(), thread_seconds()
        if after.queued == before.queued:
            break
        before = after
    return Moment(clock, *after)
