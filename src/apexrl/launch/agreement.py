"""Whether two hosts mean the same, and what they are called."""

from __future__ import annotations

import os
from typing import Any

from apexrl.links.redis.values import printable


def own_name() -> str:
    """This machine's name, for people."""
    return printable(os.uname().nodename, 64) or "host"


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
