"""Carries out a sweep: keeps trials at work until there are as many as wanted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from optuna.trial import TrialState

from apexrl.config.settings import as_flag
from apexrl.errors import ConfigError, WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.sweep.active_trial import ActiveTrial
from apexrl.sweep.plan import PLAN_FILE, Plan
from apexrl.sweep.results import write_best
from apexrl.sweep.run_attempts import Start
from apexrl.sweep.run_process import RunProcess
from apexrl.sweep.study import Study

END_SECONDS: Final = 90.0
"""How long runs may take for their checkpoints after Ctrl-C; those that need longer are killed."""

_LOOK_SECONDS: Final = 0.25
_OTHERS_SECONDS: Final = 5.0  # between looks whether another process has left a trial behind
_HOPELESS: Final = 3  # trials that fail, and no other that does not


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended."""

    interrupted: bool
    best: Path | None
    """The settings of the best trial, as a configuration; None: no trial has come to its end."""


def open_plan(folder: Path, plan: Plan) -> None:
    """Write the plan into a new study's folder, or see that the one that is there is the same.

    Raises:
        ConfigError: another sweep is there, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the study's folder {folder}: {error.strerror or error}") from error
    if (folder / PLAN_FILE).exists():
        known = Plan.read(folder)
        if why := known.difference(plan):
            raise ConfigError(
                f"the study in {folder} is another sweep: {why}. Repeat its own command, go on with "
                f"apexrl sweep --resume {folder}, or choose another --study"
            )
        if known.trials != plan.trials:
            if plan.rounds:
                raise ConfigError(f"the population in {folder} has {known.trials} members: leave out --trials")
            plan.write(folder)
    else:
        plan.write(folder)


def sweep(
    study: Study,
    parallel: int = 1,
    tell: Callable[[str], None] = print,
    start: Start = RunProcess,
) -> Outcome:
    """Carry out what is left of a sweep; trials that other processes work at are theirs.

    Args:
        parallel: trials at work at the same time.
        tell: of every trial that begins or ends.

    Raises:
        WorkerError: every trial fails.
        ConfigError: the study cannot be locked.
    """
    active: list[ActiveTrial] = []
    looked_at = -math.inf
    with Interrupts() as interrupts:
        try:
            while True:
                if time.monotonic() - looked_at >= _OTHERS_SECONDS and not _fill(study, active, parallel, tell, start):
                    looked_at = time.monotonic()
                if not active and not _wait_for_others(study, interrupts):
                    break
                for trial in list(active):
                    if trial.step():
                        active.remove(trial)
                        if trial.outcome:
                            tell(f"trial {trial.number}: {trial.outcome}")
                interrupts.pause(_LOOK_SECONDS)
        except KeyboardInterrupt:
            _interrupt(active, interrupts, tell)
            return Outcome(True, write_best(study))
        finally:
            for trial in active:
                trial.kill()
    return Outcome(False, write_best(study))


def _fill(study: Study, active: list[ActiveTrial], parallel: int, tell: Callable[[str], None], start: Start) -> bool:
    """Take trials until enough are at work; returns whether there may be more."""
    while len(active) < parallel:
        _check_hope(study)
        claimed = study.next()
        if claimed is None:
            return False
        words = " ".join(as_flag(name, value) for name, value in study.settings(claimed.trial).items())
        tell(f"trial {claimed.trial.number} {'goes on' if claimed.begun else 'begins'}: {words}")
        trial = ActiveTrial(study, claimed, start)
        if trial.outcome:
            tell(f"trial {trial.number}: {trial.outcome}")
        else:
            active.append(trial)
    return True


def _check_hope(study: Study) -> None:
    """Raise WorkerError where all trials fail that have ended."""
    ended = [trial for trial in study.trials if trial.state.is_finished()]
    if len(ended) >= _HOPELESS and all(trial.state == TrialState.FAIL for trial in ended):
        why = ended[-1].user_attrs.get("why", "for an unknown reason")
        raise WorkerError(f"all {len(ended)} trials failed. The last one: {why}. See {study.folder / 'logs'}")


def _wait_for_others(study: Study, interrupts: Interrupts) -> bool:
    """Whether other processes work at trials, which may be left to this one."""
    if not any(trial.state == TrialState.RUNNING for trial in study.trials):
        return False
    interrupts.pause(_OTHERS_SECONDS)
    return True


def _interrupt(active: list[ActiveTrial], interrupts: Interrupts, tell: Callable[[str], None]) -> None:
    """Stop all runs with a checkpoint; a second Ctrl-C kills them."""
    tell("stopping, with a checkpoint of each run; Ctrl-C again kills them")
    for trial in active:
        trial.interrupt()
    asked = interrupts.count
    deadline = time.monotonic() + END_SECONDS
    while active and interrupts.count == asked and time.monotonic() < deadline:
        active[:] = [trial for trial in active if not trial.step()]
        time.sleep(0.1)
