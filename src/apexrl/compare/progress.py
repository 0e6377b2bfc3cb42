"""Progress of a comparison on the console: a line for each run, live on a terminal, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from apexrl.compare import tables
from apexrl.compare.outcome import Outcome
from apexrl.compare.plan import Arm, Plan, several_agents, terms, told
from apexrl.compare.report import Report
from apexrl.report.number_format import clock, count, number
from apexrl.report.plain_lines import quiet
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

LIVE_PERIOD_SECONDS: Final = 0.5


class Progress:
    """Prints to ``console`` (None: standard output).

    Args:
        runs: number of runs of the comparison, with those that finished earlier.
    """

    def __init__(self, console: Console | None, runs: int) -> None:
        self._console = console or Console()
        if console is None:
            quiet(self._console)  # a closed terminal must not end the comparison
        self._runs = runs
        self._place = 0
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal

    def begins(self, plan: Plan, out: Path, there: int) -> None:
        self._print(Text.assemble(("apexrl compare  ", "bold"), terms(plan)))
        if words := several_agents(plan):
            self._print(Text(words, style="yellow"))
        for arm in plan.arms:
            if arm.put_aside:
                self._print(Text(f"equal terms: {tables.put_aside(arm)}", style="dim"))
        for label, why in plan.left_out.items():
            self._print(Text(f"left out: {told(label, why)}", style="yellow"))
        if there:
            self._print(Text(f"{there} of {self._runs} runs are in {out} already", style="dim"))
        self._place = there

    def looking(self) -> AbstractContextManager[object]:
        """A spinner while environment and agents are checked."""
        return self._console.status("checking environment and agents …") if self._live else nullcontext()

    @contextmanager
    def running(self, arm: Arm, seed: int) -> Iterator[RunLine]:
        """The line of one run."""
        self._place += 1
        head = f"{self._place}/{self._runs}  {arm.label}  seed {seed}"
        line = RunLine(self._console, head)
        try:
            yield line
        finally:
            line.close()

    def ends(self, report: Report, paths: Sequence[Path]) -> None:
        """Print the table and the paths of all files."""
        if report.interrupted:
            self._print(Text("interrupted; the same command resumes", style="yellow"))
        if report.outcomes:
            self._console.print()
            if self._console.is_terminal:
                self._console.print(tables.for_terminal(report, self._console.width))
            else:
                self._print(Text(tables.in_markdown(report)))
        for failed in report.failed:
            self._print(Text(tables.failure(failed), style="red"))
        self._print(Text("\n".join(str(path) for path in paths)))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


class RunLine(IdleObserver):
    """The line of one run, an ``Observer``: redrawn in place on a terminal, printed when it is over."""

    writes = "the terminal"

    def __init__(self, console: Console, head: str) -> None:
        self._console = console
        self._head = head
        self._drawn_at = time.monotonic()
        live = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None
        if self._live is not None:
            self._live.start()
            self._draw("starting")

    def update(self, status: RunStatus) -> None:
        if self._live is None or time.monotonic() - self._drawn_at < LIVE_PERIOD_SECONDS:
            return
        words = [
            clock(status.elapsed_seconds),
            status.phase,
            f"return {number(status.train_return)}, eval {number(status.eval_return)}",
            f"{count(status.env_steps)} steps, {count(status.env_steps_per_second)}/s",
        ]
        if status.eta_seconds is not None:
            words.append(f"{clock(status.eta_seconds)} left")
        self._draw("  ".join(words))

    def ended(self, outcome: Outcome) -> None:
        self.close()
        text = Text.assemble((self._head, "bold"), "  ")
        text.append(tables.in_words(outcome), style="red" if outcome.failure else "")
        self._console.print(text, soft_wrap=True, highlight=False)
        self._console.file.flush()

    def close(self) -> None:
        """Remove the live line; may be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, words: str) -> None:
        self._drawn_at = time.monotonic()
        if self._live is not None:
            text = Text.from_markup(f"[bold]{escape(self._head)}[/]  {escape(words)}", overflow="ellipsis")
            text.no_wrap = True
            text.truncate(max(8, self._console.width - 3), overflow="ellipsis")  # room for the terminal's own "^C"
            self._live.update(text, refresh=True)
