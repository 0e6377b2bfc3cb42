"""Claims a run folder: makes a new one, opens one to resume, or whichever is due."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from apexrl.config import Config, convert
from apexrl.config.paths import expanded
from apexrl.config.placement import Placement, Redis
from apexrl.errors import ConfigError, HeldError, SnapshotError
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import GENERATIONS_FILE, LOCK_FILE, RunLock

HELD_SECONDS: Final = 60.0
"""How long a run that is to be resumed or started waits for the folder's holder to end."""

_OPEN_ENDED = (None, "error", "interrupted")  # what a summary says of a run that was not done


_BY_ENV_STEPS: Final = ("exploration_steps", "anneal", "reset_until_updates")
"""Settings for which the default recipe looks at ``env_steps``."""


@dataclass
class Claim:
    """A run folder whose lock this process has, until ``close``."""

    folder: RunFolder
    lock: RunLock
    config: Config
    begins: bool = False
    """Nothing was learned here yet: there is nothing to go on from."""
    ended: str = ""
    """Why there is nothing left to do; empty: there is."""

    def close(self) -> None:
        """Let others have it. A folder in which no run began is removed."""
        if not self.folder.config_path.exists():
            _remove_if_empty(self.folder.path)
        self.lock.close()


def begin(config: Config) -> Claim:
    """A folder for a new run, whatever is there already.

    Raises:
        ConfigError: it cannot be made.
    """
    folder = RunFolder.make(config)
    return Claim(folder, RunLock(folder.path), config, begins=True)


def resume(path: Path, config: Config) -> Claim:
    """The folder of a run to go on with.

    Raises:
        ConfigError: it is no run folder.
        HeldError: another process trains the run.
    """
    folder = RunFolder.open(path)
    return Claim(folder, RunLock(folder.path), config)


def resume_or_start(
    config: Config,
    tell: Callable[[str], None],
    wait_seconds: float = HELD_SECONDS,
    locked: Callable[[Path], object] = lambda path: None,
) -> Claim:
    """The folder that ``config`` names: begun, gone on with, or known to have ended.

    A run that never wrote a checkpoint begins again, with the settings given now. One that did goes on, with the
    settings that it has: what is given must be the same, but for what ends it (``StopConfig``).

    Args:
        tell: of a wait for the folder's holder.
        locked: called with the folder before anything there is read.

    Raises:
        ConfigError: it has no name, or the folder is no run's, or its settings are others.
        HeldError: another process trains the run, and goes on after ``wait_seconds``.
        SnapshotError: its checkpoints cannot be read.
    """
    if not config.name:
        raise ConfigError("--resume-or-start knows a run by its name: say --name")
    path = expanded(config.out) / config.name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {path}: {error.strerror or error}") from error
    try:
        lock = RunLock(path)
    except HeldError as error:
        tell(f"{error}. Waiting for its end, at most {wait_seconds:g} s")
        lock = RunLock(path, wait_seconds)
    claim = Claim(RunFolder(path), lock, config, begins=True)
    try:
        locked(path)
        return settle(claim)
    except BaseException:
        claim.close()
        raise


def claim_by_name(config: Config, placement: Placement | None, tell: Callable[[str], None], url: str) -> Claim:
    """As ``resume_or_start``; on a Redis server the run's name there names the folder, too.

    Args:
        url: of an object store that may have a newer copy, which then is brought; empty: none.
    """

    def bring(folder: Path) -> None:
        if url:
            from apexrl.launch.checkpoint_copies import bring_newer

            for text in bring_newer(url, folder):
                tell(text)

    name = config.name or (placement.run if isinstance(placement, Redis) else "")
    return resume_or_start(replace(config, name=name), tell, locked=bring)


def settle(claim: Claim) -> Claim:
    """A locked folder to begin in, to go on in, or of a run that has ended; errors as of ``resume_or_start``."""
    folder, config = claim.folder, claim.config
    folder.check_links()
    if not folder.config_path.exists():
        others = {entry.name for entry in folder.path.iterdir()} - {LOCK_FILE, GENERATIONS_FILE}
        if others:
            raise ConfigError(
                f"{folder.path} is not a run folder: it holds {min(others)}, and no config.toml. Choose another --name"
            )
        return claim
    left = checkpoint.latest(folder.checkpoints) or checkpoint.best(folder.checkpoints)
    if left is None and not folder.generations.kept:
        for old in (folder.metrics_path, folder.summary_path):
            old.unlink(missing_ok=True)  # of a generation that learned nothing: counters begin again
        return claim
    known = folder.config()
    if differ := sorted(_differences(known, config)):
        raise ConfigError(
            f"the run in {folder.path} has other settings: {'; '.join(differ)}. Give the same ones (only what ends a "
            f"run may change), edit {folder.config_path}, or choose another --name"
        )
    slots = config.actor.actor_slots or known.actor.actor_slots
    config = replace(config, actor=replace(config.actor, actor_slots=slots))
    return replace(claim, config=config, begins=False, ended=_ended(folder, config))


def _differences(known: Config, given: Config) -> Iterator[str]:
    """Settings that are not the same, in words. What ends a run, what the default recipe derives from that, and where
    it lies may differ."""
    there, here = _flat(known), _flat(given)
    derived = _BY_ENV_STEPS if known.recipe == given.recipe == "default" else ()
    for name in there.keys() | here.keys():
        group, _, setting = name.partition(".")
        settled = name == "actor.actor_slots" and not here.get(name)  # 0: the launcher chooses
        if group in ("stop", "name", "out") or settled or setting in derived:
            continue
        if there.get(name) != here.get(name):
            yield f"{setting or group} is {there.get(name)!r} there, {here.get(name)!r} here"


def _flat(config: Config) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(convert.to_toml(config))
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _ended(folder: RunFolder, config: Config) -> str:
    """Why the run's last generation was the end of it, by the rules that hold now; empty: it was not."""
    try:
        summary = folder.summary()
    except SnapshotError:
        return ""
    why = summary.get("stopped_by")
    if why in _OPEN_ENDED or summary.get("generation") != folder.generations.newest(""):
        return ""
    had = {
        "env_steps": (config.stop.env_steps, summary.get("env_steps")),
        "updates": (config.stop.updates, summary.get("updates")),
        "minutes": (config.stop.minutes, (summary.get("wall_seconds") or 0.0) / 60.0),
        "stop_at_return": (config.stop.stop_at_return, summary.get("best_eval_return")),
    }
    if why in had:
        rules = [name for name, (most, value) in had.items() if _reached(name, most, value)]
        return f"{rules[0]} was reached" if rules else ""
    return f"it was ended ({why})"


def _reached(name: str, limit: float | None, value: float | None) -> bool:
    unlimited = limit is None or (name != "stop_at_return" and not limit)
    return not unlimited and value is not None and limit is not None and value >= limit


def _remove_if_empty(path: Path) -> None:
    """Nobody else can be in there: we have the lock, and whoever waits for it sees that the file is gone."""
    with suppress(OSError):
        if {entry.name for entry in path.iterdir()} == {LOCK_FILE}:
            (path / LOCK_FILE).unlink()
            path.rmdir()
