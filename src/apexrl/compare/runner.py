"""Running a comparison: one run after the other, each an ordinary run folder, then the report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from apexrl import api, launch, presets
from apexrl.compare import charts, tables
from apexrl.compare.outcome import Outcome, finished, outcome, what
from apexrl.compare.plan import Arm, Plan
from apexrl.compare.progress import Show
from apexrl.config import Config
from apexrl.config.settings import did_you_mean
from apexrl.errors import ApexrlError, ConfigError, EnvError
from apexrl.run.folder import RunFolder
from apexrl.run.status import Observer

if TYPE_CHECKING:
    from rich.console import Console

RUNS: Final = "runs"
"""Where the run folders lie in a comparison's."""


class Runner(Protocol):
    """``api.run``, or what stands for it in a test."""

    def __call__(
        self, config: Config, *, observers: Sequence[Observer] = (), on_folder: Callable[[Path], None] | None = None
    ) -> api.Run: ...


@dataclass
class Report:
    """What is known of a comparison so far."""

    plan: Plan
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    """(label of the arm, seed) -> how it went."""
    interrupted: bool = False

    @property
    def missing(self) -> list[tuple[Arm, int]]:
        """What was not run yet."""
        return [(arm, seed) for arm, seed in self.plan.order() if (arm.label, seed) not in self.outcomes]

    @property
    def ordered(self) -> list[Outcome]:
        """What was run, in the order of the plan."""
        keys = [(arm.label, seed) for arm, seed in self.plan.order()]
        return [self.outcomes[key] for key in keys if key in self.outcomes]

    @property
    def failed(self) -> list[Outcome]:
        return [one for one in self.ordered if one.failure]

    def of(self, arm: Arm) -> list[Outcome]:
        """Its runs, by seed."""
        found = [self.outcomes.get((arm.label, seed)) for seed in self.plan.seeds]
        return [one for one in found if one is not None]


def compare(
    plan: Plan,
    out: str | Path,
    console: Console | None = None,
    run: Runner = api.run,
    check: Callable[[Config], None] = launch.check,
) -> Report:
    """Run what is missing of a comparison, and write table and pictures.

    Args:
        plan: what to run.
        out: its folder; runs in ``out/runs`` that came to their end with the same settings are not run again.
        console: shows a line for each run and the table; None: standard output.
        run: runs one configuration.
        check: raises what can be known to be wrong with a configuration without running it.

    Returns:
        What was run; ``interrupted`` when Ctrl-C ended it.

    Raises:
        ConfigError: nothing can be written to ``out``.
        ApexrlError: an arm cannot run; nothing has been run then.
    """
    out = Path(out).expanduser().resolve()
    _check_writable(out)
    show = Show(console, len(plan.order()))
    report = Report(plan)
    done = finished(out / RUNS)
    for arm, seed in plan.order():
        config = arm.run(seed, out / RUNS)
        if folder := done.get(what(config)):
            report.outcomes[arm.label, seed] = outcome(config, folder, out, plan.goal)
    show.begins(plan, out, len(report.outcomes))
    with show.looking():
        for label in dict.fromkeys(arm.label for arm, _ in report.missing):
            _check(next(arm for arm in plan.arms if arm.label == label), plan, check)
    (out / RUNS).mkdir(parents=True, exist_ok=True)
    try:
        for arm, seed in report.missing:
            ended = _run(arm, seed, plan, out, show, run)
            if ended is None:
                report.interrupted = True
                break
            report.outcomes[arm.label, seed] = ended
            tables.write(report, out)
    except KeyboardInterrupt:
        report.interrupted = True
    drawn = charts.draw({arm.label: report.of(arm) for arm in plan.arms}, plan, out)
    show.ends(report, [*tables.write(report, out), *drawn])
    return report


def _run(arm: Arm, seed: int, plan: Plan, out: Path, show: Show, run: Runner) -> Outcome | None:
    """One run to its end, well or not; None when a person has interrupted it."""
    config = arm.run(seed, out / RUNS)
    folder: list[Path] = []
    with show.running(arm, seed) as line:
        try:
            ended = run(config, observers=[line], on_folder=folder.append)
        except Exception as error:  # whatever it was, the other runs can tell as much as before
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
        raise ConfigError(f"cannot write to --out {out}: {there} is no folder that you may write to")
