"""The interquartile mean of scores of several tasks, and its interval by a stratified bootstrap, as rliable has them.

Agarwal, Schwarzer, Castro, Courville, Bellemare: Deep Reinforcement Learning at the Edge of the Statistical Precipice,
NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = Sequence[Sequence[float]]
"""Of each task, those of its seeds."""


class Interval(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


def iqm(scores: Scores) -> float:
    """The mean of the middle half of all scores. Every task weighs the same, however many seeds it has."""
    return float(_iqm(*_flat(scores)))


def bootstrapped_iqm(scores: Scores, resamples: int = 2000, seed: int = 0) -> Interval:
    """``iqm``, and the interval in which it falls when the seeds of every task are drawn anew, with replacement."""
    rng = np.random.default_rng(seed)
    _, weights = _flat(scores)
    drawn = np.concatenate([rng.choice(np.asarray(of, float), (resamples, len(of))) for of in scores], axis=1)
    low, high = np.quantile(_iqm(drawn, weights), [0.025, 0.975])
    return Interval(iqm(scores), float(low), float(high))


def _flat(scores: Scores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All scores, and the share of each."""
    weights = np.concatenate([np.full(len(of), 1 / len(of)) for of in scores])
    return np.concatenate([np.asarray(of, float) for of in scores]), weights / weights.sum()


def _iqm(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the last axis. A score that lies across a quartile counts with the part inside."""
    order = np.argsort(values, axis=-1)
    ends = np.cumsum(weights[order], axis=-1)
    inside = np.clip(ends, 0.25, 0.75) - np.clip(ends - weights[order], 0.25, 0.75)
    middle: NDArray[np.float64] = np.sum(inside * np.take_along_axis(values, order, -1), axis=-1) / inside.sum(axis=-1)
    return middle
