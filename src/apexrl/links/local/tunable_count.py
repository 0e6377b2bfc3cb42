"""A thread count that can be changed while its role runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from apexrl._native import Segment
from apexrl.spec import Array


class TunableCount:
    """One 8-byte word that a supervisor writes and any role reads, without waiting. Picklable when shared.

    Args:
        start: its first value.
        shared: between processes; otherwise within this one.
    """

    def __init__(self, start: int, shared: bool) -> None:
        self._segment = Segment(8) if shared else None
        self._attach()
        self.value = start

    def _attach(self) -> None:
        memory: Array = np.zeros(8, np.uint8) if self._segment is None else self._segment.array()
        self._word = memory[:8].view(np.int64)

    @property
    def value(self) -> int:
        return int(self._word[0])

    @value.setter
    def value(self, value: int) -> None:
        self._word[0] = value

    def __getstate__(self) -> Any:
        return self._segment

    def __setstate__(self, segment: Any) -> None:
        self._segment = segment
        self._attach()
