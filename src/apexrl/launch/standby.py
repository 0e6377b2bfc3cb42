"""A standby learner: looked at and wired, it waits until the run's learner is gone, and goes on from its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from apexrl.config import Config, HostsConfig
from apexrl.config.paths import expanded, from_here
from apexrl.config.placement import Redis
from apexrl.config.trust import entrusted
from apexrl.errors import ClosedError, ConfigError, HeldError, LinkError, OwnershipError, WaitTimeout
from apexrl.launch import contained_observers, run_claim
from apexrl.launch.checkpoint_copies import Mirror
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
    checkpoint_url: str = "",
    observers: Sequence[Observer] = (),
    interrupts: Interrupts,
) -> dict[str, Any]:
    """Wait for the end of the run, or of its learner: then go on with the run; see ``remote_api.stand_by``.

    Returns:
        The summary; of a run that ended without this standby, the one in its folder, with ``stopped_by`` ``finished``.
    """
    folder = RunFolder(expanded(out) / (name or check_name(run)))
    server = Server(url)
    server.check()
    tell = partial(contained_observers.tell, contained(observers))
    mirror = Mirror(checkpoint_url, folder.path) if checkpoint_url else None
    try:
        while True:
            _wait_for_folder(folder, mirror, tell, interrupts)
            config, identity, settings = _settings(folder, Redis(url, run, actors=None, token=token), trust)
            with ExitStack() as stack:
                side = stack.enter_context(closing(LearnerSide(config, token, server, identity, interrupts)))
                watch = LearnerWatch(server, identity.name, identity.run_id, config.hosts.learner_lease_seconds)
                stack.enter_context(closing(watch))
                place = _wait_for_place(watch, side, folder, settings, config, tell, interrupts)
                if place is None and _read(folder) == settings:
                    return _over(folder, "it was ended or stopped from elsewhere", tell)
                if place is not None:
                    began = time.monotonic()
                    lease, lock = place
                    stack.callback(lock.close)
                    actors = stack.enter_context(ExitStack())  # closed after the beacon has told them of the end
                    beacon = stack.enter_context(closing(side.hold(lease)))
                    tell(f"run {identity.name} has lost its learner: this one goes on with it", "warning")
                    if mirror is not None:
                        mirror.finish(tell)
                    claim = run_claim.settle(run_claim.Claim(folder, lock, config, begins=True))
                    if claim.ended:
                        beacon.finished(folder.summary())
                        return _over(folder, claim.ended, tell)
                    host = None
                    if identity.actors and side.gateway is None:
                        host = actors.enter_context(closing(LocalActorHost(url, identity, config)))
                    return side.work(lease, beacon, observers, claim, began, True, host)
            tell(f"{folder.config_path} has changed: looking at environment and agent again", "info")
    finally:
        if mirror is not None:
            mirror.close()


def _wait_for_folder(folder: RunFolder, mirror: Mirror | None, tell: Tell, interrupts: Interrupts) -> None:
    """Return when a run with a place on a Redis server has begun there.

    Raises:
        WaitTimeout: none has.
    """
    minutes, told = HostsConfig().patience_minutes, False
    ends = time.monotonic() + 60.0 * minutes
    while not (folder.config_path.is_file() and folder.hosts_path.is_file()):
        if time.monotonic() > ends:
            why = "" if mirror is None else f" ({mirror.trouble or 'there is no copy of it'})"
            raise WaitTimeout(
                f"{folder.path} did not become the folder of a run on a Redis server within {minutes:g} minutes{why}. "
                "A standby needs the learner's run folder, on a file system that both hosts share (--out, --name), or "
                "its copies (--checkpoint-url)"
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
    return replace(config, out=folder.out(config)), identity, settings


def _wait_for_place(
    watch: LearnerWatch,
    side: LearnerSide,
    folder: RunFolder,
    settings: str,
    config: Config,
    tell: Tell,
    interrupts: Interrupts,
) -> tuple[LearnerLease, RunLock] | None:
    """The lease of a learner that is gone, and its folder. None: the run is over, or its settings have changed.

    Raises:
        OwnershipError: the name on the server belongs to another run now.
        LinkError: the server was away for too long.
        WorkerError: the process that starts workers has ended.
    """
    backoff, seen, away_since = Backoff(), "", None
    least, most = _LOOK_SECONDS
    while True:
        side.supervisor.hear_starter()
        try:
            sight = watch.look()
            if sight.state == "another":
                who = f"and its learner is {sight.who}"
                raise OwnershipError(f"the server has another run {side.identity.name} now, {who}")
            if sight.state == "over" or _read(folder) != settings:
                return None
            if sight.state == "gone" and (place := _take(side, folder)) is not None:
                return place
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
        if sight.who != seen and sight.state == "alive":
            seen = sight.who
            tell(f"standing by: the learner of run {side.identity.name} is {seen}", "info")
        interrupts.pause(min(most, max(least, sight.wait_seconds)))


def _take(side: LearnerSide, folder: RunFolder) -> tuple[LearnerLease, RunLock] | None:
    """The run's lease, and the lock of its folder; None: another process has one of them, or the run has ended.

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
        return lease, lock or RunLock(folder.path, needed=False)
    except BaseException as error:
        if lock is not None:
            lock.close()
        if isinstance(error, HeldError | ClosedError):  # another standby was quicker, or it has ended
            return None
        raise


def _over(folder: RunFolder, why: str, tell: Tell) -> dict[str, Any]:
    tell(f"run {from_here(folder.path)} is done: {why}", "info")
    return {**folder.summary(), "stopped_by": "finished"}


def _read(folder: RunFolder) -> str:
    """The settings as they lie in the folder; empty: they cannot be read now."""
    try:
        return folder.config_path.read_text(encoding="utf-8") + folder.hosts_path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
