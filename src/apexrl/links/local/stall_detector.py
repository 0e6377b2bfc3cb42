"""A sign of life that stays the same for too long."""

from __future__ import annotations

_LONGEST_TICK_SECONDS = 0.5


class Standstill:
    """Seconds for which a sign stays the same, counted by looks: time in which whoever looks was stopped itself, as on
    a laptop asleep, does not count."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sign = 0.0
        self._looked_at = float("inf")

    def look(self, sign: float, now: float, counts: bool = True) -> float:
        """The seconds so far. To be asked at every tick.

        Args:
            counts: it is one in which the sign should change.
        """
        passed = max(0.0, min(now - self._looked_at, _LONGEST_TICK_SECONDS))
        self._looked_at = now
        if sign != self._sign:
            self._sign, self.seconds = sign, 0.0
        elif counts:
            self.seconds += passed
        return self.seconds
