"""The live panel of a run on a terminal.

It draws at most twice a second, so that the cores stay with the run.
"""

from __future__ import annotations

import errno
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apexrl.config.paths import from_here
from apexrl.report.diagnostic_watch import DiagnosticWatch
from apexrl.report.number_format import clock, count, number, sparkline
from apexrl.report.plain_lines import PlainLines, brief, closing_line, losses, quiet, title, weights_behind
from apexrl.report.table_parts import columns_table, figures_table, fill_bar
from apexrl.run.log_lines import LogFormat
from apexrl.run.status import Level, Observer, RunStatus, WorkerStatus

if TYPE_CHECKING:
    from apexrl.config import Config, StopConfig

LIVE_PERIOD_SECONDS: Final = 0.5
ROWS_SHOWN: Final = 8
"""Largest number of actors with a row each; more are drawn as one dot each."""

_COLOURS: Final = {
    "starting": "cyan",
    "acting": "green",
    "learning": "green",
    "evaluating": "magenta",
    "serving": "green",
    "carrying": "green",
    "waiting": "yellow",
    "restarting": "yellow",
    "hung": "red",
    "stopped": "dim",
    "failed": "bold red",
}
_LEVELS: Final[dict[Level, str]] = {"info": "dim", "warning": "yellow", "error": "bold red"}


def panel(console: Console | None = None, log_format: LogFormat = "text") -> Observer:
    """The live panel when ``console`` (by default: standard output) is a terminal, else plain lines; JSON is always
    lines."""
    console = console or Console()
    drawn = log_format == "text" and console.is_terminal and not console.is_dumb_terminal
    return LivePanel(console) if drawn else PlainLines(console, log_format)


class LivePanel:
    """One panel, redrawn in place; messages scroll by above it."""

    writes = "the terminal"

    def __init__(self, console: Console) -> None:
        self._console = console
        self._output = quiet(console)
        self._view = View()
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._drawn_at = -math.inf

    def started(self, config: Config, folder: Path) -> None:
        self._view.began(config, folder)
        self._live.start()
        self._output.check()

    def update(self, status: RunStatus) -> None:
        self._view.status = status
        self._view.note_training()
        if time.monotonic() - self._drawn_at >= LIVE_PERIOD_SECONDS:
            self._draw()

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        self._view.note(kind, values)

    def message(self, text: str, level: Level = "info") -> None:
        if level == "info" and self._live.is_started:
            self._view.messages.append((text, level))
        else:
            self._console.print(Text(brief(text, level), style=_LEVELS[level]))
            self._output.check()

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._view.messages.clear()
        self._redraw()
        self._live.stop()
        self._console.print(closing_line(summary))
        self._output.check()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        if not self._console.is_terminal:  # Rich would draw nothing and raise nothing
            raise OSError(errno.EIO, "it is closed")
        self._redraw()
        self._output.check()

    def _redraw(self) -> None:
        # room for the terminal's own "^C": on a full line it would wrap and leave a stale border behind
        self._live.update(self._view.render(self._console.width - 2), refresh=True)


