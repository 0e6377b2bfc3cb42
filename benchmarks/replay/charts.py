"""The pictures of the replay benchmark. Medians are dots, ranges over the rounds bars."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.lib import report
from benchmarks.replay.bars import FLOOR, Figures, Infos

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PEERS = ["#c26a3d", "#7a5195", "#3f8f5b", "#b5527a", "#8c6d1f", "#5b7bb4"]


def color(name: str, infos: Infos) -> str:
    """apexrl in ours, prioritized peers in theirs, uniform ones faint."""
    if name == "apexrl":
        return report.OURS
    return report.THEIRS if infos[name]["prioritized"] else report.FAINT


def one_process(rates: Mapping[str, Figures], infos: Infos, title: str) -> Figure:
    """A panel an operation, a line a contestant; rates on logarithmic axes."""
    report.style()
    import matplotlib.pyplot as plt

    names = list(infos)
    figure, axes = plt.subplots(
        1, len(rates), sharey=True, figsize=(2.3 * len(rates) + 1.2, 0.9 + 0.32 * len(names)), layout="constrained"
    )
    for axis, (operation, figures) in zip(axes, rates.items(), strict=True):
        for place, name in enumerate(names):
            if figures.get(name):
                _dot(axis, figures[name], place, color(name, infos))
        unit = "transitions/s" if operation == "insert" else "batches/s"
        axis.set(xscale="log", xlabel=unit)
        axis.set_title(operation, fontsize=9)
        axis.margins(x=0.3)
        axis.minorticks_off()
        axis.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(names)), [infos[name]["title"] for name in names])
    for label, name in zip(axes[0].get_yticklabels(), names, strict=True):
        label.set_color(color(name, infos))
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    return figure


def _dot(axis: Axes, values: Sequence[float], place: int, shade: str) -> None:
    axis.plot([min(values), max(values)], [place, place], color=shade, linewidth=4, alpha=0.3, solid_capstyle="round")
    axis.plot(median(values), place, "o", color=shade, markersize=5)
    axis.annotate(
        report.short(median(values)),
        (median(values), place),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        color=shade,
        fontsize=7.5,
    )


def many_processes(windows: Mapping[str, Any], infos: Infos, title: str) -> Figure:
    """Learner and writers, over how the writers write."""
    report.style()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
    labels = list(windows)
    for axis, (key, what, unit) in zip(
        axes,
        (("learner", "Learner: sample + update", "batches/s"), ("inserts", "All writers: insert", "transitions/s")),
        strict=True,
    ):
        labels_at: list[list[tuple[float, str]]] = [[] for _ in labels]
        for name, shade in zip(infos, (report.OURS, *PEERS), strict=False):
            points = [(i, windows[label][key].get(name)) for i, label in enumerate(labels)]
            points = [(i, values) for i, values in points if values and min(values) > 0]
            unpaced = [(i, values) for i, values in points if not windows[labels[i]]["pace"]]
            axis.plot(
                [i for i, _ in unpaced], [median(v) for _, v in unpaced], "-", color=shade, label=infos[name]["title"]
            )
            for i, values in points:
                axis.plot([i, i], [min(values), max(values)], color=shade, linewidth=4, alpha=0.3)
                axis.plot(i, median(values), "o", color=shade, markersize=5)
                labels_at[i].append((median(values), shade))
        axis.set(yscale="log", title=what, ylabel=unit)
        axis.set_xticks(range(len(labels)), [re.sub(r" writers?(, )?", "\n", label).strip() for label in labels])
        axis.set_xlabel("writers")
        axis.margins(x=0.12, y=0.15)
        axis.grid(axis="x", visible=False)
        for i, values in enumerate(labels_at):
            _labels(axis, i, values)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    return figure


def _labels(axis: Axes, x: float, values: list[tuple[float, str]]) -> None:
    """Figures right of their dots, pushed apart where dots nearly coincide."""
    last = -1e9
    for value, shade in sorted(values):
        point = axis.transData.transform((x, value))[1] * 72 / axis.figure.dpi
        up = max(3.0, last + 9.0 - point)
        last = point + up
        axis.annotate(
            report.short(value), (x, value), xytext=(6, up), textcoords="offset points", color=shade, fontsize=7.5
        )


def sizes(rates: Mapping[int, Figures], infos: Infos, title: str) -> Figure:
    """Time of a batch over the number of rows."""
    report.style()
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    shades, markers = iter(PEERS), iter("^sv")
    for name, info in infos.items():
        points = [
            (size, [1e6 / rate for rate in figures[name]]) for size, figures in rates.items() if figures.get(name)
        ]
        shade = (
            report.OURS
            if name == "apexrl"
            else report.FAINT
            if not info["prioritized"]
            else next(shades, report.THEIRS)
        )
        for size, times in points:
            axis.plot([size, size], [min(times), max(times)], color=shade, linewidth=4, alpha=0.3)
        middles = [median(times) for _, times in points]
        marker = "o" if info["prioritized"] or name == FLOOR else next(markers, "D")
        axis.plot([size for size, _ in points], middles, f"{marker}-", color=shade, markersize=4, label=info["title"])
        if name == FLOOR:
            axis.plot(
                [size for size, _ in points],
                [3 * middle for middle in middles],
                "--",
                color=shade,
                linewidth=1,
                label=f"3 × {info['title']}",
            )
    axis.set(xscale="log", yscale="log", xlabel="rows", ylabel="µs for a batch of 512")
    axis.set_title(title)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return figure
