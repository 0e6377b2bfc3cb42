"""``actors.json``: how many actors a run was told to have, by ``apexrl scale``, whenever it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from apexrl.errors import SnapshotError
from apexrl.run.atomic_files import read_text, replace_text

NAME: Final = "actors.json"
MOST_ACTORS: Final = 65_536
"""As many as ``--actor-slots`` may be."""

_MOST_BYTES = 1024
_MOST_LETTERS = 400


class ActorNumbers(NamedTuple):
    """What a run's main process says of its actors."""

    serving: int
    """That are to serve now."""
    least: int
    most: int
    """That may be ordered."""
    fixed: str = ""
    """Why their number cannot be changed; empty: it can."""


def write(folder: Path, actors: int) -> None:
    """Order ``actors``, 1 … ``MOST_ACTORS``."""
    replace_text(folder / NAME, json.dumps({"actors": actors}) + "\n")


def read(folder: Path) -> int:
    """How many actors were ordered; 0: nobody has, or the file holds what no command writes."""
    try:
        actors = json.loads(read_text(folder / NAME, _MOST_BYTES))["actors"]
    except (OSError, SnapshotError, ValueError, KeyError, TypeError, RecursionError):
        return 0
    return actors if type(actors) is int and 1 <= actors <= MOST_ACTORS else 0


def numbers_from_json(values: Any) -> ActorNumbers:
    """``ActorNumbers`` from a JSON array that anybody may have written.

    Raises:
        ValueError, TypeError: it is none.
    """
    serving, least, most, fixed = values
    plain = "".join(c if c.isprintable() else "?" for c in str(fixed)[:_MOST_LETTERS])
    return ActorNumbers(int(serving), int(least), int(most), plain)
