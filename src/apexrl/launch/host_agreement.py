"""Checks that two hosts of a run agree, and how a host is named."""

from __future__ import annotations

import os
from typing import Any, Final

from apexrl.errors import ConfigError
from apexrl.links.redis.values import printable

_ACTORS_PER_PROCESSOR: Final = 64
"""That a run may ask of a host; the host's own command may say more."""


def own_name() -> str:
    """This machine's name, for people."""
    return printable(os.uname().nodename, 64) or "host"


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
    if ours == theirs:
        return None
    return f"{where}: {str(ours)[:200]} here, {str(theirs)[:200]} there"
