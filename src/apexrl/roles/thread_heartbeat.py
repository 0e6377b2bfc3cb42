"""Detects that a thread of a role stands still."""

from __future__ import annotations

import faulthandler
import threading
import time

from apexrl.errors import WorkerError
from apexrl.links.local.stall_detector import StallDetector

_FIRST = 3.0  # times the limit for a thread's first turn, as for a worker's beginning


class ThreadHeartbeat:
    """The heartbeat of one thread. Time in which nobody looks, as the whole process was stopped, does not count.

    Args:
        stall_timeout: seconds that one may take; 0: for ever.
    """

    def __init__(self, stall_timeout: float) -> None:
        self._limit = stall_timeout
        self._first = True
        self._begun = 0
        self._still = StallDetector()

    def begin(self, first: bool = False) -> None:
        """(the thread) A turn begins."""
        self._first = first
        self._begun += 1

    def check(self, thread: threading.Thread) -> None:
        """Raise WorkerError, with the stacks in the log, if the thread lives and its turn takes too long. To be asked
        several times a second."""
        limit = self._limit * (_FIRST if self._first else 1.0)
        if limit and self._still.look(self._begun, time.monotonic(), thread.is_alive()) > limit:
            faulthandler.dump_traceback(all_threads=True)
            raise WorkerError(f"the thread {thread.name} stood still for {limit:g} s (--stall-timeout)")
