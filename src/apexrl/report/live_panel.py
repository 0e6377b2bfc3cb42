"""What a person sees while a run goes on: a live panel on a terminal, plain lines elsewhere.

Both are ``Observer``s and draw at most twice a second (lines: every five), so that the cores stay with the run.
"""

from __future__ import annotations

import errno
import itertools
import math
import textwrap
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TextIO, cast

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apexrl.run.atomic_files import Quiet
from apexrl.run.status import Level, Observer, RunStatus, WorkerStatus

if TYPE_CHECKING:
    from apexrl.config import Config, StopConfig

LIVE_PERIOD_SECONDS: Final = 0.5
LINE_PERIOD_SECONDS: Final = 5.0
ROWS_SHOWN: Final = 8
"""Actors with a row each; more are drawn as one cell each."""
BRIEF_CHARACTERS: Final = 90

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


def panel(console: Console | None = None) -> Observer:
    """The live panel when ``console`` (by default: standard output) is a terminal, else plain lines."""
    console = console or Console()
    return LivePanel(console) if console.is_terminal and not console.is_dumb_terminal else PlainLines(console)


def quiet(console: Console) -> Quiet:
    """Let ``console`` raise nothing where its terminal is gone: Rich would be left amid a drawing, and what could not
    be written would pile up. The answer says what happened."""
    output = Quiet(cast("TextIO", console.file))
    console.file = cast("IO[str]", output)
    return output


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
        if not self._console.is_terminal:  # any more: Rich would draw nothing, and say nothing
            raise OSError(errno.EIO, "it is gone")
        self._redraw()
        self._output.check()

    def _redraw(self) -> None:
        # room for the terminal's own "^C": on a full line it would wrap and leave a stale border behind
        self._live.update(self._view.render(self._console.width - 2), refresh=True)


class PlainLines:
    """A line now and then, without colours or cursor movements: for logs and pipes."""

    writes = "standard output"

    def __init__(self, console: Console) -> None:
        self._console = console
        self._output = quiet(console)
        self._printed_at = -math.inf
        self._phase = ""
        self._best = -math.inf
        self._status = RunStatus()

    def started(self, config: Config, folder: Path) -> None:
        view = View()
        view.began(config, folder)
        self._print(f"{view.title}  ·  {folder}")

    def update(self, status: RunStatus) -> None:
        self._status = status
        now = time.monotonic()
        if now - self._printed_at >= LINE_PERIOD_SECONDS or status.phase != self._phase:
            self._printed_at, self._phase = now, status.phase
            self._print(line(status))

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        final = bool(values.get("final"))
        if kind == "evaluation" and (final or values["mean"] > self._best):  # the others show in the status lines
            self._best = max(self._best, values["mean"])
            name = "final evaluation" if final else "best evaluation so far"
            spread = f" ± {values['std']:.2f}" if "std" in values else ""
            episodes = f" over {values['episodes']} episodes" if "episodes" in values else ""
            self._print(f"{clock(self._status.elapsed_seconds)}  {name}: return {values['mean']:.2f}{spread}{episodes}")

    def message(self, text: str, level: Level = "info") -> None:
        prefix = "" if level == "info" else f"{level}: "
        self._print(f"{clock(self._status.elapsed_seconds)}  {prefix}{brief(text, level)}")

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._print(closing_line(summary).plain)

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
        self._console.file.flush()
        self._output.check()


