"""A limit on learners: updates per second."""

from __future__ import annotations

import time

from apexrl.protocols import Context

_CATCH_UP_SECONDS = 1.0


class UpdatePace:
    """``updates_per_second``; 0 lets the learner run."""

    def __init__(self, context: Context, updates_per_second: float) -> None:
        self._context = context
        self._pace = updates_per_second
        self._due_at = context.clock()

    def due(self) -> bool:
        """Whether an update may begin; waits for it as long as the context's patience allows."""
        if not self._pace:
            return True
        wait = self._due_at - self._context.clock()
        if wait > 0:
            time.sleep(min(wait, self._context.patience))
        return wait <= self._context.patience

    def spend(self) -> None:
        """An update has its batch, or is made. One that found none has spent no time of those that follow."""
        if self._pace:
            self._due_at = max(self._due_at, self._context.clock() - _CATCH_UP_SECONDS) + 1.0 / self._pace
