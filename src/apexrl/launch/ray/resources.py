"""Ray's part of a placement: kept in the run folder for a resume, and checked. Needs no Ray package."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from apexrl.config.placement import Ray
from apexrl.errors import ConfigError
from apexrl.run.atomic_files import read_text, replace_text

HERE = "none"
"""In place of a cluster's address: a run that was on one is resumed on this machine alone."""

_FILE = "placement.json"  # in the run folder


def remember(placement: Ray, folder: Path, check: Callable[[], None] = lambda: None) -> None:
    """Note them in a run folder, for whoever resumes the run; ``check`` as for ``replace_text``."""
    replace_text(folder / _FILE, json.dumps(asdict(placement), indent=2) + "\n", check)


def resumed(folder: Path, address: str, **given: float | None) -> Ray | None:
    """What the run of ``folder`` wants when it goes on: as before, but for what is given. None: it was not on a
    cluster, or shall go on on this machine.

    Args:
        address: of another cluster; ``none``: this machine alone; empty: where it was.
        given: of ``Ray``; None: as before.

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
    return replace(known or Ray(), **changes)


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


def _remembered(folder: Path) -> Ray | None:
    """None: the run was never on a cluster."""
    path = folder / _FILE
    try:
        return Ray(**json.loads(read_text(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): delete it, and say --ray again") from error
