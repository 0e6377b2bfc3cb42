"""What a run wants of a Ray cluster: no part of its configuration. Ray itself is not needed to say it."""

from __future__ import annotations

import ipaddress
import json
import math
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from apexrl.errors import ConfigError
from apexrl.run.atomic_files import read_text, replace_text

HERE = "none"
"""In place of a cluster's address: a run that was on one is resumed on this machine alone."""

_FILE = "wishes.json"  # in the run folder

_FLAGS = ("actor_cpus", "learner_gpus", "replay_shards")  # of the command


@dataclass(frozen=True)
class Wishes:
    """What a run wants of a cluster."""

    address: str = "auto"
    """``auto``: the cluster that this machine belongs to; ``local``: a new one on this machine alone, which ends with
    the run; else HOST:PORT of a cluster's head."""
    actor_cpus: float = 1.0
    """Processors that Ray reserves for each actor; parts of one where simulators wait."""
    learner_cpus: float = 1.0
    """… and for the learner, with the evaluator beside it, which gives way to it."""
    learner_gpus: float = 0.0
    """GPUs for the learner."""
    replay_shards: int = 0
    """Groups of actors with a shard of the replay each; 0: one for each node, and no more than there are actors."""
    shard_cpus: float = 1.0
    """Processors for each shard."""
    wait_seconds: float = 10.0
    """Seconds to wait until all of this can be had (a cluster that grows by itself needs minutes)."""

    def __post_init__(self) -> None:
        """ConfigError: a value is none that could be had; it is named."""
        for entry in fields(self)[1:]:
            name, value = entry.name, getattr(self, entry.name)
            flag = f"--{name.replace('_', '-')}" if name in _FLAGS else f"Wishes {name}"
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ConfigError(f"{flag} must be a number from 0 on, not {value!r}")
            if name in ("learner_cpus", "shard_cpus") and not value:
                raise ConfigError(f"{flag} must be more than 0: without resources of its own there is no place")
            if name == "replay_shards" and value != int(value):
                raise ConfigError(f"{flag} must be a whole number, not {value}")
            if name == "learner_gpus" and value > 1 and value != int(value):
                raise ConfigError(f"{flag} {value:g}: beyond one, Ray gives whole GPUs only")


def remember(wishes: Wishes, folder: Path, check: Callable[[], None] = lambda: None) -> None:
    """Note them in a run folder, for whoever resumes the run; ``check`` as for ``replace_text``."""
    replace_text(folder / _FILE, json.dumps(asdict(wishes), indent=2) + "\n", check)


def resumed(folder: Path, address: str, **given: float | None) -> Wishes | None:
    """What the run of ``folder`` wants when it goes on: as before, but for what is given. None: it was not on a
    cluster, or shall go on on this machine.

    Args:
        address: of another cluster; ``none``: this machine alone; empty: where it was.
        given: of ``Wishes``; None: as before.

    Raises:
        ConfigError: the note cannot be read, or a value could not be had.
    """
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    known = _remembered(folder) if address != HERE else None
    if known is None and address in ("", HERE):
        if changes:
            raise ConfigError(f"--{next(iter(changes)).replace('_', '-')} means nothing without --ray")
        return None
    if known is not None and not address and known.address not in ("auto", "local") and not here(known.address):
        raise ConfigError(
            f"{folder / _FILE} names the Ray cluster at {known.address}, on another machine: say --ray {known.address} "
            "if that is yours, or --ray none to go on on this machine alone"
        )
    changes |= {"address": address} if address else {}
    return replace(known or Wishes(), **changes)


def here(address: str) -> bool:
    """Whether ``address`` (IP:PORT) is one of this machine's. Names are not looked up."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))  # the kernel binds no other's
    except (OSError, ValueError):
        return False
    return True


def actors_range(text: str) -> tuple[int, int]:
    """``MIN:MAX`` as numbers.

    Raises:
        ConfigError: it is none.
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        raise ConfigError(f"--actors {text} is neither a number nor MIN:MAX")
    least, most = int(found[1]), int(found[2])
    if not 1 <= least <= most:
        raise ConfigError(f"--actors {text} begins with at least 1 actor, and ends with no fewer")
    return least, most


def in_range(overrides: Mapping[str, Any], ray: bool) -> dict[str, Any]:
    """Settings with ``actors="MIN:MAX"`` as the two that it stands for, which mean that on a cluster alone.

    Raises:
        ConfigError: it is no range, or the run is not for ``ray``.
    """
    text = overrides.get("actors")
    if not isinstance(text, str):
        return dict(overrides)
    least, most = actors_range(text)
    if not ray:
        raise ConfigError(f"actors={text!r} grows and shrinks with a cluster, and means nothing without ray=")
    if "actor_slots" in overrides:
        raise ConfigError(f"actors={text!r} says how many slots there are: leave out actor_slots=")
    return {**overrides, "actors": least, "actor_slots": most}


def _remembered(folder: Path) -> Wishes | None:
    """None: the run was never on a cluster."""
    path = folder / _FILE
    try:
        return Wishes(**json.loads(read_text(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): delete it, and say --ray again") from error
