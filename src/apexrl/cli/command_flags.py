"""Which dataclass declares the flags of which command. The reference, shell completion and tests read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import tyro

from apexrl.cli import browser_flags, dataset_flags, folder_flags, host_flags, resume_flags, sweep_flags, train_flags

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class Init:
    """Write a project to start from: an environment, an agent, settings and a test, all of your own, in a new folder.

    The project trains as it stands. Its README says how, and what to change.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the project, and of its folder. The Python package within is called the same, with _ for -."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = "."
    """Folder in which the project's folder is made."""


@dataclass(frozen=True)
class Completion:
    """Print a script by which a shell completes commands, flags, presets, agents and topologies.

    bash: put this line into ~/.bashrc: eval "$(apexrl completion bash)".

    zsh: put this line into ~/.zshrc: eval "$(apexrl completion zsh)".

    fish: put this line into ~/.config/fish/config.fish: apexrl completion fish | source.
    """

    shell: Annotated[Shell, tyro.conf.Positional, tyro.conf.arg(metavar="bash|zsh|fish")]
    """bash, zsh or fish."""


FLAGS: Final[Mapping[str, type[Any]]] = {
    "train": train_flags.Train,
    "eval": folder_flags.Eval,
    "resume": resume_flags.Resume,
    "compare": train_flags.Compare,
    "sweep": sweep_flags.Sweep,
    "sweep show": sweep_flags.SweepShow,
    "export": folder_flags.Export,
    "publish": folder_flags.Publish,
    "doctor": folder_flags.Doctor,
    "replay inspect": folder_flags.ReplayInspect,
    "dataset record": dataset_flags.Record,
    "dataset export": dataset_flags.ExportReplay,
    "dataset show": dataset_flags.Show,
    "ope": dataset_flags.Ope,
    "dashboard": browser_flags.Dashboard,
    "watch": browser_flags.Watch,
    "report": browser_flags.Report,
    "init": Init,
    "completion": Completion,
    "learner": train_flags.Train,
    "learner --standby": host_flags.Standby,
    "actor": host_flags.Actor,
    "envs": host_flags.Envs,
    "status": host_flags.Status,
    "stop": host_flags.Stop,
    "drain": host_flags.Drain,
    "scale": host_flags.Scale,
}
"""Every command that has flags: all but ``list``."""
