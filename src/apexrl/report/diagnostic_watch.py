"""Which metrics of a run have been outside their healthy range for a while, for panel and plain lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from apexrl.config import AgentConfig
from apexrl.config.settings import flag
from apexrl.report.metric_ranges import Family, OutOfRange, family, outside, overestimation
from apexrl.report.number_format import number
from apexrl.run.status import RunStatus

PATIENCE: Final = 6
"""Reports in a row, each of 50 updates or more, before a metric is mentioned; one batch alone says little."""
SHOWN: Final = 2


class DiagnosticWatch:
    """Follows the metrics of one run.

    Args:
        config: of its agent; None: no run has begun.
    """

    def __init__(self, config: AgentConfig | None = None) -> None:
        config = config or AgentConfig()
        self._family: Family = family(config.agent)
        self._rate = config.learning_rate
        self._on = [flag(one.name) for one in fields(config) if getattr(config, one.name) is True]
        self._metrics: Mapping[str, float] = {}
        self._overestimation = math.nan
        self._first = self._best = math.nan  # mean returns of evaluations
        self._not_better = 0  # evaluations since the best
        self._reads = 0.0
        self._reports: Counter[str] = Counter()
        self._found: list[OutOfRange] = []

    def update(self, status: RunStatus) -> None:
        """Look at a status; one with the metrics of the last is passed over."""
        if not status.metrics or status.metrics == self._metrics:
            return
        self._metrics = dict(status.metrics)
        before, self._reads = self._reads, status.samples_per_insert
        values = {
            **self._metrics,
            "policy_lag_mean": status.policy_lag.mean,
            "overestimation": self._overestimation,
            # Counted since the start: not judged while it rises. 0: nothing is inserted, as of a dataset.
            "samples_per_insert": self._reads if 0.0 < self._reads <= 1.01 * before else math.nan,
        }
        self._found = [one for one in outside(values, self._family) if not self._small_by_schedule(one)]
        names = {one.diagnostic.name for one in self._found}
        self._reports = Counter({name: self._reports[name] + 1 for name in names})

    def _small_by_schedule(self, found: OutOfRange) -> bool:
        """Whether updates are small because the step size was lowered, as much as it was."""
        share = self._metrics.get("learning_rate", self._rate) / self._rate
        return (
            found.diagnostic.name == "relative_update"
            and share * found.diagnostic.low <= found.value < found.diagnostic.low
        )

    def evaluated(self, values: Mapping[str, Any]) -> None:
        """Look at an evaluation during training."""
        if values.get("final"):
            return
        mean = values["mean"]
        if math.isnan(self._first):
            self._first = self._best = mean
        better = mean > self._best
        self._best, self._not_better = max(self._best, mean), 0 if better else self._not_better + 1
        if "expected_return" in values:
            self._overestimation = overestimation(values["expected_return"], values["discounted_return"])

    @property
    def worst(self) -> list[OutOfRange]:
        """At most two that are outside their range, the farthest first. Clipped gradients are left out while
        evaluations get better: CartPole's preset clips nearly all, and solves it."""
        left_out = "clipped_gradients" if self._best > self._first and self._not_better < PATIENCE else ""
        lasting = [one for one in self._found if self._reports[one.diagnostic.name] >= PATIENCE]
        return [one for one in lasting if one.diagnostic.name != left_out][:SHOWN]

    def line(self) -> str:
        """They in one line, behind the advice for the first, as the end may be cut off; empty: there is none."""
        if not (worst := self.worst):
            return ""
        said = ", ".join(
            f"{one.diagnostic.name} is {number(one.value, small=True)} (healthy: {one.diagnostic.healthy})"
            for one in worst
        )
        return f"try {worst[0].diagnostic.advice(worst[0].value, self._on)}: {said}"
