"""What the hosts of a run share: settled settings, checks that they agree, and a host's name."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from apexrl.config import Config, convert
from apexrl.errors import ConfigError
from apexrl.links.printable import host_name
from apexrl.run.folder import default_name, env_name, versions
from apexrl.run.identity import host_part
from apexrl.topologies.host_cut import with_actors, with_slots

_ACTORS_PER_PROCESSOR: Final = 64
"""That a run may ask of a host; the host's own command may say more."""


def actors_here(said: int, wanted: int, origin: str) -> int:
    """How many actors this host brings: what its command has ``said``, or (0) what the run ``wanted``.

    Raises:
        ConfigError: the run wants more than a host with these processors should have.
    """
    most = _ACTORS_PER_PROCESSOR * (os.cpu_count() or 1)
    if not said and wanted > most:
        raise ConfigError(
            f"{origin} wants {wanted} actors of each host, more than the {most} that the processors of this one allow: "
            f"say how many, --actors {most}"
        )
    return said or wanted


def first_difference(ours: Any, theirs: Any, where: str = "") -> str | None:
    """The first place where two JSON-able values differ, in words."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            path = f"{where}.{name}" if where else str(name)
            if name not in ours or name not in theirs:
                return f"{path} is only {'here' if name in ours else 'there'}"
            found = first_difference(ours[name], theirs[name], path)
            if found is not None:
                return found
        return None
    if _alike(ours, theirs):
        return None
    return f"{where}: {str(ours)[:200]} here, {str(theirs)[:200]} there"


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether they are equal, numbers to six digits: since 0.3 bounds of actions are rounded otherwise."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-6)
    return bool(ours == theirs)


def open_to_hosts(config: Config, flag: str, name: str = "") -> Config:
    """``config`` of a run that other hosts may join: with a name, and with slots for their actors.

    Args:
        flag: that opens the run, for messages.
        name: of the run, if its configuration has none.

    Raises:
        ConfigError: a setting keeps the run on one machine.
    """
    if config.serial:
        raise ConfigError(f"--serial runs everything in one process: leave it out, or {flag}")
    if config.wiring.autotune:
        raise ConfigError(f"--autotune tunes one machine: with {flag}, leave it out")
    if callable(config.env.env):  # other hosts must find it by its name
        convert.import_callable(convert.describe_callable(config.env.env), flag)
    return with_slots(replace(config, name=config.name or name or default_name(config)))


def on_this_host(config: Config, run: str, actors: int, out: str, env_kwargs: Mapping[str, Any]) -> Config:
    """The ``config`` of a run whose learner is elsewhere, with this host's actors, run folder and ``env_kwargs``."""
    env = replace(config.env, env_kwargs={**config.env.env_kwargs, **env_kwargs})
    return replace(with_actors(config, actors), name=host_part(run, host_name()), out=out, env=env)


def refuse_difference(config: Config, found: str, host: str, theirs: str) -> None:
    """Raise ConfigError: environment or agent differ here from the learner's ``host``, as ``found`` says."""
    have = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    raise ConfigError(
        f"on host {host_name()} {env_name(config)} is not what it is on the learner's host {host}: {found}. Install "
        f"the same versions on both (here: {have}; there: apexrl {theirs})"
    )
