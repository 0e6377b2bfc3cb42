"""A study on disk: Optuna's journal, and who works at which trial.

The journal is a file to which every process appends under a lock of the kernel, which ends with the process that holds
it, however that ends. Optuna's own locks are files, which stay behind after ``kill -9``. A line that such a process cut
short is removed by the next one that writes. Several processes, also of several hosts with a shared folder, may work at
one study.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from apexrl.config.convert import flat
from apexrl.errors import ConfigError, HeldError
from apexrl.run.atomic_files import open_lines
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import RunLock
from apexrl.sweep.curve import RUNGS
from apexrl.sweep.plan import Plan
from apexrl.sweep.search_space import Dimension

optuna.logging.set_verbosity(optuna.logging.ERROR)

LOCK_SECONDS: Final = 60.0
"""How long a process waits for another one's turn; a turn takes milliseconds."""

_RANDOM_TRIALS: Final = 10  # before Optuna's sampler learns from the others
_PRUNER_TRIALS: Final = 5  # that end before any is pruned
_WARM_UP: Final = RUNGS // 4  # rungs of a run that is never pruned
_TRIALS_FOR_IMPORTANCES: Final = 10
_JOURNAL: Final = "journal"
_CLAIMS: Final = "claims"


class Claimed(NamedTuple):
    """A trial that this process works at."""

    trial: Trial
    claim: RunLock
    begun: bool
    """Another process worked at it before, and is gone."""
    last_rung: int
    """The last one that was reported; -1: none."""


class Study:
    """A study in a folder, which is made if it is new.

    Raises:
        ConfigError: a link leads out of the folder, where something would be written.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        for name in (_JOURNAL, _CLAIMS, "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            RunFolder(folder / name).check_links()
        journal = folder / _JOURNAL
        backend = JournalFileBackend(str(journal / "log"), _KernelLock(journal))
        with self._turn():
            self._study = optuna.create_study(
                study_name="sweep",
                storage=JournalStorage(backend),
                pruner=_pruner(plan),
                direction="maximize",
                load_if_exists=True,
            )

    @property
    def trials(self) -> list[FrozenTrial]:
        """All that have begun, oldest first."""
        return [trial for trial in self._study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]

    def next(self) -> Claimed | None:
        """A trial to work at: one whose process is gone, or else a new one; None: there is none at present."""
        with self._turn():
            trials = self.trials
            for one in trials:
                if one.state == TrialState.RUNNING and (claim := self._claim(one.number)):
                    last = -1 if one.last_step is None else one.last_step
                    return Claimed(self._suggest(Trial(self._study, one._trial_id)), claim, True, last)
            if len(trials) >= self.plan.trials:
                return None
            self._study.sampler = optuna.samplers.TPESampler(
                seed=(self.plan.configs[0].seed * 1_000_003 + len(trials)) % 2**32, n_startup_trials=_RANDOM_TRIALS
            )
            if not trials and not self._study.get_trials(deepcopy=False):
                self._begin_with_own_values()
            trial = self._study.ask()
            claim = self._claim(trial.number)
            assert claim is not None, f"trial {trial.number} is new, and is claimed already"
            return Claimed(self._suggest(trial), claim, False, -1)

    def settings(self, trial: Trial | FrozenTrial) -> dict[str, Any]:
        """The settings that a trial changes, by their flat names."""
        return {one.setting: one.to_setting(trial.params[one.label]) for one in self.plan.space}

    def tell(self, claimed: Claimed, state: TrialState, value: float | None = None, **about: Any) -> None:
        """Enter how a trial ended, and let go of it.

        Args:
            about: to be kept with it, such as why it failed.
        """
        for name, told in about.items():
            claimed.trial.set_user_attr(name, told)
        self._study.tell(claimed.trial, value, state)
        claimed.claim.close()

    def claim_folder(self, number: int) -> Path:
        return self.folder / _CLAIMS / f"trial-{number}"

    def importances(self) -> dict[str, float]:
        """How much each setting matters for the objective, as shares of 1; empty: too few trials have ended."""
        if sum(trial.state == TrialState.COMPLETE for trial in self.trials) < _TRIALS_FOR_IMPORTANCES:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where many trials are equal
            found = optuna.importance.get_param_importances(self._study)
        return {name: float(share) for name, share in found.items()}

    def _begin_with_own_values(self) -> None:
        """Let the first trial be what would run without a sweep, if that lies in the ranges."""
        values = flat(self.plan.configs[0])
        own = {one.label: one.to_searched(values[one.setting]) for one in self.plan.space}
        if all(value is not None for value in own.values()):
            self._study.enqueue_trial(own)

    def _suggest(self, trial: Trial) -> Trial:
        """Let Optuna choose the trial's values, as far as it has not."""
        for one in self.plan.space:
            _suggest(trial, one)
        return trial

    def _claim(self, number: int) -> RunLock | None:
        """None: a living process works at it."""
        folder = self.claim_folder(number)
        folder.mkdir(exist_ok=True)
        try:
            return RunLock(folder)
        except HeldError:
            return None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One process at a time looks for a trial."""
        lock = _wait_for(self.folder / _CLAIMS)
        try:
            yield
        finally:
            lock.close()


def _suggest(trial: Trial, dimension: Dimension) -> None:
    low, high = dimension.ends
    if dimension.kind == "choice":
        trial.suggest_categorical(dimension.label, dimension.choices)
    elif dimension.kind == "int":
        trial.suggest_int(dimension.label, int(low), int(high), log=dimension.log)
    else:
        trial.suggest_float(dimension.label, low, high, log=dimension.log)


def _pruner(plan: Plan) -> optuna.pruners.BasePruner:
    rungs = RUNGS * plan.seeds * len(plan.configs)
    if plan.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=_WARM_UP, max_resource=rungs)
    if plan.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_PRUNER_TRIALS, n_warmup_steps=_WARM_UP)
    return optuna.pruners.NopPruner()


def _wait_for(folder: Path) -> RunLock:
    try:
        return RunLock(folder, LOCK_SECONDS)
    except HeldError as error:
        raise ConfigError(f"{folder} is locked for more than {LOCK_SECONDS:g} s by another process: {error}") from error


class _KernelLock(JournalFileOpenLock):
    """The lock of the journal's folder; whoever takes it mends the journal first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "log"))
        self._folder = folder
        self._held: RunLock | None = None

    def acquire(self) -> bool:
        self._held = _wait_for(self._folder)
        open_lines(self._folder / "log").close()  # cuts off what a writer that was killed has left of a line
        return True

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
