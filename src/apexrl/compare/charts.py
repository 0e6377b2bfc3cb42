"""The pictures of a comparison: return against environment steps and against time, policy lag, throughput."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from apexrl.compare.outcome import Outcome
from apexrl.compare.plan import Plan
from apexrl.report.curves import GREY, STYLE, short
from apexrl.report.mean_lines import mean_line
from apexrl.report.number_format import count, number
from apexrl.run.atomic_files import replacing
from apexrl.run.folder import env_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

Runs = Mapping[str, Sequence[Outcome]]
"""Label of an arm -> its runs; those that failed, and arms without runs, are drawn nowhere."""

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")
"""Okabe and Ito's, which people who are colour-blind can tell apart."""
DASHES: Final = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
"""For the second and the third seven arms."""

PICTURES: Final = {
    "return-env-steps.png": "Return against environment steps",
    "return-time.png": "Return against time",
    "policy-lag.png": "Policy lag",
    "throughput.png": "Throughput",
}


def draw(runs: Runs, plan: Plan, out: Path) -> list[Path]:
    """Draw all that there is something to show of; returns the files, whole ones each."""
    from matplotlib import rc_context

    runs = {label: done for label, each in runs.items() if (done := [run for run in each if not run.failure])}
    drawing: Mapping[str, Callable[[Runs, Plan], Figure | None]] = dict(
        zip(PICTURES, (partial(returns, by_time=False), partial(returns, by_time=True), lag, throughput), strict=True)
    )
    paths = []
    for name, of in drawing.items():
        with rc_context(STYLE):
            figure = of(runs, plan)
            if figure is None:
                continue
            with replacing(out / name) as temporary:
                figure.savefig(temporary, dpi=130, format="png")
        paths.append(out / name)
    return paths


