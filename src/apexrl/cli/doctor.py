"""``apexrl doctor``: prints the likeliest causes of bad learning in a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from apexrl.cli.exit_codes import FAILED, FOUND, OK
from apexrl.report.diagnosis import diagnose
from apexrl.report.diagnosis.finding import Cause
from apexrl.report.diagnosis.recorded_run import METRICS, RunRecord

if TYPE_CHECKING:
    from rich.console import Console


def examine(path: str, as_json: bool, console: Console) -> int:
    """Print what is wrong with the run in ``path``.

    Returns:
        The exit code: whether a cause was named, or nothing was measured.

    Raises:
        ConfigError: there is no run.
        SnapshotError: a file of it cannot be read.
    """
    record = RunRecord.of(path)
    causes = diagnose(record)
    if as_json:
        found = [
            {
                "cause": cause.name,
                "title": cause.title,
                "confidence": cause.confidence,
                "evidence": [one._asdict() for one in cause.evidence],
                "change": cause.change,
            }
            for cause in causes
        ]
        rose = {"learned": round(record.learned, 2), "risen": round(record.risen, 2)}
        print(json.dumps({"run": path, **rose, "causes": found}, indent=2))
    else:
        _show(path, record, causes, console)
    return FOUND if causes else OK if record.rows else FAILED


def _show(path: str, record: RunRecord, causes: Sequence[Cause], console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from apexrl.report.number_format import count

    what = f"{record.agent}, {count(record.env_steps)} steps, {count(record.updates)} updates"
    console.print(Text.assemble((path, "bold"), f"  ·  {what}"))
    console.print(Text(_progress(record), style="dim"))
    if not (causes or record.rows):
        console.print(Text(f"\nNothing can be said: {METRICS} is missing or holds no metrics yet.", style="bold"))
        return
    if not causes:
        console.print(Text("\nNothing looks wrong.", style="bold green"))
        if not record.rose:
            console.print(Text("The returns did not rise clearly: train longer, or compare agents (apexrl compare)."))
        return
    for place, cause in enumerate(causes, 1):
        sure = ("likely", "bold red") if cause.likely else ("possible", "yellow")
        console.print(Text.assemble(f"\n{place}. ", (cause.title, "bold"), "  ", sure, f" ({cause.confidence:.2f})"))
        for one in cause.evidence:
            console.print(Padding(Text.assemble(one.text, (f"  {one.where}", "dim")), (0, 0, 0, 3), expand=False))
        console.print(Padding(Text.assemble(("change: ", "dim"), (cause.change, "green")), (0, 0, 0, 3), expand=False))


def _progress(record: RunRecord) -> str:
    from apexrl.report.number_format import number

    if not record.evaluations:
        return "No evaluation has ended."
    first, last = record.evaluations[0].mean, record.evaluations[-1].mean
    best = max(one.mean for one in record.evaluations)
    times = f"{len(record.evaluations)} evaluations" if len(record.evaluations) > 1 else "one evaluation"
    return f"Greedy return: first {number(first)}, best {number(best)}, last {number(last)}, of {times}."
