"""The policy lag of a run, merged from the reports of all learners and workers, over all their generations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apexrl.run.status import NO_LAG, PolicyLag


class Lag(NamedTuple):
    """Policy lag of some steps that were learned from."""

    figures: PolicyLag = NO_LAG
    histogram: Mapping[int, int] = {}  # least lag of a bin (`roles.policy_lag.BINS`) -> steps; exact


class Lags:
    """Reports so far (``LagMeter.report``): recent ones, and of the whole run."""

    def __init__(self) -> None:
        self._lately: dict[str, Lag] = {}
        self._ever: dict[tuple[str, int], Lag] = {}

    def hear(self, values: Mapping[str, Any]) -> None:
        """Enter a report."""
        name = str(values["reporter"])
        self._lately[name] = _lag(values["lag"], values["lag_histogram"])
        self._ever[name, int(values["generation"])] = _lag(values["run_lag"], values["run_lag_histogram"])

    @property
    def lately(self) -> Lag:
        """Of the newest reports."""
        return merged(list(self._lately.values()))

    @property
    def ever(self) -> Lag:
        """Of the run, or of its part since it was resumed."""
        return merged(list(self._ever.values()))


def merged(lags: Sequence[Lag]) -> Lag:
    """The lag of all their steps together. The 95th percentile of several is that of the bins: where one begins."""
    some = [lag for lag in lags if lag.histogram]
    if len(some) < 2:
        return some[0] if some else Lag()
    histogram: Counter[int] = Counter()
    for lag in some:
        histogram.update(lag.histogram)
    steps = [sum(lag.histogram.values()) for lag in some]
    mean = math.fsum(lag.figures.mean * n for lag, n in zip(some, steps, strict=True)) / sum(steps)
    return Lag(PolicyLag(mean, _p95(histogram), max(lag.figures.max for lag in some)), dict(sorted(histogram.items())))


def _p95(histogram: Mapping[int, int]) -> float:
    left = 0.95 * sum(histogram.values())
    for least in sorted(histogram):
        left -= histogram[least]
        if left <= 0:
            return float(least)
    return math.nan


def _lag(figures: Sequence[float | None], histogram: Mapping[Any, int]) -> Lag:
    """JSON has no NaN, which arrives as null, and names that are texts only."""
    known = PolicyLag(*(math.nan if value is None else value for value in figures))
    return Lag(known, {int(least): int(count) for least, count in histogram.items()})
