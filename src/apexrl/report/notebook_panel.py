"""The progress of a run in a notebook, by its own widgets: a bar, the main numbers, the curve of evaluations."""

from __future__ import annotations

import html
import importlib.util
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apexrl.config.paths import from_here
from apexrl.report.number_format import clock, count, number
from apexrl.report.plain_lines import brief, closing_line, title
from apexrl.run.status import Level, RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

PERIOD_SECONDS: Final = 0.5
WIDTH, HEIGHT = 480, 120
MOST_POINTS: Final = 240
"""Evaluations in the curve; of more, every second is left out, as often as it takes."""


def in_notebook() -> bool:
    """Whether this is a notebook's kernel that can show widgets; imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel") and importlib.util.find_spec("ipywidgets") is not None


class NotebookPanel:
    """Shows a run in the output of a notebook's cell. Drawn at most twice a second."""

    writes = "the notebook"

    def __init__(self) -> None:
        import ipywidgets

        self.title = ipywidgets.HTML("<b>apexrl</b>")
        self.bar = ipywidgets.FloatProgress(max=1.0, layout={"width": f"{WIDTH}px"})
        self.numbers = ipywidgets.HTML()
        self.curve = ipywidgets.HTML()
        self.messages = ipywidgets.HTML()
        self.box = ipywidgets.VBox([self.title, self.bar, self.numbers, self.curve, self.messages])
        self._means: list[tuple[float, float]] = []
        self._told: list[str] = []
        self._seconds = 0.0
        self._drawn_at = -math.inf

    def started(self, config: Config, folder: Path) -> None:
        from IPython.display import display

        self.title.value = f"<b>apexrl  {html.escape(title(config))}</b> {html.escape(str(from_here(folder)))}"
        display(self.box)  # type: ignore[no-untyped-call]

    def update(self, status: RunStatus) -> None:
        self._seconds = status.elapsed_seconds
        now = time.monotonic()
        if now - self._drawn_at < PERIOD_SECONDS:
            return
        self._drawn_at = now
        self.bar.value = status.progress or 0.0
        left = "" if status.eta_seconds is None else f", {clock(status.eta_seconds)} left"
        self.bar.description = status.phase
        shown = {
            "time": clock(status.shown_seconds) + left,
            "env steps": f"{count(status.env_steps)} ({count(status.env_steps_per_second)}/s)",
            "updates": f"{count(status.updates)} ({count(status.updates_per_second)}/s)",
            "return, training": number(status.train_return),
            "return, eval": f"{number(status.eval_return)}, best {number(status.best_eval_return)}",
            "workers": f"{sum(worker.pid is not None for worker in status.workers)}, restarts "
            f"{sum(status.restarts.values())}",
        }
        cells = "".join(f"<td><small>{name}</small><br>{value}&emsp;</td>" for name, value in shown.items())
        self.numbers.value = f"<table><tr>{cells}</tr></table>"

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        if kind != "evaluation" or values.get("final") or not math.isfinite(values["mean"]):
            return
        self._means.append((self._seconds, float(values["mean"])))
        if len(self._means) > MOST_POINTS:
            self._means = [*self._means[:-1:2], self._means[-1]]
        self.curve.value = curve(self._means)

    def message(self, text: str, level: Level = "info") -> None:
        prefix = "" if level == "info" else f"{level}: "
        self._told = [*self._told[-2:], html.escape(prefix + brief(text, level))]
        self.messages.value = "<br>".join(self._told)

    def finished(self, summary: Mapping[str, Any]) -> None:
        cut_short = {"error": "danger", "interrupted": "warning"}
        why = str(summary.get("stopped_by"))
        self.bar.bar_style = cut_short.get(why, "success")
        self.bar.description = why if why in cut_short else "done"
        if why not in cut_short:
            self.bar.value = 1.0
        self.messages.value = "<br>".join([*self._told, html.escape(closing_line(summary).plain)])


def curve(points: Sequence[tuple[float, float]]) -> str:
    """The returns of evaluations over the seconds of training, as an SVG picture."""
    seconds, means = zip(*points, strict=True)
    least, most, last = min(means), max(means), max(seconds[-1], 1.0)
    across, up = (WIDTH - 90) / last, (HEIGHT - 30) / ((most - least) or 1.0)
    line = " ".join(f"{60 + x * across:.1f},{HEIGHT - 20 - (y - least) * up:.1f}" for x, y in points)
    label = '<text x="{}" y="{}" font-size="11" fill="currentColor">{}</text>'.format
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="return of evaluations over time">'
        f'<polyline points="{line}" fill="none" stroke="#3f51b5" stroke-width="2"/>'
        + label(0, 16, number(most))
        + label(0, HEIGHT - 20, number(least))
        + label(60, HEIGHT - 4, "return of evaluations")
        + label(WIDTH - 60, HEIGHT - 4, clock(seconds[-1]))
        + "</svg>"
    )
