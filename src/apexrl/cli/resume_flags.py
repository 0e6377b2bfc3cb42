"""The command ``resume``: its flags, and what they change."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from apexrl.cli.flags import parse
from apexrl.cli.host_flags import GivenFloat, GivenInt
from apexrl.cli.placement_flags import other_hosts
from apexrl.cli.train_flags import RunFlags, setting_of
from apexrl.config import Config
from apexrl.config.convert import known_settings
from apexrl.config.elsewhere import ELSEWHERE
from apexrl.config.placement import RAY_FLAGS, Placement
from apexrl.config.settings import flag
from apexrl.errors import ConfigError
from apexrl.launch.ray import resources
from apexrl.launch.ray.resources import HERE
from apexrl.run.log_lines import LogFormat


@dataclass(frozen=True)
class Resume(RunFlags):
    """Resume a run that has stopped: its weights, optimizer, counters, and the replay if it was saved.

    Give a new limit: the one that ended the run has been reached.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train; or the URL of its copies, which are brought to --out first."""
    out: str = "runs"
    """Folder that holds the run folders, for a RUN that is a URL."""
    env_steps: GivenInt = None
    """New limit of environment steps, counted from the first start; 0: no limit. Default: as before."""
    updates: GivenInt = None
    """New limit of learner updates, counted from the first start; 0: no limit. Default: as before."""
    minutes: GivenFloat = None
    """New limit of minutes of training, counted from the first start; 0: no limit. Default: as before."""
    schedule_env_steps: GivenInt = None
    """Environment steps of schedules, counted from the first start; 0: as the limit. Default: as before."""
    stop_at_return: Annotated[
        float | Literal["none"] | None, tyro.conf.arg(metavar="FLOAT|none", help_behavior_hint="")
    ] = None
    """New mean return of an evaluation at which to stop; none: no goal. Default: as before."""
    log_format: Annotated[LogFormat | None, tyro.conf.arg(metavar="text|json", help_behavior_hint="")] = None
    """Format of lines that are printed, and of the logs of roles. Default: as before."""
    run_name: Annotated[str, tyro.conf.arg(name="run", metavar="NAME")] = ""
    """The run's name on the Redis server; empty: as before."""
    ray: Annotated[str, tyro.conf.arg(metavar="auto|local|HOST:PORT|none")] = ""
    """Ray cluster to resume on (default: the previous one); none: this machine alone."""
    actor_cpus: GivenFloat = None
    """CPUs that Ray reserves for each actor. Default: as before."""
    learner_gpus: GivenFloat = None
    """GPUs that Ray reserves for each learner. Default: as before."""
    inference_gpus: GivenFloat = None
    """GPUs that Ray reserves for each inference server, policy worker or model server. Default: as before."""
    learner_nodes: GivenInt = None
    """Nodes of the Ray cluster over which the learners are spread. Default: as before."""
    replay_shards: GivenInt = None
    """Shards of the replay, each beside a group of actors. Default: as before."""


def parse_resume(words: Sequence[str]) -> Resume:
    """Parse the flags of ``resume``.

    Raises:
        ConfigError: a setting that has another name here, or that a run keeps.
    """
    known = {entry.name for entry in dataclasses.fields(Resume)}
    for word in words:
        name = setting_of(word)
        ours = ELSEWHERE.get(name, name)
        if name not in known and ours in known:
            raise ConfigError(f"there is no {flag(name)}: here it is {flag(ours)}")
        if name not in known and ours in known_settings():
            raise ConfigError(
                f"a resumed run keeps its {flag(ours)}: leave {word.partition('=')[0]} out. For another value begin a "
                "new run from this one's weights: apexrl train … --initial-weights RUN"
            )
    return parse(Resume, words, "resume")


def resumed(config: Config, wanted: Resume) -> Config:
    """A run's configuration with what the flags of ``resume`` change."""
    given: dict[str, Any] = {
        name: None if value == "none" else value
        for name in ("env_steps", "updates", "minutes", "schedule_env_steps", "stop_at_return")
        if (value := getattr(wanted, name)) is not None
    }
    log_format = wanted.log_format or config.log_format
    return dataclasses.replace(config, stop=dataclasses.replace(config.stop, **given), log_format=log_format)


def resume_placement(wanted: Resume, folder: Path) -> Placement | None:
    """Where other hosts may join a resumed run, or the cluster that it resumes on; None: nowhere."""
    hosts = wanted.listen or wanted.redis or wanted.run_name
    if wanted.ray and hosts:
        raise ConfigError("--ray runs on a cluster, --redis and --listen over hosts: give one of them")
    resources_wanted = {name: getattr(wanted, name) for name in RAY_FLAGS}
    cluster = resources.resumed(folder, HERE if hosts else wanted.ray, **resources_wanted)
    return cluster or other_hosts(wanted, wanted.run_name, actors=None, make=False)
