"""Holds a learner to so many updates a second, if the run says so."""

from __future__ import annotations

import time

from apexrl.protocols import Context

_CATCH_UP_SECONDS = 1.0


class Pace:
    """``updates_per_second``; 0 lets the learner run."""

    def __init__(self, context: Context, updates_per_second: float) -> None:
        self._context = context
        self._pace = updates_per_second
        self._due_at = context.clock()

    def due(self) -> bool:
        """Whether an update may begin; waits for it as long as the context's patience allows. True: it begins now."""
        if not self._pace:
            return True
        now = self._context.clock()
        wait = self._due_at - now
        if wait > 0:
            time.sleep(min(wait, self._context.patience))
            if wait > self._context.patience:
                return False
        self._due_at = max(self._due_at, now - _CATCH_UP_SECONDS) + 1.0 / self._pace
        return True
