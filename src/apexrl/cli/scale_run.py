"""``apexrl scale RUN``: another number of actors for a run in a folder, while it goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from rich.console import Console

from apexrl.cli.say import Say
from apexrl.errors import ConfigError
from apexrl.run import actor_order, worker_list
from apexrl.run.actor_order import ActorNumbers
from apexrl.run.folder import RunFolder

_LOOK_SECONDS: Final = 0.1
_SILENT_SECONDS: Final = 3 * worker_list.PERIOD_SECONDS


def scale(path: str | Path, actors: int, wait_seconds: float = 30.0, console: Console | None = None) -> int:
    """Order ``actors`` of the run in folder ``path``, and wait until its main process has heeded it.

    Returns:
        0; 1 when nobody trains the run now, or its main process has not answered within ``wait_seconds``.

    Raises:
        ConfigError: it is no run folder, or the run cannot have that number of actors.
    """
    say, folder = Say(console), opened(path)
    seen = worker_list.read(folder.path)
    if seen is None or time.time() - seen.at > _SILENT_SECONDS:
        return say(f"no process trains {path} now{how_it_ended(folder)}: apexrl resume {path} goes on with it", 1)
    if seen.actors is None:
        why = "all of it is one process (--serial)" if folder.config().serial else "another version of apexrl trains it"
        raise ConfigError(f"the number of actors of {path} cannot be changed: {why}")
    _check(path, actors, seen.actors)
    actor_order.write(folder.path, actors)
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        now = worker_list.read(folder.path)
        if now is None:
            return say(f"{path} has ended meanwhile; resumed, it has {_words(actors)}", 1)
        if now.actors is not None and now.actors.serving == actors:
            before, most = seen.actors.serving, seen.actors.most
            return say(f"{path} goes on with {_words(actors)} ({before} before, {most} at most)")
        time.sleep(_LOOK_SECONDS)
    asked = f"{path} was asked to go on with {_words(actors)}"
    return say(f"{asked}, and has not answered within {wait_seconds:.0f} s", 1)


def _words(actors: int) -> str:
    return "1 actor" if actors == 1 else f"{actors} actors"


def opened(path: str | Path) -> RunFolder:
    """The folder of a run.

    Raises:
        ConfigError: it is none, and perhaps meant for a run over several hosts.
    """
    try:
        return RunFolder.open(path)
    except ConfigError as error:
        raise ConfigError(f"{error} (of a run over several hosts: --redis URL --run NAME)") from None


def _check(path: str | Path, actors: int, may: ActorNumbers) -> None:
    if may.fixed:
        raise ConfigError(f"the number of actors of {path} cannot be changed: {may.fixed}")
    if actors < may.least:
        raise ConfigError(f"--actors {actors} is less than {may.least}, the fewest that {path} may have")
    if actors > may.most:
        raise ConfigError(
            f"--actors {actors} is more than {may.most}, for which {path} has room: it was started with so many, or "
            "with that --actor-slots. For more, interrupt it, set actor_slots in its config.toml, and resume it"
        )


def how_it_ended(folder: RunFolder) -> str:
    """How its last generation ended, in a few words to add; empty: it has written no summary."""
    stopped_by = folder.summary().get("stopped_by")
    return f" (it ended: {stopped_by})" if stopped_by else ""
