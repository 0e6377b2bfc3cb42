"""When a run ends by its settings."""

from __future__ import annotations

from collections.abc import Mapping

from apexrl.config import StopConfig
from apexrl.config.metric_bounds import metric_bound
from apexrl.config.settings import did_you_mean
from apexrl.run.metric_catalogue import KNOWN
from apexrl.run.metric_samples import status_scalars
from apexrl.run.status import RunStatus

_SETTLED_SECONDS = 10.0  # of learning, after which a metric that was not reported may never be


class StopRules:
    """The settings of ``StopConfig``, applied. Each method answers with the reason to stop; empty: there is none."""

    def __init__(self, stop: StopConfig, best: float | None) -> None:
        self._stop = stop
        self._bounds = [metric_bound(text) for text in stop.stop_when]
        self._unseen = {bound.name for bound in self._bounds}
        self._learned_at: float | None = None  # seconds of training when a learner had reported first
        self._best = best
        self._without = 0  # evaluations since the best one, in this part of the run
        self.told = ""
        """What to tell the user of the reason; empty: it speaks for itself."""
        self.warnings: list[str] = []
        """To be told, and taken away by whoever does."""

    def evaluated(self, mean: float) -> str:
        """Enter the mean return of an evaluation."""
        better = self._best is None or mean > self._best
        self._best = mean if better or self._best is None else self._best
        self._without = 0 if better else self._without + 1
        goal, most = self._stop.stop_at_return, self._stop.stop_without_improvement
        if goal is not None and mean >= goal:
            return "stop_at_return"
        if most and self._without >= most:
            self.told = f"no evaluation of the last {most} was better than {self._best:g} (--stop-without-improvement)"
            return "stop_without_improvement"
        return ""

    def forget_best(self) -> None:
        """The next evaluation is better than those before, which were of untrained weights."""
        self._best = None

    def look(self, status: RunStatus) -> str:
        """Look at the counters and metrics of a status."""
        if self._stop.env_steps and status.env_steps >= self._stop.env_steps:
            return "env_steps"
        if self._stop.updates and status.updates >= self._stop.updates:
            return "updates"
        if self._stop.minutes and status.elapsed_seconds >= 60.0 * self._stop.minutes:
            return "minutes"
        values = status_scalars(status) if self._bounds else {}
        for bound in self._bounds:
            value = values.get(bound.name)
            if value is not None and bound.crossed(value):
                self.told = f"{bound.name} is {value:g}, {bound.sign} {bound.limit:g} (--stop-when)"
                return "stop_when"
        if self._unseen:
            self._look_for_unseen(status, values)
        return ""

    def _look_for_unseen(self, status: RunStatus, values: Mapping[str, float | None]) -> None:
        """Warn once of bounds of metrics that the run has not reported when it must have reported all."""
        self._unseen -= values.keys()
        if not status.metrics or (status.env_steps and not status.episodes):
            return
        self._learned_at = status.elapsed_seconds if self._learned_at is None else self._learned_at
        if status.elapsed_seconds - self._learned_at >= _SETTLED_SECONDS:
            for name in sorted(self._unseen):
                group = name.partition("/")[0]
                beside = [other for other in values if name not in KNOWN and other.startswith(f"{group}/")]
                near = did_you_mean(name, beside)
                self.warnings.append(f"--stop-when {name}: this run has reported no such metric so far{near}")
            self._unseen.clear()
