"""What the page shows of several runs: groups of them with their means and intervals, and what sets them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from apexrl.dashboard.run_index import RunFiles
from apexrl.dashboard.run_views import lines_of
from apexrl.report.mean_lines import Line, mean_band, mean_interval, mean_line

MOST_RUNS: Final = 300
MOST_GROUPS: Final = 21
"""As many lines as colours and dashes tell apart."""
MOST_DIFFERENCES: Final = 200
_WHO: Final = ("env", "topology", "agent", "recipe")  # what runs are grouped by, unless they differ in none of these
_FEW: Final = 4  # values of a setting
_NEVER: Final = frozenset(("seed", "name", "out"))


def comparison(runs: Sequence[RunFiles], metric: str, axis: str, by: Sequence[str] = ()) -> dict[str, Any]:
    """Groups of runs whose settings ``by`` are equal.

    Args:
        metric: ``evaluation``, or the name of a metric.
        axis: ``env_steps``, ``updates`` or ``wall_seconds``.
        by: names of settings; empty: environment, topology and agent, or else all in which the runs differ.
    """
    runs = runs[:MOST_RUNS]
    differs = differences(runs)
    by = [name for name in by if name in differs] or [name for name in _WHO if name in differs]
    by = by or [name for name in differs if name not in _NEVER]
    groups: dict[tuple[str, ...], list[RunFiles]] = {}
    for run in runs:
        groups.setdefault(tuple(_spell(run.config.get(name)) for name in by), []).append(run)
    places = {run.name: place for place, run in enumerate(runs)}
    drawn = dict(list(groups.items())[:MOST_GROUPS])
    shown = [_group(key, some, by, metric, axis) for key, some in drawn.items()]
    return {
        "by": by,
        "differs": {
            name: [_together(values, [places[run.name] for run in some]) for some in drawn.values()]
            for name, values in differs.items()
            if name not in ("name", "out")
        },
        "runs": [run.name for run in runs],
        "groups": shown,
        "left_out": len(groups) - len(shown),
        "metrics": _names(runs),
    }


def differences(runs: Sequence[RunFiles]) -> dict[str, list[str]]:
    """Settings in which the runs differ, and the value of each run; ``–``: it has none."""
    configs = [run.config for run in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    found = {name: [_spell(config.get(name)) for config in configs] for name in names}
    return dict([one for one in found.items() if len(set(one[1])) > 1][:MOST_DIFFERENCES])


def _group(key: tuple[str, ...], runs: Sequence[RunFiles], by: Sequence[str], metric: str, axis: str) -> dict[str, Any]:
    lines = {run.name: line for run in runs if (line := _line(run, metric, axis)) is not None}
    ends = [float(y[-1]) for _, y in lines.values()]
    bests = [float(y.max()) for _, y in lines.values()]
    band = mean_band(list(lines.values()))
    mean: Mapping[str, Any] = {}
    if band is not None:
        mean = {name: _plain(values) for name, values in band._asdict().items()}
    elif lines:
        x, y = mean_line(list(lines.values()))
        mean = {"x": _plain(x), "mean": _plain(y)}
    return {
        "label": ", ".join(value if name in _WHO else f"{name} {value}" for name, value in zip(by, key, strict=True))
        or "all runs",
        "runs": [run.name for run in runs],
        "mean": mean,
        "lines": {name: [_plain(x), _plain(y)] for name, (x, y) in lines.items()},
        "last": _figure(ends),
        "best": _figure(bests),
    }


def _together(values: Sequence[str], places: Sequence[int]) -> str:
    """The values that some runs have of a setting, in a few words."""
    found = list(dict.fromkeys(values[place] for place in places))
    return ", ".join(found[:_FEW]) + (f", … ({len(found)} values)" if len(found) > _FEW else "")


def _line(run: RunFiles, metric: str, axis: str) -> Line | None:
    rows = lines_of(run, metric, axis)
    if not rows:
        return None
    x = np.array([row["x"] for row in rows], np.float64)
    y = np.array([row["y"] for row in rows], np.float64)
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _figure(values: Sequence[float]) -> dict[str, Any]:
    """Mean, interval and count of the runs' values."""
    if not values:
        return {"count": 0, "mean": None, "interval": None}
    interval = mean_interval(values)
    return {
        "count": len(values),
        "mean": float(f"{np.mean(values):.6g}"),
        "interval": None if interval is None else [float(f"{end:.6g}") for end in interval],
    }


def _names(runs: Sequence[RunFiles]) -> list[str]:
    """Metrics that any of the runs has."""
    return sorted({name for run in runs for name in run.metrics.last if name not in ("phase", "kind")})


def _plain(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)
