"""Whether a role's thread still takes turns: the role's own loop goes on while it waits for one that stands still."""

from __future__ import annotations

import faulthandler
import threading
import time

from apexrl.errors import WorkerError

_FIRST = 3.0  # times the limit for a thread's first turn, as for a worker's beginning


class Turns:
    """One thread's turns.

    Args:
        stall_timeout: seconds that one may take; 0: for ever.
    """

    def __init__(self, stall_timeout: float) -> None:
        self._limit = stall_timeout
        self._first = True
        self._began = time.monotonic()

    def begin(self, first: bool = False) -> None:
        """(the thread) A turn begins."""
        self._first, self._began = first, time.monotonic()

    def check(self, thread: threading.Thread) -> None:
        """Raise WorkerError, with the stacks in the log, if the thread lives and its turn takes too long."""
        limit = self._limit * (_FIRST if self._first else 1.0)
        if limit and thread.is_alive() and time.monotonic() - self._began > limit:
            faulthandler.dump_traceback(all_threads=True)
            raise WorkerError(f"the thread {thread.name} stood still for {limit:g} s (--stall-timeout)")