class View:
    """The contents of the panel: the status, its history and their layout."""

    def __init__(self) -> None:
        self.title = "apexrl"
        self.folder = ""
        self.status = RunStatus()
        self.train_returns: deque[float] = deque(maxlen=240)
        self.eval_returns: deque[float] = deque(maxlen=240)
        self.messages: deque[tuple[str, Level]] = deque(maxlen=3)
        self._stop: StopConfig | None = None
        self._noted_episodes = -1
        self._diagnostics = DiagnosticWatch()

    def began(self, config: Config, folder: Path) -> None:
        self.folder = str(from_here(folder))
        self._stop = config.stop
        self._diagnostics = DiagnosticWatch(config.agent)
        self.title = f"apexrl  {title(config)}"

    def note(self, kind: str, values: Mapping[str, Any]) -> None:
        if kind == "evaluation" and not values.get("final"):
            self._diagnostics.evaluated(values)
            self.eval_returns.append(float(values["mean"]))

    def note_training(self) -> None:
        status = self.status
        self._diagnostics.update(status)
        if status.train_return is not None and status.episodes != self._noted_episodes:
            self._noted_episodes = status.episodes
            self.train_returns.append(status.train_return)

    def render(self, width: int) -> RenderableType:
        """The panel for a terminal of ``width`` columns."""
        status = self.status
        parts: list[RenderableType] = [self._numbers(width), Text(""), self._workers(width)]
        if lost := losses(status):
            parts += [Text(""), lost]
        if unhealthy := self._diagnostics.line():
            parts += [Text(""), Text(unhealthy, style="yellow", no_wrap=True, overflow="ellipsis")]
        if status.trouble:
            parts.append(Text(weights_behind(status), style="yellow", overflow="fold"))
        parts += [Text(text, style=_LEVELS[level], overflow="fold") for text, level in self.messages]
        parts += [Text(""), self._goal()]
        return Panel(
            Padding(Group(*parts), (0, 1)),
            title=Text(self.title, style="bold"),
            title_align="left",
            subtitle=Text(self.folder, style="dim"),
            subtitle_align="left",
            border_style="red" if status.phase == "failed" else "blue",
            width=width,
        )

    def _numbers(self, width: int) -> Table:
        status = self.status
        room = max(8, min(40, width - 62))
        table = figures_table()
        train = Text(sparkline(self.train_returns, room), style="blue")
        greedy = Text.assemble((sparkline(self.eval_returns, room), "green"))
        if status.best_eval_return is not None:
            greedy.append(f"  best {number(status.best_eval_return)}", style="dim")
        table.add_row("return, training", number(status.train_return), train)
        table.add_row("return, eval", number(status.eval_return), greedy)
        table.add_row("env steps", count(status.env_steps), _rate(status.env_steps_per_second, "/s"))
        table.add_row("updates", count(status.updates), _rate(status.updates_per_second, "/s"))
        if status.replay_capacity:
            bar = fill_bar(status.replay_size, status.replay_capacity, room)
            table.add_row("replay", count(status.replay_size), bar)
            table.add_row("updates per step", f"{status.updates_per_step:.3g}", "")
        lag = status.policy_lag
        detail = f"p95 {number(lag.p95)}   max {number(lag.max)}  updates" if math.isfinite(lag.mean) else ""
        table.add_row("policy lag", number(lag.mean), Text(detail, style="dim"))
        if "learning_rate" in status.metrics:
            rate = f"{status.metrics['learning_rate']:.2e}"
            table.add_row("learning rate", rate, Text(_schedules(status), style="dim"))
        if status.inference:
            wait = f"{number(status.inference['wait_ms'])} ms to an answer"
            table.add_row("inference batch", number(status.inference["batch"]), Text(wait, style="dim"))
        return table

    def _workers(self, width: int) -> RenderableType:
        workers = self.status.workers
        actors = [worker for worker in workers if worker.work.counter == "env_steps"]
        rows = [worker for worker in workers if worker.work.counter != "env_steps"]
        crowded = len(actors) > ROWS_SHOWN
        rows += [w for w in actors if w.state in ("hung", "failed", "restarting")][:ROWS_SHOWN] if crowded else actors
        columns = ("worker", "state", "rate", "pid", "last sign of life")[: 5 if width >= 80 else 3]
        table = columns_table(columns, ("worker", "state"))
        for worker in rows:
            table.add_row(*_worker_row(worker)[: len(columns)])
        return Group(table, Text(""), _crowd(actors)) if crowded else table

    def _goal(self) -> RenderableType:
        status = self.status
        words = Text.assemble((f"{status.phase} ", "bold"), (clock(status.shown_seconds), ""))
        goals = goals_in_words(self._stop, status)
        if goals:
            words.append("   until " + goals, style="dim")
        if status.progress is None:
            return words
        line_ = Table.grid(padding=(0, 2))
        left = "" if status.eta_seconds is None else f"{status.progress:.0%}, {clock(status.eta_seconds)} left"
        line_.add_row(
            words,
            ProgressBar(total=1.0, completed=status.progress, width=16, complete_style="blue"),
            Text(left, style="dim"),
        )
        return line_


def goals_in_words(stop: StopConfig | None, status: RunStatus) -> str:
    """The stop rules of the run: ``return 475 or 10.0 min``; empty: only Ctrl-C stops it."""
    goals = []
    if stop is not None and stop.stop_at_return is not None:
        goals.append(f"return {stop.stop_at_return:g}")
    if stop is not None and stop.env_steps:
        goals.append(f"{count(stop.env_steps)} steps")
    if stop is not None and stop.updates:
        goals.append(f"{count(stop.updates)} updates")
    if stop is not None and stop.minutes:
        goals.append(f"{stop.minutes:g} min")
    return " or ".join(goals)


def _schedules(status: RunStatus) -> str:
    """ε of the actors and β, of an agent that has them."""
    known = status.metrics
    both = {"epsilon_mean", "epsilon_max"} <= known.keys()
    epsilon = "ε {epsilon_mean:.3f}   max {epsilon_max:.3f}   ".format_map(known) if both else ""
    return epsilon + ("β {beta:.2f}".format_map(known) if "beta" in known else "")


def _rate(value: float, unit: str) -> Text:
    return Text(f"{count(value)}{unit}", style="cyan")


def _worker_row(worker: WorkerStatus) -> tuple[RenderableType, ...]:
    state = Text.assemble((f"● {worker.state}", _COLOURS[worker.state]))
    if worker.restarts:
        state.append(f" ({worker.restarts})", style="yellow")
    rate = Text(f"{number(worker.rate)} {worker.work.unit}" if worker.rate else "–")
    age = worker.heartbeat_age_seconds
    seen = Text(f"{age:.1f} s ago", style="red" if age > 10 else "dim")
    return worker.name, state, rate, Text(str(worker.pid or "–"), style="dim"), seen


def _crowd(actors: Sequence[WorkerStatus]) -> RenderableType:
    """Many actors: one dot each, coloured by state, and the count of each state."""
    dots = Text.assemble(("actors ", "dim"))
    for worker in actors:
        dots.append("●", style=_COLOURS[worker.state])
    states: dict[str, int] = {}
    for worker in actors:
        states[worker.state] = states.get(worker.state, 0) + 1
    words = [Text(f"{n} {state}", style=_COLOURS[state]) for state, n in states.items()]
    words.append(Text(f"{number(sum(worker.rate for worker in actors))} steps/s together", style="dim"))
    return Group(dots, Columns(words, padding=(0, 2)))
