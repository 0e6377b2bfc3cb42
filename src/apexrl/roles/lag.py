"""Policy lag: how many learner updates old the policy was that chose a step the learner now trains on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_KEPT = 64  # batches, evenly spread over the window, whose lags are kept for its quantile
_EXACT = 1 << 16  # largest lag that the run's histogram tells apart


class LagMeter:
    """Mean and maximum over all items, 95th percentile over an even sample of batches. In learner updates."""

    def __init__(self) -> None:
        self._window: list[NDArray[np.int64]] = []
        self._batches = 0
        self._stride = 1
        self._sums = np.zeros(2)  # window, run
        self._counts = np.zeros(2, np.int64)
        self._max = [0, 0]
        self._histogram = np.zeros(_EXACT, np.int64)

    def add(self, lags: NDArray[np.int64]) -> None:
        """One batch's lags [B]."""
        self._sums += lags.sum()
        self._counts += len(lags)
        largest = int(lags.max())
        self._max = [max(seen, largest) for seen in self._max]
        self._batches += 1
        if self._batches % self._stride == 0:
            self._window.append(lags)
            if len(self._window) == 2 * _KEPT:
                del self._window[::2]
                self._stride *= 2

    def read(self) -> tuple[list[float], list[float]]:
        """(mean, p95, max) since the last read and since this learner's start; NaN before the first batch."""
        if not self._counts[1]:
            return [float("nan")] * 3, [float("nan")] * 3
        p95 = float("nan")
        if self._window:
            lags = np.clip(np.concatenate(self._window), 0, _EXACT - 1)
            p95 = float(np.percentile(lags, 95))
            self._histogram += np.bincount(lags, minlength=_EXACT)
        reached = np.searchsorted(np.cumsum(self._histogram), 0.95 * self._histogram.sum())
        means = self._sums / np.maximum(self._counts, 1)
        lately = [float(means[0]) if self._counts[0] else float("nan"), p95, float(self._max[0])]
        ever = [float(means[1]), float(reached), float(self._max[1])]
        self._window, self._batches, self._stride = [], 0, 1
        self._sums[0], self._counts[0], self._max[0] = 0.0, 0, 0
        return lately, ever
