"""The learning curve of a run that may still be going on, and what a sweep makes of it: a single number."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from apexrl.config import StopConfig
from apexrl.run.atomic_files import open_plain

Objective = Literal["best", "last", "area"]
"""``best``: the return of the best weights, on fresh seeds at the end; ``last``: of the last weights, on the same;
``area``: the mean height of the curve over the whole budget, which also counts how fast it rises."""

Point = tuple[float, float]
"""(share of the budget that was used, mean return of an evaluation)."""

RUNGS: Final = 20
"""At so many places of its budget a run is compared with the others."""


class CurveReader:
    """Reads the evaluations of a run's ``metrics.jsonl`` as they are written.

    Args:
        path: of ``metrics.jsonl``; it need not exist yet.
        stop: the limits of the run, which say how much of its budget is used.
    """

    def __init__(self, path: Path, stop: StopConfig) -> None:
        self.points: list[Point] = []
        """Oldest first."""
        self.env_steps = 0
        self.seconds = 0.0
        """Of training."""
        self._path = path
        self._stop = stop
        self._file = 0  # its number: a run that begins anew begins another one
        self._offset = 0

    def read(self) -> bool:
        """Read what is new; returns whether there were new evaluations."""
        try:
            with open_plain(self._path) as file:
                number = self._path.stat().st_ino
                if number != self._file or file.seek(0, io.SEEK_END) < self._offset:
                    self._file, self._offset, self.points = number, 0, []
                file.seek(self._offset)
                text = file.read()
        except OSError:
            return False
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        before = len(self.points)
        for line in whole.splitlines():
            self._enter(line)
        return len(self.points) > before

    def _enter(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            self.env_steps = max(self.env_steps, int(row.get("env_steps") or 0))
            self.seconds = max(self.seconds, float(row.get("wall_seconds") or 0.0))
            if row.get("kind") == "evaluation" and not row.get("final") and row.get("mean") is not None:
                used = share_used(self._stop, int(row["env_steps"]), float(row["wall_seconds"]))
                self.points.append((used, float(row["mean"])))
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # a line that a crash cut short


def share_used(stop: StopConfig, env_steps: int, seconds: float) -> float:
    """How much of a run's budget is used, 0 … 1."""
    shares = [env_steps / stop.env_steps] if stop.env_steps else []
    shares += [seconds / (60.0 * stop.minutes)] if stop.minutes else []
    return min(1.0, max(shares, default=0.0))


def height(points: Sequence[Point], objective: Objective, until: float = 1.0) -> float | None:
    """What a curve is worth after a share of the budget; None: there was no evaluation by then.

    The area takes the first evaluation for what was before it, and the last one for what comes after it: a run that
    reaches its goal early stays there.
    """
    there = [point for point in points if point[0] <= until]
    if not there:
        return None
    if objective == "best":
        return max(mean for _, mean in there)
    if objective == "last":
        return there[-1][1]
    begins = [0.0, *(used for used, _ in there[1:])]
    ends = [*begins[1:], until]
    return sum((end - begin) * mean for begin, end, (_, mean) in zip(begins, ends, there, strict=True)) / until


def final_height(points: Sequence[Point], objective: Objective, summary: Mapping[str, Any]) -> float | None:
    """What a run that has ended is worth; None: it was never evaluated."""
    measured = {"best": "final_eval_return", "last": "last_weights_return"}.get(objective, "")
    value = summary.get(measured)
    return float(value) if value is not None else height(points, objective)
