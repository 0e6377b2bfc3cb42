"""How long this thread has computed, and how long it had to wait for a core."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


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