def returns(runs: Runs, plan: Plan, by_time: bool) -> Figure | None:
    """Evaluations: thin lines the seeds, a bold one their mean, as far as all of them go."""
    drawn = {label: curves for label, each in runs.items() if (curves := [run.curve for run in each if run.curve])}
    if not drawn:
        return None
    longest = max(run.seconds for each in runs.values() for run in each)
    scale, unit = ((60.0, "minutes") if longest >= 180 else (1.0, "seconds")) if by_time else (1.0, "")
    figure, axes = _figure(10.0, 5.4)
    if plan.goal is not None:
        axes.axhline(plan.goal, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(f"goal {plan.goal:g}", (1.0, plan.goal), xycoords=("axes fraction", "data"), fontsize=9,
                      color=GREY, ha="right", va="bottom", xytext=(0, 2), textcoords="offset points")  # fmt: skip
    colours = _colours(runs)
    for label, curves in drawn.items():
        lines = [_line(curve, by_time, scale) for curve in curves]
        if len(lines) > 1:
            for x, y in lines:
                axes.plot(x, y, color=colours[label][0], linestyle=colours[label][1], linewidth=0.9, alpha=0.3)
        x, y = mean_line(lines)
        # one evaluation is no line
        marker = "o" if len(x) < 2 else ""
        axes.plot(x, y, color=colours[label][0], linestyle=colours[label][1], linewidth=2.2, marker=marker, label=label)
    against = f"{unit} of training" if by_time else "environment steps"
    many = max(len(each) for each in drawn.values()) > 1
    axes.set(xlabel=against, ylabel="mean return of an evaluation")
    axes.set_title(_title(plan, "bold: mean of the seeds, as far as all go; thin: each seed" if many else ""))
    axes.set_xlim(left=0)
    axes.margins(x=0.02)
    axes.xaxis.set_major_formatter(short)
    figure.legend(loc="outside right upper", fontsize=9)
    return figure


def lag(runs: Runs, plan: Plan) -> Figure | None:
    """Bars up to the mean, a diamond at the 95th percentile, a stroke at the maximum; logarithmic above 1."""
    known = {label: found for label, each in runs.items() if (found := [r for r in each if r.lag_mean is not None])}
    if not known:
        return None
    figure, axes = _figure(9.0, 1.5 + 0.42 * len(known))
    colours = _colours(runs)
    kinds: tuple[tuple[str, str, Callable[[Outcome], float | None]], ...] = (
        ("D", "95th percentile", lambda run: run.lag_p95),
        ("|", "maximum", lambda run: run.lag_max),
    )
    for place, (label, each) in enumerate(known.items()):
        mean = float(np.mean([run.lag_mean for run in each if run.lag_mean is not None]))
        axes.barh(place, mean, height=0.62, color=colours[label][0], alpha=0.75)
        for marker, word, of in kinds:
            values = [value for run in each if (value := of(run)) is not None]
            axes.plot(values, [place] * len(values), marker=marker, linestyle="", color="#202020", markersize=7,
                      markerfacecolor="white", label=word, clip_on=False)  # fmt: skip
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(short)
    axes.set_title(_title(plan, "policy lag"))
    axes.set_xlabel("learner updates between the policy that acted and the one that learned")
    _rows(axes, list(known))
    from matplotlib.patches import Patch

    handles = [Patch(color=GREY, alpha=0.75, label="mean"), *axes.lines[: len(kinds)]]
    figure.legend(handles=handles, loc="outside lower right", fontsize=9, ncols=3)
    return figure


def throughput(runs: Runs, plan: Plan) -> Figure | None:
    """Environment steps, steps learned from and learner updates per second: bars the mean, dots the seeds."""
    kinds: dict[str, Callable[[Outcome], float | None]] = {
        "environment steps per second": lambda run: run.env_steps_per_second,
        "learned steps per second": lambda run: run.learned_steps_per_second,
        "updates per second": lambda run: run.updates_per_second,
    }
    kinds = {
        title: of for title, of in kinds.items() if any(of(run) is not None for each in runs.values() for run in each)
    }
    if not kinds:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 3.4 * len(kinds), 1.4 + 0.42 * len(runs)), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    colours = _colours(runs)
    for axes, (title, of) in zip(panels, kinds.items(), strict=True):
        means = []
        for place, (label, each) in enumerate(runs.items()):
            values = [value for run in each if (value := of(run)) is not None]
            means.append(float(np.mean(values)) if values else 0.0)
            axes.barh(place, means[-1], height=0.62, color=colours[label][0], alpha=0.75)
            if len(values) > 1:
                axes.plot(values, [place] * len(values), "o", color="#202020", markersize=3)
            reach = max([means[-1], *values])
            axes.annotate(_rate(means[-1]) if values else "not known", (reach, place), xytext=(6, 0), fontsize=9,
                          textcoords="offset points", va="center", color="#404040")  # fmt: skip
        axes.set_title(title)
        axes.set_xlim(0, 1.3 * max([*means, 1e-9]))
        axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter(short)
        _rows(axes, list(runs))
    figure.suptitle(_title(plan, ""), x=0.012, ha="left", fontsize=11, color="#202020")
    return figure


def _line(
    curve: Sequence[tuple[int, float, float]], by_time: bool, scale: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points = np.asarray(curve, np.float64)
    points = points[np.argsort(points[:, int(by_time)], kind="stable")]
    return points[:, int(by_time)] / scale, points[:, 2]


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    # a Figure of its own, not pyplot: no global state, no display, whatever backend the user has chosen
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    """A row an arm, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(False, axis="y")


def _colours(runs: Runs) -> dict[str, tuple[str, Any]]:
    """Colour and dashes of each arm, the same in every picture."""
    seven = len(COLOURS)
    return {label: (COLOURS[i % seven], DASHES[i // seven % len(DASHES)]) for i, label in enumerate(runs)}


def _title(plan: Plan, what: str) -> str:
    seeds = f"{len(plan.seeds)} seeds" if len(plan.seeds) > 1 else "one seed"
    return "  ·  ".join(part for part in (env_name(plan.config), seeds, what) if part)


def _rate(value: float) -> str:
    return count(value) if value >= 100 else number(value)
