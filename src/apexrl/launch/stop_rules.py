"""When a run ends by its settings."""

from __future__ import annotations

from apexrl.config import StopConfig
from apexrl.config.metric_bounds import metric_bound
from apexrl.run.metric_samples import status_scalars
from apexrl.run.status import RunStatus


class StopRules:
    """The settings of ``StopConfig``, applied. Each method answers with the reason to stop; empty: there is none."""

    def __init__(self, stop: StopConfig, best: float | None) -> None:
        self._stop = stop
        self._bounds = [metric_bound(text) for text in stop.stop_when]
        self._best = best
        self._without = 0  # evaluations since the best one, in this part of the run
        self.told = ""
        """What to tell the user of the reason; empty: it speaks for itself."""

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
        return ""