class View:
    """The panel's contents: history that a status does not hold, and how all is drawn."""

    def __init__(self) -> None:
        self.title = "apexrl"
        self.folder = ""
        self.status = RunStatus()
        self.train_returns: deque[float] = deque(maxlen=240)
        self.eval_returns: deque[float] = deque(maxlen=240)
        self.messages: deque[tuple[str, Level]] = deque(maxlen=3)
        self._stop: StopConfig | None = None
        self._noted_episodes = -1

    def began(self, config: Config, folder: Path) -> None:
        from apexrl.run.folder import env_name

        self.folder = str(folder)
        self._stop = config.stop
        what = config.preset or env_name(config)
        self.title = f"apexrl  {what}  ·  {config.topology} {config.agent.agent}  ·  seed {config.seed}"

    def note(self, kind: str, values: Mapping[str, Any]) -> None:
        if kind == "evaluation" and not values.get("final"):
            self.eval_returns.append(float(values["mean"]))

    def note_training(self) -> None:
        status = self.status
        if status.train_return is not None and status.episodes != self._noted_episodes:
            self._noted_episodes = status.episodes
            self.train_returns.append(status.train_return)

    def render(self, width: int) -> RenderableType:
        """Everything, for a terminal of ``width`` columns."""
        status = self.status
        parts: list[RenderableType] = [self._numbers(width), Text(""), self._workers(width)]
        if lost := _counted(status):
            parts += [Text(""), lost]
        if status.trouble:
            parts.append(Text(_weights_behind(status), style="yellow", overflow="fold"))
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
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", style="bold", no_wrap=True, min_width=9)
        table.add_column(no_wrap=True)
        train = Text(sparkline(self.train_returns, room), style="blue")
        greedy = Text.assemble((sparkline(self.eval_returns, room), "green"))
        if status.best_eval_return is not None:
            greedy.append(f"  best {number(status.best_eval_return)}", style="dim")
        table.add_row("return, training", number(status.train_return), train)
        table.add_row("return, greedy", number(status.eval_return), greedy)
        table.add_row("env steps", count(status.env_steps), _rate(status.env_steps_per_second, "/s"))
        table.add_row("updates", count(status.updates), _rate(status.updates_per_second, "/s"))
        if status.replay_capacity:
            fill = status.replay_size / status.replay_capacity
            bar = Table.grid(padding=(0, 1))
            bar.add_row(
                ProgressBar(total=1.0, completed=fill, width=room, complete_style="cyan", finished_style="cyan"),
                Text(f"{fill:4.0%} of {count(status.replay_capacity)}", style="dim"),
            )
            table.add_row("replay", count(status.replay_size), bar)
            table.add_row("samples per insert", number(status.samples_per_insert), "")
        lag = status.policy_lag
        detail = f"p95 {number(lag.p95)}   max {number(lag.max)}  updates" if math.isfinite(lag.mean) else ""
        table.add_row("policy lag", number(lag.mean), Text(detail, style="dim"))
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
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        columns = ("worker", "state", "rate", "pid", "last sign of life")[: 5 if width >= 80 else 3]
        for name in columns:
            table.add_column(name, justify="left" if name in ("worker", "state") else "right", no_wrap=True)
        for worker in rows:
            table.add_row(*_worker_row(worker)[: len(columns)])
        return Group(table, Text(""), _crowd(actors)) if crowded else table

    def _goal(self) -> RenderableType:
        status = self.status
        words = Text.assemble((f"{status.phase} ", "bold"), (clock(status.elapsed_seconds), ""))
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


def line(status: RunStatus) -> str:
    """One status as one line of text."""
    parts = [
        clock(status.elapsed_seconds),
        f"{status.phase:<10}",
        f"steps {count(status.env_steps)} ({count(status.env_steps_per_second)}/s)",
        f"updates {count(status.updates)} ({count(status.updates_per_second)}/s)",
        f"return {number(status.train_return)}",
        f"greedy {number(status.eval_return)} (best {number(status.best_eval_return)})",
    ]
    if status.replay_capacity:  # of a topology that has a replay, once it is there
        parts.append(f"replay {status.replay_size / status.replay_capacity:.0%}")
        parts.append(f"samples/insert {number(status.samples_per_insert)}")
    parts.append(f"lag {number(status.policy_lag.mean)}")
    if lost := _counted(status):
        parts.append(lost.plain)
    if status.trouble:
        parts.append(_weights_behind(status))
    if status.eta_seconds is not None:
        parts.append(f"{clock(status.eta_seconds)} left")
    return "  ".join(parts)


def goals_in_words(stop: StopConfig | None, status: RunStatus) -> str:
    """What ends the run: ``return 475 or 10.0 min``; empty when only Ctrl-C does."""
    goals = []
    if stop is not None and stop.stop_at_return is not None:
        goals.append(f"return {stop.stop_at_return:g}")
    if stop is not None and stop.env_steps:
        goals.append(f"{count(stop.env_steps)} steps")
    if stop is not None and stop.minutes:
        goals.append(f"{stop.minutes:g} min")
    return " or ".join(goals)


