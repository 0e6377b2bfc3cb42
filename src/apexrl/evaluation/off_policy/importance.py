"""Importance sampling: the recorded returns, weighted by how much likelier the evaluated policy made their actions.

Precup, Sutton & Singh 2000, Eligibility Traces for Off-Policy Policy Evaluation, ICML; Thomas & Brunskill 2016,
arXiv 1604.00923. Episodes are as long as they were recorded: of one that was cut, nothing beyond its end counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.spec import Array

Floats = NDArray[np.float64]

RESAMPLES: Final = 1000
LEVEL: Final = 0.95


class Weighted(NamedTuple):
    """Of E episodes, padded to T steps."""

    reward: Floats  # [E, T], γ^t·r; 0 behind the end
    ratio: Floats  # [E, T], Π π(a|s)/b(a|s) up to and with step t; that of the last step behind the end


class Estimate(NamedTuple):
    """A policy's expected discounted return, with an interval."""

    value: float
    low: float
    high: float


def weighted(rewards: Sequence[Floats], log_ratios: Sequence[Floats], gamma: float) -> Weighted:
    """Of every episode, rewards [T] and log π(a|s) − log b(a|s) [T]."""
    longest = max(map(len, rewards))
    reward, log_ratio = np.zeros((2, len(rewards), longest))
    for row, (paid, likelier) in enumerate(zip(rewards, log_ratios, strict=True)):
        reward[row, : len(paid)] = paid * gamma ** np.arange(len(paid))
        log_ratio[row, : len(paid)] = likelier
    return Weighted(reward, np.exp(log_ratio.cumsum(axis=1)))


def ordinary(of: Weighted) -> float:
    """mean_i ρ_i·G_i, with the ratio of the whole episode; unbiased."""
    return float((of.ratio[:, -1] * of.reward.sum(axis=1)).mean())


def ordinary_weighted(of: Weighted) -> float:
    """Σ_i ρ_i·G_i / Σ_i ρ_i: biased, of less variance; NaN where all ρ_i are 0."""
    ratio = of.ratio[:, -1]
    total = float(ratio.sum())
    return float((ratio * of.reward.sum(axis=1)).sum()) / total if total > 0 else math.nan


def per_decision(of: Weighted) -> float:
    """mean_i Σ_t γ^t·ρ_it·r_it: a reward is weighted by the actions before it alone; unbiased."""
    return float((of.ratio * of.reward).sum(axis=1).mean())


def per_decision_weighted(of: Weighted) -> float:
    """Σ_t Σ_i γ^t·ρ_it·r_it / Σ_i ρ_it, as RLlib's weighted estimator: biased, of less variance.

    NaN where all ratios of a step are 0: what the policy would get from there on nobody recorded.
    """
    totals = of.ratio.sum(axis=0)
    return float((of.ratio * of.reward / totals).sum()) if totals.all() else math.nan


METHODS: Final[dict[str, Callable[[Weighted], float]]] = {
    "is": ordinary,
    "wis": ordinary_weighted,
    "pdis": per_decision,
    "wpdis": per_decision_weighted,
}


def estimate(method: str, of: Weighted, seed: int = 0) -> Estimate:
    """By one of ``METHODS``; the interval is that of 95 % of those bootstrap samples of episodes that have an estimate.

    All three numbers are NaN where the policy would have made no recorded episode.
    """
    rng, episodes, found = np.random.default_rng(seed), len(of.reward), METHODS[method]
    draws = (rng.integers(episodes, size=episodes) for _ in range(RESAMPLES))
    samples = [found(Weighted(of.reward[rows], of.ratio[rows])) for rows in draws]
    value, told = found(of), np.array([sample for sample in samples if not math.isnan(sample)])
    return Estimate(value, *(interval(told) if len(told) and not math.isnan(value) else (math.nan, math.nan)))


def mean_return(returns: Floats, seed: int = 0) -> Estimate:
    """The mean of returns [E], and an interval over bootstrap samples, which are drawn one by one: all of them together
    would take ``RESAMPLES`` times the memory."""
    rng, episodes = np.random.default_rng(seed), len(returns)
    samples = np.array([returns[rng.integers(episodes, size=episodes)].mean() for _ in range(RESAMPLES)])
    return Estimate(float(returns.mean()), *interval(samples))


def interval(samples: Floats) -> tuple[float, float]:
    """Between which 95 % of the samples lie."""
    low, high = np.quantile(samples, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
    return float(low), float(high)


def effective_episodes(of: Weighted) -> float:
    """(Σρ)² / Σρ²: as many equally weighted episodes would say as much (Kong 1992)."""
    ratio = of.ratio[:, -1]
    return float(ratio.sum() ** 2 / np.square(ratio).sum()) if ratio.any() else 0.0


def possible_together(choices: Sequence[int], masks: Array) -> NDArray[np.bool_]:
    """[R, k], which of the k combinations of ``choices`` a mask of [R, n] leaves, numbered as by ravel_multi_index."""
    first, *others = np.split(np.asarray(masks, np.bool_), np.cumsum(choices)[:-1], axis=1)
    for part in others:
        first = (first[:, :, None] & part[:, None, :]).reshape(len(masks), -1)
    return first
