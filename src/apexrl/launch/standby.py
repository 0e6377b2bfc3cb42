"""A standby learner: looked at and wired, it waits until the run's learner is gone, and goes on from its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from apexrl.config import Config, HostsConfig
from apexrl.config.placement import Redis
from apexrl.config.trust import entrusted
from apexrl.errors import ClosedError, ConfigError, HeldError, LinkError, OwnershipError, WaitTimeout
from apexrl.launch import contained_observers, run_claim
from apexrl.launch.contained_observers import contained
from apexrl.launch.host_agreement import open_to_hosts
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.local_actor_host import LocalActorHost
from apexrl.launch.redis_run import Identity, LearnerSide
from apexrl.links.backoff import Backoff
from apexrl.links.redis.keys import check_name
from apexrl.links.redis.learner_watch import LearnerWatch
from apexrl.links.redis.run_record import LearnerLease
from apexrl.links.redis.server import Server
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import RunLock, held_elsewhere
from apexrl.run.status import Level, Observer

_LOOK_SECONDS: Final = (0.1, 1.0)  # between two looks at the lease, at least and at most
_FOLDER_SECONDS: Final = 0.5

Tell = Callable[[str, Level], None]


def stand_by(
    url: str,
    run: str,
    *,
    name: str = "",
    out: str = "runs",
    token: str = "",
    trust: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    interrupts: Interrupts,
) -> dict[str, Any]:
    """Wait for the end of the run, or of its learner: then go on with the run; see ``remote_api.stand_by``.

    Returns:
        The summary; of a run that ended without this standby, the one in its folder, with ``stopped_by`` ``finished``.
    """
    folder = RunFolder(Path(out).expanduser() / (name or check_name(run)))
    server = Server(url)
    server.check()
    tell = partial(contained_observers.tell, contained(observers))
    while True:
        _wait_for_folder(folder, tell, interrupts)
        config, identity, settings = _settings(folder, Redis(url, run, actors=None, token=token), trust)
        with closing(LearnerSide(config, token, server, identity, interrupts)) as side:
            watch = LearnerWatch(server, identity.name, identity.run_id, config.hosts.learner_lease_seconds)
            with closing(watch):
                while _wait_for_lease(watch, side, folder, settings, config, tell, interrupts):
                    with ExitStack() as stack:
                        if (place := _take(side, folder, config, stack)) is None:
                            interrupts.pause(_LOOK_SECONDS[0])  # another standby was quicker
                            continue
                        lease, claim = place
                        began = time.monotonic()
                        tell(f"run {identity.name} has lost its learner: this one goes on with it", "warning")
                        if claim.ended:
                            lease.finish(folder.summary())
                            return _over(folder, claim.ended, tell)
                        local_host = (
                            stack.enter_context(closing(LocalActorHost(url, identity, config)))
                            if identity.actors and side.gateway is None
                            else None
                        )
                        return side.work(lease, observers, claim, began, True, local_host)
                if _read(folder) == settings:
                    return _over(folder, "it was ended or stopped from elsewhere", tell)
        tell(f"{folder.config_path} has changed: looking at environment and agent again", "info")


def _wait_for_folder(folder: RunFolder, tell: Tell, interrupts: Interrupts) -> None:
    """Return when a run with a place on a Redis server has begun there.

    Raises:
        WaitTimeout: none has.
    """
    minutes, told = HostsConfig().patience_minutes, False
    ends = time.monotonic() + 60.0 * minutes
    while not (folder.config_path.is_file() and folder.hosts_path.is_file()):
        if time.monotonic() > ends:
            raise WaitTimeout(
                f"{folder.path} did not become the folder of a run on a Redis server within {minutes:g} minutes: a "
                "standby needs the run folder of the learner, on a file system that both hosts share (--out, --name)"
            )
        if not told:
            told = True
            tell(f"waiting for a run in {folder.path}", "info")
        interrupts.pause(_FOLDER_SECONDS)


def _settings(folder: RunFolder, placement: Redis, trust: Sequence[str]) -> tuple[Config, Identity, str]:
    """The run's configuration for this host, its identity on the server, and the text that both come from.

    Raises:
        ConfigError: the folder cannot be read, is that of a run with another name, or names code of a module that is
            not trusted.
    """
    settings = _read(folder)
    folder.check_links()
    config = entrusted(folder.config(), trust, str(folder.config_path), command="apexrl learner --standby")
    identity = Identity.read(folder)
    if identity is None or identity.name != placement.run:
        there = "no run" if identity is None else f"run {identity.name}"
        raise ConfigError(f"{folder.path} is the folder of {there}, not of run {placement.run}: say --name or --run")
    config = open_to_hosts(config, "--redis", placement.run)
    return replace(config, out=str(folder.path.parent)), identity, settings


def _wait_for_lease(
    watch: LearnerWatch,
    side: LearnerSide,
    folder: RunFolder,
    settings: str,
    config: Config,
    tell: Tell,
    interrupts: Interrupts,
) -> bool:
    """True: the learner is gone. False: the run is over, or its settings have changed.

    Raises:
        OwnershipError: the name on the server belongs to another run now.
        LinkError: the server was away for too long.
        WorkerError: the process that starts workers has ended.
    """
    backoff, seen, away_since = Backoff(), "", None
    while True:
        side.supervisor.hear_starter()
        try:
            sight = watch.look()
        except LinkError as error:
            now = time.monotonic()
            if away_since is None:
                tell(f"{error}; trying again", "warning")
            away_since = away_since or now
            if now - away_since > 60.0 * config.hosts.patience_minutes:
                raise
            interrupts.pause(backoff.next())
            continue
        backoff.reset()
        away_since = None
        if sight.state == "another":
            raise OwnershipError(f"the server has another run {side.identity.name} now, and its learner is {sight.who}")
        if sight.state == "over" or _read(folder) != settings:
            return False
        if sight.state == "gone":
            return True
        if sight.who != seen:
            seen = sight.who
            tell(f"standing by: the learner of run {side.identity.name} is {seen}", "info")
        least, most = _LOOK_SECONDS
        interrupts.pause(min(most, max(least, sight.wait_seconds)))


def _take(
    side: LearnerSide, folder: RunFolder, config: Config, stack: ExitStack
) -> tuple[LearnerLease, run_claim.Claim] | None:
    """The run's lease and folder; None: another process has them, or the run has ended.

    A file server may keep the lock of a host that has died for a minute or more. The lease alone then says who the
    learner is: whoever had the lock writes nothing without it, nor beside a newer generation.
    """
    lock: RunLock | None = None
    try:
        lock = RunLock(folder.path)
    except HeldError:
        if not held_elsewhere(folder.path):
            return None
    try:
        lease = side.take(takes_over=True)
    except (HeldError, ClosedError):
        if lock is not None:
            lock.close()
        return None
    except BaseException:
        if lock is not None:
            lock.close()
        raise
    try:
        lock = lock or RunLock(folder.path, needed=False)
        claim = run_claim.settle(run_claim.Claim(folder, lock, config, begins=True))
    except BaseException:
        lease.leave()
        if lock is not None:
            lock.close()
        raise
    stack.callback(claim.close)
    return lease, claim


def _over(folder: RunFolder, why: str, tell: Tell) -> dict[str, Any]:
    tell(f"run {folder.path} is done: {why}", "info")
    return {**folder.summary(), "stopped_by": "finished"}


def _read(folder: RunFolder) -> str:
    """The settings as they lie in the folder; empty: they cannot be read now."""
    try:
        return folder.config_path.read_text(encoding="utf-8") + folder.hosts_path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
