"""A run's progress as plain lines, of text or of JSON, for logs and pipes."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TextIO, cast

from rich.console import Console
from rich.text import Text

from apexrl.config.paths import from_here
from apexrl.errors import SnapshotError
from apexrl.links.printable import host_name
from apexrl.report.diagnostic_watch import DiagnosticWatch
from apexrl.report.number_format import clock, count, number
from apexrl.run.atomic_files import SilentStream
from apexrl.run.folder import env_name
from apexrl.run.identity import run_of
from apexrl.run.log_lines import LogFormat, json_line
from apexrl.run.ownership import Generations
from apexrl.run.status import Level, RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

LINE_PERIOD_SECONDS: Final = 5.0
BRIEF_CHARACTERS: Final = 90


def quiet(console: Console) -> SilentStream:
    """Make ``console`` raise nothing when its terminal is closed, which would interrupt Rich while it draws.

    Returns:
        The stream, whose ``check`` raises what happened.
    """
    output = SilentStream(cast("TextIO", console.file))
    console.file = cast("IO[str]", output)
    return output


class PlainLines:
    """Prints a line every five seconds, without colours or cursor movements.

    Args:
        log_format: ``json``: every line is an object with time, level, run, host, role, generation and text.
    """

    writes = "standard output"

    def __init__(self, console: Console, log_format: LogFormat = "text") -> None:
        self._console = console
        self._json = log_format == "json"
        self._labels: dict[str, Any] = {"run": "", "host": host_name(), "role": "supervisor", "generation": 0}
        self._output = quiet(console)
        self._printed_at = -math.inf
        self._phase = ""
        self._best = -math.inf
        self._diagnostics = DiagnosticWatch()
        self._mentioned: set[str] = set()
        self._status = RunStatus()

    def started(self, config: Config, folder: Path) -> None:
        self._diagnostics = DiagnosticWatch(config.agent)
        self._labels["run"] = run_of(config.name, folder, host_name())
        with suppress(OSError, SnapshotError):
            self._labels["generation"] = Generations(folder).newest_run
        self._print(f"apexrl  {title(config)}  ·  {from_here(folder)}")

    def update(self, status: RunStatus) -> None:
        self._status = status
        if status.best_eval_return is not None:
            self._best = status.best_eval_return
        now = time.monotonic()
        if now - self._printed_at >= LINE_PERIOD_SECONDS or status.phase != self._phase:
            self._printed_at, self._phase = now, status.phase
            self._print(line(status))
        self._diagnostics.update(status)
        names = {one.diagnostic.name for one in self._diagnostics.worst}
        if names - self._mentioned:  # each once
            self._mentioned |= names
            self._print(f"{clock(status.shown_seconds)}  {self._diagnostics.line()}")

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        final = bool(values.get("final"))
        if kind == "evaluation":
            self._diagnostics.evaluated(values)
        if kind == "evaluation" and (final or values["mean"] > self._best):  # the status lines show the others
            self._best = max(self._best, values["mean"])
            again = f"{values.get('weights', 'best')} weights on fresh seeds"
            name = again if final else "best evaluation so far"
            spread = f" ± {values['std']:.2f}" if "std" in values else ""
            count = values.get("episodes")
            episodes = "" if count is None else f" over {count} episode{'s' * (count != 1)}"
            self._print(f"{clock(self._status.shown_seconds)}  {name}: return {values['mean']:.2f}{spread}{episodes}")

    def message(self, text: str, level: Level = "info") -> None:
        if self._json:
            self._print(text, level)
        else:
            prefix = "" if level == "info" else f"{level}: "
            self._print(f"{clock(self._status.shown_seconds)}  {prefix}{brief(text, level)}")

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._print(closing_line(summary).plain, "error" if summary.get("stopped_by") == "error" else "info")

    def _print(self, text: str, level: Level = "info") -> None:
        self._console.print(Text(json_line(level, text, self._labels) if self._json else text), soft_wrap=True)
        self._console.file.flush()
        self._output.check()


def title(config: Config) -> str:
    """Environment, topology, agent and seed of a run."""
    what = config.preset or env_name(config)
    recipe = f"  ·  recipe {config.recipe}" if config.recipe != "none" else ""
    return f"{what}  ·  {config.topology} {config.agent.agent}{recipe}  ·  seed {config.seed}"


def line(status: RunStatus) -> str:
    """One status as one line of text."""
    here = {worker.role for worker in status.workers}
    learns_here = "uplink" not in here or "learner" in here
    parts = [
        clock(status.shown_seconds),
        f"{status.phase:<10}",
        f"steps {count(status.env_steps)} ({count(status.env_steps_per_second)}/s)",
        *([f"updates {count(status.updates)} ({count(status.updates_per_second)}/s)"] if learns_here else ()),
        f"return {number(status.train_return)}",
        *([f"eval {number(status.eval_return)} (best {number(status.best_eval_return)})"] if learns_here else ()),
    ]
    if status.replay_capacity:  # of a topology with a replay, once it exists
        parts.append(f"replay {status.replay_size / status.replay_capacity:.0%}")
        parts.append(f"updates/step {status.updates_per_step:.3g}")
    if learns_here:
        parts.append(f"lag {number(status.policy_lag.mean)}")
    if lost := losses(status):
        parts.append(lost.plain)
    if status.trouble:
        parts.append(weights_behind(status))
    if status.eta_seconds is not None and not status.ending_seconds:
        parts.append(f"{clock(status.eta_seconds)} left")
    return "  ".join(parts)


def closing_line(summary: Mapping[str, Any]) -> Text:
    """A sentence on the end of the run."""
    stopped_by = str(summary.get("stopped_by", "?"))
    ends = {
        "stop_at_return": "the return was reached",
        "env_steps": "all environment steps were made",
        "updates": "all learner updates were made",
        "minutes": "the time was up",
        "callback": "a callback asked for it",
        "interrupted": "it was interrupted",
        "stopped": "apexrl stop asked for it",
        "finished": "the learner's run is over",
        "drained": "apexrl drain asked for it",
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
    learned = updates or (summary.get("policy_lag") or {}).get("steps")  # who learns beside the first counts no updates
    if stopped_by != "error" and not learned and "updates" in summary and not summary.get("hosts"):
        why = "there was no batch yet (--batch-size; a prioritized replay first holds --min-size items)"
        if any((summary.get("restarts") or {}).values()):
            why += ", and workers failed meanwhile, as the warnings say"
        words += f"; nothing was learned: {why}"
    best, last = summary.get("final_eval_return"), summary.get("last_weights_return")
    if best is not None:
        count = summary.get("final_eval_episodes")
        words += f"; return over {count} fresh episode{'s' * (count != 1)}: best weights {number(best)}"
        words += "" if last is None else f", last weights {number(last)}"
    elif (trained := summary.get("train_return")) is not None and not summary.get("hosts"):
        words += f"; no final evaluation; the last training episodes returned {number(trained)}"
    return Text.assemble(begin, words)


def brief(text: str, level: Level) -> str:
    """The first line of an error, which is raised in full where the run was started; other texts unchanged."""
    if level != "error":
        return text
    first = (text.partition("Traceback (most recent call last)")[0].strip().splitlines() or [text])[0]
    return textwrap.shorten(first, BRIEF_CHARACTERS, placeholder=" …")


def losses(status: RunStatus) -> Text | None:
    """Restarts and dropped data; None: there were none."""
    found = [f"{n} restart{'s' * (n > 1)} of {role}" for role, n in status.restarts.items() if n]
    if given_up := sum(worker.state == "failed" for worker in status.workers):
        found.append(f"{given_up} given up")
    found += [f"{count(n)} {what.replace('_', ' ')} dropped" for what, n in status.dropped.items() if n]
    return Text("  ".join(found), style="yellow") if found else None


def weights_behind(status: RunStatus) -> str:
    behind = f"{count(status.hosts['weights_behind'])} versions behind: " if "weights_behind" in status.hosts else ""
    return f"weights of other hosts: {behind}{status.trouble}"
