"""Normalised scores of the suite; ``apexrl.evaluation.scores`` has their interquartile mean."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.generality.tasks import Task

Curve = Sequence[Sequence[float]]
"""Points of (environment steps, seconds, mean return), oldest first."""


def normalised(task: Task, value: float | None) -> float:
    """0 is a random agent's return and 1 the published good one; a run without a return counts as random."""
    return 0.0 if value is None else (value - task.random) / (task.good - task.random)


def at_seconds(curve: Curve, seconds: float) -> float | None:
    """The return of the last evaluation whose weights were there by then; None: there was none yet."""
    there = [point[2] for point in curve if point[1] <= seconds]
    return there[-1] if there else None
