"""Runs a comparison: one run after another, each in its own run folder, then the report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from apexrl import api, launch, presets
from apexrl.compare import charts, tables
from apexrl.compare.outcome import Outcome, finished, outcome, what
from apexrl.compare.plan import Arm, Plan
from apexrl.compare.progress import Progress
from apexrl.compare.report import Report
from apexrl.config import Config
from apexrl.config.paths import expanded
from apexrl.config.settings import did_you_mean
from apexrl.errors import ApexrlError, ConfigError, EnvError
from apexrl.run.folder import RunFolder
from apexrl.run.status import Observer

if TYPE_CHECKING:
    from rich.console import Console

RUNS: Final = "runs"
"""Subfolder of a comparison that holds its run folders."""


class Runner(Protocol):
    """``api.run``, or a substitute in a test."""

    def __call__(
        self, config: Config, *, observers: Sequence[Observer] = (), on_folder: Callable[[Path], None] | None = None
    ) -> api.Run: ...


def compare(
    plan: Plan,
    out: str | Path,
    console: Console | None = None,
    run: Runner = api.run,
    check: Callable[[Config], None] = launch.check,
) -> Report:
    """Run the missing runs of a comparison, and write its table and pictures.

    Args:
        plan: the arms and seeds.
        out: the comparison's folder; finished runs in ``out/runs`` with the same settings are not repeated.
        console: shows a line for each run and the table; None: standard output.
        run: runs one configuration.
        check: checks a configuration without running it.

    Returns:
        All outcomes; ``interrupted`` when Ctrl-C ended the comparison.

    Raises:
        ConfigError: nothing can be written to ``out``.
        ApexrlError: an arm cannot run; nothing was run.
    """
    out = expanded(out).resolve()
    _check_writable(out)
    progress = Progress(console, len(plan.order()))
    report = Report(plan)
    done = finished(out / RUNS)
    for arm, seed in plan.order():
        config = arm.run(seed, out / RUNS)
        if folder := done.get(what(config)):
            report.outcomes[arm.label, seed] = outcome(config, folder, out, plan.goal)
    progress.begins(plan, out, len(report.outcomes))
    with progress.looking():
        for label in dict.fromkeys(arm.label for arm, _ in report.missing):
            _check(next(arm for arm in plan.arms if arm.label == label), plan, check)
    (out / RUNS).mkdir(parents=True, exist_ok=True)
    try:
        for arm, seed in report.missing:
            ended = _run(arm, seed, plan, out, progress, run)
            if ended is None:
                report.interrupted = True
                break
            report.outcomes[arm.label, seed] = ended
            tables.write(report, out)
    except KeyboardInterrupt:
        report.interrupted = True
    drawn = charts.draw({arm.label: report.of(arm) for arm in plan.arms}, plan, out)
    progress.ends(report, [*tables.write(report, out), *drawn])
    return report


def _run(arm: Arm, seed: int, plan: Plan, out: Path, progress: Progress, run: Runner) -> Outcome | None:
    """Run one arm with one seed; None: the run was interrupted."""
    config = arm.run(seed, out / RUNS)
    folder: list[Path] = []
    with progress.running(arm, seed) as line:
        try:
            ended = run(config, observers=[line], on_folder=folder.append)
        except Exception as error:  # a failed run does not invalidate the others
            text = f"{type(error).__name__}: {error}"
            if not folder:
                result = Outcome(arm.topology, arm.agent, seed, failure=text, stopped_by="error")
            else:
                result = outcome(config, RunFolder(folder[0]), out, plan.goal, text)
        else:
            if ended.summary["stopped_by"] == "interrupted":
                return None
            result = outcome(config, RunFolder(ended.path), out, plan.goal)
        line.ended(result)
    return result


def _check(arm: Arm, plan: Plan, check: Callable[[Config], None]) -> None:
    try:
        check(arm.config)
    except EnvError as error:
        raise EnvError(f"--env {plan.env}{did_you_mean(plan.env, presets.names())}: {error}") from error
    except ApexrlError as error:
        raise type(error)(f"{arm.label}: {error}") from error


def _check_writable(out: Path) -> None:
    there = next(folder for folder in (out, *out.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to --out {out}: {there} is not a writable folder")