def closing_line(summary: Mapping[str, Any]) -> Text:
    """How the run ended, in a sentence."""
    stopped_by = str(summary.get("stopped_by", "?"))
    ends = {
        "stop_at_return": "the return was reached",
        "env_steps": "all environment steps were made",
        "minutes": "the time was up",
        "callback": "a callback asked for it",
        "interrupted": "you interrupted it",
        "stopped": "apexrl stop asked for it",
        "finished": "the learner's run is over",
        "replaced": "another run took its name",
        "lost slots": "other hosts have its slots now",
        "lost learner": "the learner stayed away",
        "actors failed": "its actors failed",
        "error": "of an error",
    }
    wall, steps, updates = (float(summary.get(key) or 0.0) for key in ("wall_seconds", "env_steps", "updates"))
    begin = ("Failed", "bold red") if stopped_by == "error" else ("Stopped", "bold green")
    words = (
        f" after {clock(wall)}, because {ends.get(stopped_by, stopped_by)}; {steps:,.0f} steps, {updates:,.0f} updates"
    )
    if stopped_by != "error" and not updates and "updates" in summary and not summary.get("hosts"):
        words += "; nothing was learned: there was no batch yet"
        words += " (--batch-size; a prioritized replay first holds --min-size items)"
    if summary.get("final_eval_return") is not None:
        words += f"; final greedy return {number(summary['final_eval_return'])}"
        words += f" over {summary.get('final_eval_episodes')} fresh episodes"
    return Text.assemble(begin, words)


def brief(text: str, level: Level) -> str:
    """An error ends the run and is raised whole where the run was started: how it begins is enough here."""
    if level != "error":
        return text
    first = (text.partition("Traceback (most recent call last)")[0].strip().splitlines() or [text])[0]
    return textwrap.shorten(first, BRIEF_CHARACTERS, placeholder=" …")


def sparkline(values: Sequence[float] | deque[float], width: int) -> str:
    """The last values as a line of ``width`` blocks from lowest to highest; averages when there are more."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    if len(finite) > width:
        edges = [round(i * len(finite) / width) for i in range(width + 1)]
        finite = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(finite), max(finite)
    blocks = "▁▂▃▄▅▆▇█"
    if high == low:
        return blocks[3] * len(finite)
    return "".join(blocks[round((value - low) / (high - low) * (len(blocks) - 1))] for value in finite)


def clock(seconds: float) -> str:
    """``mm:ss``, from an hour on ``h:mm:ss``."""
    whole = max(0, int(seconds)) if math.isfinite(seconds) else 0
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def count(value: float) -> str:
    """A count in four figures or so: 950, 12.3k, 1.25M."""
    if not math.isfinite(value):
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}{unit}" if abs(scaled) >= 10 else f"{scaled:.2f}{unit}"
    return f"{value:.0f}"


def number(value: float | None) -> str:
    """A measurement in about four figures; a dash for None and NaN."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e4:
        return count(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _rate(value: float, unit: str) -> Text:
    return Text(f"{count(value)}{unit}", style="cyan")


def _counted(status: RunStatus) -> Text | None:
    """Restarts and drops, only when there were any."""
    found = [f"{n} restart{'s' * (n > 1)} of {role}" for role, n in status.restarts.items() if n]
    if given_up := sum(worker.state == "failed" for worker in status.workers):
        found.append(f"{given_up} given up")
    found += [f"{count(n)} {what.replace('_', ' ')} dropped" for what, n in status.dropped.items() if n]
    return Text("  ".join(found), style="yellow") if found else None


def _weights_behind(status: RunStatus) -> str:
    behind = f"{count(status.hosts['weights_behind'])} versions behind: " if "weights_behind" in status.hosts else ""
    return f"weights of other hosts: {behind}{status.trouble}"


def _worker_row(worker: WorkerStatus) -> tuple[RenderableType, ...]:
    state = Text.assemble((f"● {worker.state}", _COLOURS[worker.state]))
    if worker.restarts:
        state.append(f" ({worker.restarts})", style="yellow")
    rate = Text(f"{number(worker.rate)} {worker.work.unit}" if worker.rate else "–")
    age = worker.heartbeat_age_seconds
    seen = Text(f"{age:.1f} s ago", style="red" if age > 10 else "dim")
    return worker.name, state, rate, Text(str(worker.pid or "–"), style="dim"), seen


def _crowd(actors: Sequence[WorkerStatus]) -> RenderableType:
    """Many actors: one dot each, coloured by state, and how many are in which."""
    dots = Text.assemble(("actors ", "dim"))
    for worker in actors:
        dots.append("●", style=_COLOURS[worker.state])
    states: dict[str, int] = {}
    for worker in actors:
        states[worker.state] = states.get(worker.state, 0) + 1
    words = [Text(f"{n} {state}", style=_COLOURS[state]) for state, n in states.items()]
    words.append(Text(f"{number(sum(worker.rate for worker in actors))} steps/s together", style="dim"))
    return Group(dots, Columns(words, padding=(0, 2)))
