"""Means of several lines, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Line = tuple[NDArray[np.float64], NDArray[np.float64]]
"""x, rising, and y."""

MOST_POINTS: Final = 200


class Band(NamedTuple):
    """A mean line and its 95 % interval, all ``[points]``."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def mean_line(lines: Sequence[Line]) -> Line:
    """The mean of several lines, linear between their points, from where all have begun to where one ends."""
    first, last = _common(lines)
    if len(lines) == 1 or first > last:
        return lines[0]
    points = np.unique(np.concatenate([x for x, _ in lines]))
    grid = points[(points >= first) & (points <= last)]
    return grid, np.mean([np.interp(grid, x, y) for x, y in lines], axis=0)


def mean_band(lines: Sequence[Line], resamples: int = 1000, seed: int = 0) -> Band | None:
    """The mean at evenly spaced points where all lines go, and the interval in which it falls when the lines are drawn
    anew with replacement (percentile bootstrap). None: no such point, or fewer than two lines."""
    first, last = _common(lines) if len(lines) > 1 else (1.0, 0.0)
    if first > last:
        return None
    grid = np.linspace(first, last, MOST_POINTS) if last > first else np.array([first])
    values = np.array([np.interp(grid, x, y) for x, y in lines])
    drawn = _resampled(len(lines), resamples, seed) @ values
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return Band(grid, values.mean(axis=0), low, high)


def mean_interval(values: Sequence[float], resamples: int = 2000, seed: int = 0) -> tuple[float, float] | None:
    """The 95 % interval of the mean by the same bootstrap; None: fewer than two values."""
    if len(values) < 2:
        return None
    low, high = np.quantile(_resampled(len(values), resamples, seed) @ np.asarray(values, np.float64), [0.025, 0.975])
    return float(low), float(high)


def _common(lines: Sequence[Line]) -> tuple[float, float]:
    return max(float(x[0]) for x, _ in lines), min(float(x[-1]) for x, _ in lines)


def _resampled(count: int, resamples: int, seed: int) -> NDArray[np.float64]:
    """The share of each of ``count`` values in every resample, ``[resamples, count]``."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(count, np.full(count, 1.0 / count), resamples) / count
