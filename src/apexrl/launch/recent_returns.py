"""The mean return of the latest training episodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

AVERAGED = 100
"""Episodes whose mean is the status's ``train_return``; more where many were told of at once."""


class LatestReturns:
    """The latest returns, in the order in which they were reported."""

    def __init__(self) -> None:
        self._means: deque[tuple[float, int]] = deque()  # and of how many episodes
        self._episodes = 0

    def hear(self, values: Mapping[str, Any]) -> float:
        """The mean after an ``episodes`` message: ``returns`` of each; or of ``count`` episodes the ``mean_return``."""
        if "count" in values:
            told = [(float(values["mean_return"]), int(values["count"]))]
        else:
            told = [(float(one), 1) for one in values["returns"]]
        self._means.extend(told)
        self._episodes += sum(count for _, count in told)
        while self._means and self._episodes - self._means[0][1] >= AVERAGED:
            self._episodes -= self._means.popleft()[1]
        return math.fsum(mean * count for mean, count in self._means) / max(1, self._episodes)
