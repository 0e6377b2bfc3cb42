"""``learning_curve.png``: what a run learned, when, and how fast the machine was, from its ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apexrl.files import replacing
from apexrl.metrics import read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]

GREEDY, TRAINING, SPEED, LAG, GREY = "#0b6e4f", "#3a6ea5", "#b8632a", "#7a4f9a", "#6b6b6b"

_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b0b0b0",
    "axes.labelcolor": "#404040",
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titlecolor": "#202020",
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": "#606060",
    "ytick.color": "#606060",
    "legend.frameon": False,
}


def learning_curve(metrics: Path, target: Path, title: str = "", goal: float | None = None) -> bool:
    """Draw the curve of one run.

    Args:
        metrics: a ``metrics.jsonl``.
        target: the PNG, replaced whole.
        title: above everything.
        goal: the return at which the run stops, drawn as a line.

    Returns:
        False, and nothing drawn, when no status was ever logged.
    """
    rows = read_rows(metrics) if metrics.exists() else []
    status = [row for row in rows if row.get("kind") == "status"]
    greedy = [row for row in rows if row.get("kind") == "evaluation"]
    if not status:
        return False
    figure = _draw(status, greedy, title, goal)
    with replacing(target) as temporary:
        figure.savefig(temporary, dpi=130, format="png")
    return True


def _draw(status: Rows, evaluations: Rows, title: str, goal: float | None) -> Figure:
    # a Figure of its own, not pyplot: no global state, no display, whatever backend the user has chosen
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        evaluations = [
            {**row, "wall_seconds": _reached(row, status)} if row.get("final") else row for row in evaluations
        ]
        figure = Figure(figsize=(10.5, 7.2), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(2.1, 1))
        top, bottom = halves
        by_steps, by_time = top.subplots(1, 2, sharey=True)
        speed, updates, lag = bottom.subplots(1, 3)
        _returns(by_steps, status, evaluations, "env_steps", 1.0, goal)
        longest = max(row["wall_seconds"] for row in [*status, *evaluations])
        scale, unit = (60.0, "minutes") if longest >= 180 else (1.0, "seconds")
        _returns(by_time, status, evaluations, "wall_seconds", scale, goal)
        by_steps.set(xlabel="environment steps", ylabel="return of an episode")
        by_time.set(xlabel=f"{unit} of training")
        by_steps.xaxis.set_major_formatter(_short)
        if by_steps.get_legend_handles_labels()[1]:
            by_steps.legend(loc="best", fontsize=9)
        times = [row["wall_seconds"] / scale for row in status]
        _small(speed, times, status, {"env_steps_per_second": ("", SPEED)}, "environment steps per second")
        _small(updates, times, status, {"updates_per_second": ("", TRAINING)}, "learner updates per second")
        lags = {"policy_lag_p95": ("95 %", "#c3a9d6"), "policy_lag_mean": ("mean", LAG)}
        _small(lag, times, status, lags, "policy lag, in learner updates")
        for axes in (speed, updates, lag):
            axes.set_xlabel(unit)
        if title:
            figure.suptitle(title, x=0.012, ha="left", fontsize=13, color="#202020")
    return figure


def _returns(axes: Axes, status: Rows, evaluations: Rows, key: str, scale: float, goal: float | None) -> None:
    """Training episodes faintly with their moving average; greedy evaluations boldly; the final one as a star."""
    if goal is not None:
        axes.axhline(goal, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(f"goal {goal:g}", (0.0, goal), xycoords=("axes fraction", "data"), fontsize=9, color=GREY,
                      ha="left", va="bottom", xytext=(4, 2), textcoords="offset points")  # fmt: skip
    x, y = _points(status, key, "train_return", scale)
    if y:
        axes.plot(x, y, color=TRAINING, alpha=0.25, linewidth=1)
        axes.plot(
            x, moving_average(y, max(3, len(y) // 12)), color=TRAINING, linewidth=1.4, label="training, exploring"
        )
    x, y = _points([row for row in evaluations if not row.get("final")], key, "mean", scale)
    if y:
        marker = "o" if len(y) <= 80 else ""
        axes.plot(x, y, color=GREEDY, linewidth=2, marker=marker, markersize=3.5, label="greedy evaluation")
    x, y = _points([row for row in evaluations if row.get("final")][-1:], key, "mean", scale)
    if y:
        label = f"final evaluation: {y[0]:.4g}"
        axes.plot(x, y, color=GREEDY, marker="*", markersize=14, markeredgecolor="white", linestyle="", label=label,
                  clip_on=False, zorder=5)  # fmt: skip
    axes.set_xlim(left=0)
    axes.margins(x=0.02)


def _small(axes: Axes, times: list[float], status: Rows, series: dict[str, tuple[str, str]], title: str) -> None:
    axes.set_title(title)
    drawn = False
    for name, (label, colour) in series.items():
        points = [(t, row[name]) for t, row in zip(times, status, strict=True) if row.get(name) is not None]
        if points:
            drawn = True
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.3, label=label or None)
    if drawn and len(series) > 1:
        axes.legend(loc="best", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(_short)


def _points(rows: Rows, key: str, value: str, scale: float) -> tuple[list[float], list[float]]:
    kept = [row for row in rows if row.get(value) is not None and row.get(key) is not None]
    return [row[key] / scale for row in kept], [row[value] for row in kept]


def _reached(evaluation: dict[str, Any], status: Rows) -> float:
    """Seconds of training after which the run was as far as the weights that were measured: the best of a run, which
    are measured once more at its end."""
    steps = evaluation["env_steps"]
    before: dict[str, Any] = {"env_steps": 0, "wall_seconds": 0.0}
    for row in status:
        if row["env_steps"] >= steps:
            share = (steps - before["env_steps"]) / max(1, row["env_steps"] - before["env_steps"])
            reached = before["wall_seconds"] + max(0.0, share) * (row["wall_seconds"] - before["wall_seconds"])
            return min(float(reached), float(evaluation["wall_seconds"]))
        before = row
    return float(evaluation["wall_seconds"])


def _short(value: float, _: Any = None) -> str:
    """12 000 as 12k."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def moving_average(values: Sequence[float], width: int) -> list[float]:
    """Centred average over ``width`` values, over fewer at the ends; as many values as were given."""
    half = width // 2
    return [
        sum(window) / len(window) for i in range(len(values)) if (window := values[max(0, i - half) : i + half + 1])
    ]
