"""Waiting times between attempts to reconnect."""

from __future__ import annotations

import random


class Backoff:
    """Waiting times after failures, in seconds: doubling from 0.05 to 2, with jitter."""

    def __init__(self, least: float = 0.05, most: float = 2.0) -> None:
        self._least, self._most = least, most
        self._now = least

    def next(self) -> float:
        now = self._now
        self._now = min(2.0 * now, self._most)
        return now * random.uniform(0.75, 1.0)  # so that hosts do not all reconnect at once

    def reset(self) -> None:
        self._now = self._least
