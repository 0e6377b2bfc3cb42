"""The flags of ``sweep``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from apexrl.cli.flags import registry
from apexrl.cli.host_flags import GivenInt, Modules
from apexrl.cli.train_flags import settings_given
from apexrl.config.settings import flag
from apexrl.errors import ConfigError
from apexrl.sweep.curve import Objective
from apexrl.sweep.plan import Pruner


@dataclass(frozen=True)
class Sweep:
    """Search settings that learn better: many runs, chosen by Optuna, each in a run folder of its own.

      apexrl sweep PRESET --env-steps 50000 --trials 30 [--flags of apexrl train]
      apexrl sweep --env MODULE:Env-v0 --agent ppo --minutes 5 --over learning_rate gamma=0.9..0.999
      apexrl sweep --resume STUDY
      apexrl sweep show STUDY

    The first trial has the settings that would run without a sweep. Trials that are worse than the others at the same
    share of their budget are ended early. Whatever is killed, the same command again goes on: a trial that had begun
    is resumed from its checkpoint. The same command in several terminals, or on several hosts with a shared folder,
    works at one study.
    """

    study: Annotated[str, tyro.conf.arg(metavar="NAME|DIR")] = ""
    """Folder of the study; a plain name is one in sweeps/. Default: that of the preset or the environment."""
    trials: GivenInt = None
    """Trials in all, those that failed or were ended early included. Default: 30; with --resume as before."""
    over: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME[=LOW..HIGH|=A,B] …")] = ()
    """Settings to search, each around the value that the run would have, in a range, or among choices.
    Default: step size, discount, batch size and whatever else matters most to the agent."""
    objective: Objective = "best"
    """best: return of the best weights on fresh seeds; last: of the last ones; area: mean height of the curve.
    Of equal trials the one whose curve rose fastest is the best."""
    pruner: Pruner = "median"
    """median: ends a trial that is worse than half of the others; hyperband: gives long budgets to few; none."""
    seeds: int = 1
    """Runs of each trial, with the seed of the run and those after it; their mean counts."""
    envs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ID[=RANDOM..GOOD] …")] = ()
    """Several environments, in place of a preset or --env: each trial runs in all of them.
    Returns are normalised between those of random and of good play; their interquartile mean counts."""
    population: int = 0
    """Population-based training in place of single trials: so many members train, and the worst take over the state
    of the best, with changed settings (Jaderberg et al. 2017). 0: trials."""
    rounds: int = 10
    """Parts of the budget after which the members of a population are compared."""
    parallel: int = 1
    """Trials, or members of a population, at the same time."""
    ray: Annotated[str, tyro.conf.arg(metavar="auto|local|HOST:PORT")] = ""
    """Run trials as tasks of a Ray cluster, whose nodes share the study's folder: auto, local or HOST:PORT.
    Each takes the processors of its actors and one more; --parallel says how many at the same time."""
    resume: Annotated[str, tyro.conf.arg(metavar="STUDY")] = ""
    """Go on with a study, with its own settings."""
    trust: Modules = ()
    """With --resume or a FILE.toml: module or package whose environments, agents and networks these may name."""


@dataclass(frozen=True)
class SweepShow:
    """Show the trials of a study, its best settings, and how much each setting matters."""

    study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Folder or name of the study."""
    trust: Modules = ()
    """Module or package whose agents and networks the study may name."""


_INSTEAD = {
    "name": "runs are called by their trials",
    "out": "runs lie in the study's folder: say --study",
    "redis": "start the command on other hosts too, with a shared folder",
    "run": "runs have the names of their trials",
    "listen": "trials run where the command does",
    "resume_or_start": "the same command again goes on where it was interrupted",
    "prometheus": "watch a single run with it",
    "otel": "watch a single run with it",
    "checkpoint_url": "copy a single run",
    "tracker": "give it to a single run",
    "callback": "give it to a single run",
    "replace_run": "trials run where the command does",
}


def parse_sweep(words: Sequence[str]) -> tuple[Sweep, list[str]]:
    """Parse the flags of ``sweep``.

    Returns:
        They, and the words that are flags of ``train``.

    Raises:
        ConfigError: a flag of ``train`` that means nothing here.
    """
    wanted, rest = tyro.cli(Sweep, prog="apexrl sweep", args=list(words), registry=registry(), return_unknown_args=True)
    for name in settings_given(rest):
        if name in _INSTEAD:
            raise ConfigError(f"{flag(name)} means nothing to apexrl sweep: {_INSTEAD[name]}")
    if wanted.parallel < 1:
        raise ConfigError(f"--parallel must be at least 1, not {wanted.parallel}")
    if wanted.population and (wanted.trials is not None or wanted.envs or wanted.seeds != 1):
        raise ConfigError("--population is for one environment: --trials, --envs and --seeds mean nothing with it")
    if wanted.population and (wanted.objective, wanted.pruner) != (Sweep.objective, Sweep.pruner):
        raise ConfigError("members of a population are compared by their last weights: leave out --objective, --pruner")
    if wanted.rounds != Sweep.rounds and not wanted.population:
        raise ConfigError("--rounds are those of a population: say --population, or leave it out")
    if wanted.population < 0 or wanted.population == 1:
        raise ConfigError(f"--population must be at least 2, not {wanted.population}")
    if wanted.rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {wanted.rounds}")
    if wanted.resume and (rest or wanted.study or wanted.over or wanted.envs or wanted.population):
        raise ConfigError("--resume has the study's own settings: only --trials, --parallel and --trust go with it")
    return wanted, rest
