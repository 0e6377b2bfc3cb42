"""Measures for how long a sign of life has not changed."""

from __future__ import annotations

_LONGEST_TICK_SECONDS = 0.5


class StallDetector:
    """Seconds for which a sign of life has not changed.

    Time in which the observer itself was stopped, as on a sleeping laptop, does not count.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sign = 0.0
        self._looked_at = float("inf")

    def look(self, sign: float, now: float, counts: bool = True) -> float:
        """The seconds so far. Call it at every tick.

        Args:
            counts: the sign should change during this tick.
        """
        passed = max(0.0, min(now - self._looked_at, _LONGEST_TICK_SECONDS))
        self._looked_at = now
        if sign != self._sign:
            self._sign, self.seconds = sign, 0.0
        elif counts:
            self.seconds += passed
        return self.seconds
