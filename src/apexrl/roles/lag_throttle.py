"""Actors wait before they begin unrolls that would be learned from too late."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config
from apexrl.protocols import Context

if TYPE_CHECKING:
    from apexrl.replay import Replay

_LOOK_SECONDS = 0.001  # between looks at the queue


class LagThrottle:
    """Lets unrolls begin only while few others wait in the queue, so that policy lag stays small at its source: AReaL's
    bound on staleness (Fu et al. 2025, arXiv 2505.24298), by the queue instead of a counter.

    The queue's own words say how many wait, whoever died or was restarted. A learner that is gone takes none, and then
    nobody begins anything; one that waits for a batch never meets actors that wait for it. Who was passed by others
    begins all the same when the learner has taken as many unrolls as there are environments.

    Args:
        queue: of unrolls.
        most: waiting unrolls with which others begin, at least as many as make a batch less one; 0: any number.
    """

    def __init__(self, context: Context, config: Config, queue: Replay, most: int) -> None:
        self._context, self._queue, self._most = context, queue, most
        self._length = int(queue.core.options["length"]) if most else 0
        self._turn = max(config.actor.actors, config.actor.actor_slots) * config.actor.envs_per_actor
        self._since: dict[int, int] = {}  # who waits -> unrolls that the learner had taken when that began
        self._waited = 0.0  # seconds that are not counted yet

    def begins(self, rows: int | NDArray[np.int64]) -> bool:
        """Whether the next step of a stream, or of any of several, begins an unroll.

        Args:
            rows: that were written to it, final observations included; [N] of several.
        """
        return self._most > 0 and bool(np.any(np.asarray(rows) % self._length == 0))

    def holds(self, who: int = 0) -> bool:
        """Whether ``who``, environments that begin their unrolls together, is not to begin them now."""
        if self._most == 0 or self._queue.core.native.size() <= self._most:
            return False
        taken = int(self._queue.core.native.counters()["sampled"])
        return taken - self._since.setdefault(who, taken) < self._turn

    def began(self, who: int = 0) -> None:
        """``who`` goes on, and has its turn anew."""
        self._since.pop(who, None)

    def wait(self, who: int = 0) -> bool:
        """Wait until ``who`` may begin, at most as long as the context's patience. Returns whether it may."""
        if not self.holds(who):
            return True
        began, left, held = time.monotonic(), self._context.patience, True
        while held and left > 0:
            time.sleep(min(left, _LOOK_SECONDS))
            held = self.holds(who)
            left = began + self._context.patience - time.monotonic()
        self._count(time.monotonic() - began)
        return not held

    def _count(self, seconds: float) -> None:
        self._waited += seconds
        whole = int(1000.0 * self._waited)
        self._waited -= whole / 1000.0
        self._context.count(lag_wait_ms=whole)
