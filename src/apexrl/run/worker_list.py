"""``workers.json``: the workers of a run as its main process saw them last, for ``apexrl status RUN``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from apexrl.errors import FencedError, SnapshotError
from apexrl.run.actor_order import ActorNumbers, numbers_from_json
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.status import Work, WorkerState, WorkerStatus

NAME: Final = "workers.json"
PERIOD_SECONDS: Final = 10.0
"""Between two writes."""
MOST_WORKERS: Final = 65536


class WorkerList(NamedTuple):
    """What the file says."""

    at: float
    """Seconds since 1970."""
    host: str
    """Of the main process; on Ray, workers may be on others."""
    workers: list[WorkerStatus]
    actors: ActorNumbers | None = None
    """None: it does not say how many there may be, as on Ray."""


def write(
    folder: Path, workers: Sequence[WorkerStatus], check: Callable[[], None], actors: ActorNumbers | None = None
) -> None:
    """Write the file; a folder that takes none now is tried again with the next one."""
    rows = [
        [one.name, one.role, one.index, one.pid, one.state, one.restarts, round(one.rate, 3),
         round(one.heartbeat_age_seconds, 1), *one.work]
        for one in workers
    ]  # fmt: skip
    said = {} if actors is None else {"actors": actors}
    text = json.dumps({"at": round(time.time(), 1), "host": os.uname().nodename, "workers": rows, **said})
    with suppress(OSError, SnapshotError, FencedError):  # who is fenced is told by others
        replace_text(folder / NAME, text + "\n", check)


def remove(folder: Path, check: Callable[[], None]) -> None:
    """The run has ended: nobody works there. ``check`` raises where another process has the folder now."""
    with suppress(OSError, SnapshotError, FencedError):
        check()
        (folder / NAME).unlink(missing_ok=True)


def read(folder: Path) -> WorkerList | None:
    """What a run's main process has written; None: nothing, or nothing of this version of apexrl."""
    try:
        values = json.loads(read_text(folder / NAME, 16 << 20))
        workers = [_worker(row) for row in values["workers"][:MOST_WORKERS]]
        actors = numbers_from_json(values["actors"]) if "actors" in values else None
        return WorkerList(float(values["at"]), _word(values["host"]), workers, actors)
    except (OSError, SnapshotError, ValueError, KeyError, TypeError, IndexError):
        return None


def _worker(row: Any) -> WorkerStatus:
    name, role, index, pid, state, restarts, rate, age, counter, unit, activity = row
    if state not in get_args(WorkerState) or activity not in get_args(WorkerState):
        raise ValueError(state)
    work = Work(_word(counter), _word(unit), activity)
    number = None if pid is None else int(pid)
    return WorkerStatus(
        _word(name), _word(role), int(index), number, state, int(restarts), float(rate), float(age), work
    )


def _word(text: Any) -> str:
    """One line without control characters: the folder may be somebody else's."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:80])
