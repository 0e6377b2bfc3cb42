"""Pictures of a run, from its ``metrics.jsonl``: ``learning_curve.png``, what it learned, when, and how fast the
machine was; ``autotune.png``, what its auto-tuner tried; ``policy_lag.png``, how old was what it learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apexrl.roles.policy_lag import BINS
from apexrl.run.atomic_files import replacing
from apexrl.run.metrics import read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]

GREEDY, TRAINING, SPEED, LAG, GREY = "#0b6e4f", "#3a6ea5", "#b8632a", "#7a4f9a", "#6b6b6b"

STYLE: Any = {
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

    with rc_context(STYLE):
        evaluations = [
            {**row, "wall_seconds": _reached(row, status)} if row.get("final") else row for row in evaluations
        ]
        figure = Figure(figsize=(10.5, 7.2), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(2.1, 1))
        top, bottom = halves
        by_steps, by_time = top.subplots(1, 2, sharey=True)
        speed, updates, lag = bottom.subplots(1, 3)
        counter = "env_steps" if any(row.get("env_steps") for row in status) else "updates"
        _returns(by_steps, status, evaluations, counter, 1.0, goal)
        longest = max(row["wall_seconds"] for row in [*status, *evaluations])
        scale, unit = (60.0, "minutes") if longest >= 180 else (1.0, "seconds")
        _returns(by_time, status, evaluations, "wall_seconds", scale, goal)
        by_steps.set(
            xlabel={"env_steps": "environment steps", "updates": "learner updates"}[counter],
            ylabel="return of an episode",
        )
        by_time.set(xlabel=f"{unit} of training")
        by_steps.xaxis.set_major_formatter(short)
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
    """Training episodes faintly with their moving average; evaluations boldly; the best weights, measured again at the
    end, as a star, and the last ones as a diamond."""
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
        axes.plot(x, y, color=GREEDY, linewidth=2, marker=marker, markersize=3.5, label="evaluation")
    finals = [row for row in evaluations if row.get("final")]
    for weights, marker, size in (("best", "*", 14), ("last", "D", 7)):
        again = [row for row in finals if row.get("weights", "best") == weights][-1:]
        x, y = _points(again, key, "mean", scale)
        if y:
            label = f"{weights} weights, fresh seeds: {y[0]:.4g}"
            axes.plot(x, y, color=GREEDY, marker=marker, markersize=size, markeredgecolor="white", linestyle="",
                      label=label, clip_on=False, zorder=5)  # fmt: skip
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
    axes.yaxis.set_major_formatter(short)


def _points(rows: Rows, key: str, value: str, scale: float) -> tuple[list[float], list[float]]:
    kept = [row for row in rows if row.get(value) is not None and row.get(key) is not None]
    return [row[key] / scale for row in kept], [row[value] for row in kept]


def _reached(evaluation: dict[str, Any], status: Rows) -> float:
    """Seconds of training after which the run was as far as the weights that were measured: the best of a run, which
    are measured once more at its end."""
    counter = "env_steps" if evaluation["env_steps"] else "updates"
    steps = evaluation.get(counter, 0)
    before: dict[str, Any] = {counter: 0, "wall_seconds": 0.0}
    for row in status:
        if row[counter] >= steps:
            share = (steps - before[counter]) / max(1, row[counter] - before[counter])
            reached = before["wall_seconds"] + max(0.0, share) * (row["wall_seconds"] - before["wall_seconds"])
            return min(float(reached), float(evaluation["wall_seconds"]))
        before = row
    return float(evaluation["wall_seconds"])


def short(value: float, _: Any = None) -> str:
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


def tuning_picture(metrics: Path, target: Path, title: str = "") -> bool:
    """Draw what an auto-tuner tried: counts and throughput over time, and throughput against every count.

    Args:
        metrics: a ``metrics.jsonl``.
        target: the PNG, replaced whole.
        title: above everything.

    Returns:
        False, and nothing drawn, when no window was measured.
    """
    rows = read_rows(metrics) if metrics.exists() else []
    windows = [row for row in rows if row.get("kind") == "tuning" and row.get("rate") is not None]
    if not windows:
        return False
    figure = _draw_tuning(windows, title)
    with replacing(target) as temporary:
        figure.savefig(temporary, dpi=130, format="png")
    return True


def _draw_tuning(windows: Rows, title: str) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(windows[0]["setting"])
    colours = dict(zip(names, [TRAINING, SPEED, LAG, GREY] * len(names), strict=False))
    longest = windows[-1]["wall_seconds"]
    scale, unit = (60.0, "minutes") if longest >= 180 else (1.0, "seconds")
    times = [row["wall_seconds"] / scale for row in windows]
    with rc_context(STYLE):
        figure = Figure(figsize=(10.5, 5.6), layout="constrained")
        halves: Any = figure.subfigures(1, 2, width_ratios=(1.9, 1))
        counts, rates = halves[0].subplots(2, 1, sharex=True)
        for name in names:
            counts.plot(times, [row["best"][name] for row in windows], drawstyle="steps-post", color=colours[name],
                        linewidth=2, label=f"{name}: best so far")  # fmt: skip
            counts.plot(times, [row["setting"][name] for row in windows], "o", color=colours[name], alpha=0.4,
                        markersize=4, markeredgewidth=0, label=f"{name}: measured")  # fmt: skip
        counts.set_title("how many")
        most = max(count for row in windows for count in row["setting"].values())
        if len(names) > 1:  # few trainers beside many agents
            counts.set_yscale("log", base=2)
            counts.yaxis.set_major_formatter(short)
        counts.set_ylim(0.8 if len(names) > 1 else 0, 1.3 * most ** (1.2 if len(names) > 1 else 1))  # room for names
        counts.legend(loc="upper center", ncols=2 * min(2, len(names)), fontsize=8)
        rates.plot(times, [row["rate"] for row in windows], "o", color=GREY, alpha=0.5, markersize=4, markeredgewidth=0)
        won = [(t, row["rate"]) for t, row in zip(times, windows, strict=True) if row["verdict"] == "adopted"]
        if won:
            rates.plot(*zip(*won, strict=True), "o", color=GREEDY, markersize=6, label="another one is the best now")
        settled = [t for t, row in zip(times, windows, strict=True) if row["verdict"] == "settled"]
        for i, t in enumerate(settled):
            rates.axvline(t, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="" if i else "settled")
        if won or settled:
            rates.legend(loc="lower right", fontsize=8)
        rates.set_title("√(env steps/s · learner updates/s), a window each")
        rates.set(xlabel=f"{unit} of training")
        rates.set_ylim(bottom=0)
        rates.yaxis.set_major_formatter(short)
        panels = halves[1].subplots(len(names), 1, squeeze=False)[:, 0]
        for axes, name in zip(panels, names, strict=True):
            _rate_by_count(axes, windows, name, colours[name])
        panels[0].set_title("throughput by count")
        if title:
            figure.suptitle(title, x=0.012, ha="left", fontsize=13, color="#202020")
    return figure


def _rate_by_count(axes: Axes, windows: Rows, name: str, colour: str) -> None:
    """Every window, the mean of each count, and where the tuner ended."""
    from matplotlib.ticker import MaxNLocator

    by_count: dict[int, list[float]] = {}
    for row in windows:
        by_count.setdefault(row["setting"][name], []).append(row["rate"])
    for count, rates in by_count.items():
        axes.plot([count] * len(rates), rates, "o", color=colour, alpha=0.3, markersize=4, markeredgewidth=0)
    means = {count: sum(rates) / len(rates) for count, rates in sorted(by_count.items())}
    axes.plot(list(means), list(means.values()), "-", color=colour, linewidth=1.4)
    best = windows[-1]["best"][name]
    if best in means:
        axes.plot(best, means[best], marker="*", markersize=14, color=GREEDY, markeredgecolor="white")
    axes.set_xlabel(name)
    axes.set_xlim(0, 1.08 * max(by_count))
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(short)


_LAG_COLUMNS = 160  # of the picture of policy lag over time, at most
_LEAST_SPAN = 0.1  # of its time axis: a run may have ended when it had hardly begun


def policy_lag(metrics: Path, target: Path, title: str, known: Mapping[str, Any], limit: int = 0) -> bool:
    """Draw how old the policy was that chose the steps learned from: over time, and in all.

    Args:
        metrics: a ``metrics.jsonl``.
        target: the PNG, replaced whole.
        title: above everything.
        known: ``policy_lag`` of the run's summary.
        limit: ``max_policy_lag``; 0: none.

    Returns:
        False, and nothing drawn, when nothing was learned from.
    """
    rows = read_rows(metrics) if metrics.exists() else []
    rows = [row for row in rows if row.get("policy_lag_histogram")]
    if not rows or not known.get("histogram"):
        return False
    figure = _draw_lag(rows, title, known, limit)
    with replacing(target) as temporary:
        figure.savefig(temporary, dpi=130, format="png")
    return True


def _draw_lag(rows: Rows, title: str, known: Mapping[str, Any], limit: int) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    whole = _by_bin(known["histogram"])
    parts = [_by_bin(row["policy_lag_histogram"]) for row in rows]
    used = [i for counts in (whole, *parts) for i, count in enumerate(counts) if count]
    top = max(*used, int(_place(limit))) + 1
    with rc_context(STYLE):
        figure = Figure(figsize=(10.5, 4.4), layout="constrained")
        over_time, in_all = figure.subplots(1, 2, sharey=True, width_ratios=(2.3, 1))
        _lag_over_time(over_time, rows, parts, top)
        shares = [100.0 * count / sum(whole) for count in whole[:top]]
        in_all.barh(range(top), shares, height=0.9, align="edge", color=LAG)
        in_all.set_title(f"mean {known['mean']:.3g},  95 % {known['p95']:g},  max {known['max']:g}")
        in_all.set(xlabel="% of all steps learned from")
        in_all.grid(axis="y", visible=False)
        in_all.tick_params(axis="y", length=0)
        if limit:
            for axes in (over_time, in_all):
                axes.axhline(_place(limit + 1), color=GREY, linewidth=1, linestyle=(0, (4, 3)))
            at = (1.0, _place(limit + 1))
            in_all.annotate(f"limit {limit}", at, xycoords=("axes fraction", "data"), ha="right", va="bottom",
                            fontsize=9, color=GREY, xytext=(-2, 2), textcoords="offset points")  # fmt: skip
        marks = [value for value in (0, *(2**k for k in range(17))) if value < BINS[min(top, len(BINS) - 1)]]
        over_time.set_yticks([_place(value + 0.5) for value in marks], [short(value) for value in marks])
        over_time.set(ylabel="lag, in learner updates", ylim=(0, top))
        if title:
            figure.suptitle(title, x=0.012, ha="left", fontsize=13, color="#202020")
    return figure


def _lag_over_time(axes: Axes, rows: Rows, parts: list[list[int]], top: int) -> None:
    """A column for each while, darker where more of its steps lie; mean and 95th percentile as lines over it."""
    from matplotlib.colors import LinearSegmentedColormap

    longest = rows[-1]["wall_seconds"]
    scale, unit = (60.0, "minutes") if longest >= 180 else (1.0, "seconds")
    width = -(-len(rows) // _LAG_COLUMNS)
    groups = [range(start, min(start + width, len(rows))) for start in range(0, len(rows), width)]
    ends = [rows[group[-1]]["wall_seconds"] / scale for group in groups]
    edges = [max(0.0, 2 * ends[0] - ends[1]) if len(ends) > 1 else 0.0, *ends]
    edges[-1] = max(edges[-1], edges[0] + _LEAST_SPAN)
    columns = [[sum(parts[i][b] for i in group) for b in range(top)] for group in groups]
    shares = [[100.0 * column[b] / sum(column) for column in columns] for b in range(top)]
    colours = LinearSegmentedColormap.from_list("lag", ["#ffffff", "#d6c4e6", LAG, "#351a4d"])
    mesh = axes.pcolormesh(edges, range(top + 1), shares, cmap=colours, vmin=0.0, rasterized=True)
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.01, aspect=30)
    bar.set_label("% of the steps then", fontsize=9)
    bar.outline.set_visible(False)
    times = [row["wall_seconds"] / scale for row in rows]
    for name, label, dashes in (("policy_lag_mean", "mean", "-"), ("policy_lag_p95", "95 %", (0, (4, 2)))):
        points = [(t, _place(row[name] + 0.5)) for t, row in zip(times, rows, strict=True) if row[name] is not None]
        line = axes.plot(*zip(*points, strict=True), color="#202020", linewidth=1.2, linestyle=dashes, label=label)[0]
        line.set_marker("o" if len(points) == 1 else "")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=9, borderaxespad=0.2)
    axes.set(xlabel=f"{unit} of training", xlim=(edges[0], edges[-1]))
    axes.grid(visible=False)


def _by_bin(histogram: Mapping[str, int]) -> list[int]:
    """Steps of every bin, in order."""
    counts = {int(least): count for least, count in histogram.items()}
    return [counts.get(least, 0) for least in BINS]


def _place(lag: float) -> float:
    """Where a lag lies on an axis on which all bins are equally high: bin i from i to i + 1."""
    for i in range(len(BINS) - 1):
        if lag < BINS[i + 1]:
            return float(i + (lag - BINS[i]) / (BINS[i + 1] - BINS[i]))
    return float(len(BINS) - 1)
