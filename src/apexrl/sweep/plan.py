"""The plan of a sweep, and its files in the study's folder:

STUDY/
  sweep.json           settings that are searched, number of trials, objective
  config.toml          settings of a run, before a trial changes some; of several environments: config-ENV.toml
  journal/             Optuna's storage
  trial-0/ …           a run folder of each trial; with several runs: trial-0-ENV-seed1
  logs/                what the runs have printed
  claims/              locks: which process works at which trial
  rounds/              of a population: what every member had, and what it was worth
  best.toml            settings of the best trial, for ``apexrl train``
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from apexrl.config import Config
from apexrl.config.convert import from_toml, override, to_toml
from apexrl.errors import ConfigError
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.folder import env_name
from apexrl.sweep.curve import Objective
from apexrl.sweep.search_space import Dimension
from apexrl.topologies.validation import validate

Pruner = Literal["median", "hyperband", "none"]

PLAN_FILE: Final = "sweep.json"
_FORMAT: Final = "apexrl-sweep-1"
_MOST_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Scale:
    """The returns of an environment that count as 0 and as 1, so that several environments can be averaged."""

    random: float
    good: float

    def score(self, value: float) -> float:
        return (value - self.random) / (self.good - self.random)


@dataclass(frozen=True)
class Plan:
    """A whole sweep."""

    configs: tuple[Config, ...]
    """The settings of a run in each environment, before a trial changes some."""
    space: tuple[Dimension, ...]
    trials: int
    seeds: int = 1
    """Runs of a trial in each environment, with the seeds of its config and those after it."""
    objective: Objective = "best"
    pruner: Pruner = "median"
    scales: tuple[Scale, ...] = ()
    """Of each environment; empty: there is one, and its returns count as they are."""
    rounds: int = 0
    """More than 0: the trials are members of a population, which are compared after so many parts of their budget."""

    def check(self) -> None:
        """Refuse a plan that cannot be carried out.

        Raises:
            ConfigError: names the flag.
        """
        if self.trials < 1:
            raise ConfigError(f"--trials must be at least 1, not {self.trials}")
        if self.seeds < 1:
            raise ConfigError(f"--seeds must be at least 1, not {self.seeds}")
        if not self.space:
            raise ConfigError("there is nothing to search: name settings with --over")
        if self.rounds and (len(self.configs) > 1 or self.seeds > 1):
            raise ConfigError("--population is for one environment, and each member has a seed of its own")
        for config in self.configs:
            if not (config.stop.env_steps or config.stop.minutes):
                raise ConfigError("give the length of a trial's runs: --env-steps N, --minutes M or both")
        if any(scale.random == scale.good for scale in self.scales):
            raise ConfigError("--envs ENV=RANDOM..GOOD needs two different returns")

    def runs(self, number: int, values: Mapping[str, Any], folder: Path) -> list[Config]:
        """The runs of a trial: all environments with the first seed, then with the next.

        Args:
            values: flat settings that the trial changes.

        Raises:
            ConfigError, AgentError: these settings cannot go together.
        """
        found = []
        for seed in range(self.seeds):
            for config in self.configs:
                parts = [env_label(config)] if len(self.configs) > 1 else []
                parts += [f"seed{config.seed + seed}"] if self.seeds > 1 else []
                name = "-".join([f"trial-{number}", *parts])
                changed = replace(override(config, values), seed=config.seed + seed, name=name, out=str(folder))
                found.append(validate(changed, values))
        return found

    def write(self, folder: Path) -> None:
        """Write the plan into a study's folder; ``sweep.json`` comes last, and makes it a study."""
        about = {
            "format": _FORMAT,
            "trials": self.trials,
            "seeds": self.seeds,
            "objective": self.objective,
            "pruner": self.pruner,
            "rounds": self.rounds,
            "scales": self.scales,
            "space": self.space,
            "configs": [name for name, _ in self._files()],
        }
        for name, config in self._files():
            replace_text(folder / name, to_toml(config, "What the trials of this sweep begin with."))
        replace_text(folder / PLAN_FILE, msgspec.json.format(msgspec.json.encode(about)).decode() + "\n")

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """The plan of a study.

        Raises:
            ConfigError: there is no study, or its files cannot be read.
        """
        path = folder / PLAN_FILE
        if not path.is_file():
            raise ConfigError(f"{folder} is not a study: it holds no {PLAN_FILE}")
        try:
            about = msgspec.json.decode(read_text(path, _MOST_BYTES), type=_Written)
            texts = [(folder / name, read_text(folder / Path(name).name, _MOST_BYTES)) for name in about.configs]
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{path} cannot be read ({error})") from error
        if about.format != _FORMAT:
            raise ConfigError(f"{path} was written by another version of apexrl ({about.format})")
        configs = tuple(from_toml(text, str(where)) for where, text in texts)
        plan = cls(
            configs, about.space, about.trials, about.seeds, about.objective, about.pruner, about.scales, about.rounds
        )
        plan.check()
        return plan

    def difference(self, other: Plan) -> str:
        """In what ``other`` is another sweep; empty: it may go on with this one, if with another number of trials."""
        for name in ("objective", "seeds", "pruner", "scales", "rounds"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} is {getattr(self, name)} there and {getattr(other, name)} here"
        if self.space != other.space:
            here, there = set(map(str, other.space)), set(map(str, self.space))
            return f"what is searched differs: {'; '.join(sorted(here ^ there)) or 'in its order'}"
        if [to_toml(one) for one in self.configs] != [to_toml(one) for one in other.configs]:
            return "the settings of its runs are others"
        return ""

    def _files(self) -> list[tuple[str, Config]]:
        if len(self.configs) == 1:
            return [("config.toml", self.configs[0])]
        return [(f"config-{env_label(config)}.toml", config) for config in self.configs]


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of ``sweep.json``."""

    format: str
    trials: int
    seeds: int
    objective: Objective
    pruner: Pruner
    rounds: int
    scales: tuple[Scale, ...]
    space: tuple[Dimension, ...]
    configs: list[str]


def env_label(config: Config) -> str:
    """The environment as part of a folder's name."""
    return re.sub(r"[^\w.]+", "-", env_name(config).rpartition(":")[2]).strip("-") or "env"
