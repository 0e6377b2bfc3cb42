"""A run over several hosts: the learner's side, and that of a host which brings actors.

Both are the supervisor, the ledger and the run folder of a run on one machine, around one half of its program. What
they know of one another stands on the Redis server; a beacon keeps their places there.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from apexrl.config import Config, EnvConfig, HostsConfig, Meeting, StopConfig, convert
from apexrl.config.trust import entrusted
from apexrl.errors import (
    AgentError,
    ClosedError,
    ConfigError,
    EnvError,
    ExhaustedError,
    LinkError,
    SpecError,
    WaitTimeout,
)
from apexrl.launch import contained_observers
from apexrl.launch.beacon import Beacon
from apexrl.launch.contained_observers import contained
from apexrl.launch.host_agreement import actors_here, first_difference
from apexrl.launch.local_actor_host import Companion
from apexrl.launch.local_run import supervise
from apexrl.launch.probe import step_spec_to_json
from apexrl.launch.run_claim import Claim
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Interrupts, Supervisor, preloaded
from apexrl.links.backoff import Backoff
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.redis.keys import RunKeys, check_name
from apexrl.links.redis.members import HostPlace
from apexrl.links.redis.run_record import LearnerPlace, RunRecord, find_run, host_name
from apexrl.links.redis.server import Server
from apexrl.links.redis.signing import sign, trusted_modules
from apexrl.replay.chunks import schema
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.folder import RunFolder, default_name, env_name, spec_to_json, versions
from apexrl.run.status import Level, Observer
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.host_cut import actor_side, learner_side, options_to_json, passing, replay_of, with_slots

HOST_PRELOAD: Final = ("redis", "apexrl.links.redis.experience_stream", "apexrl.links.redis.weights_channel")

_HURRIED: Final = frozenset(("finished", "stopped", "replaced", "lost learner"))
"""Why an actor host ends without waiting for its last steps to arrive: nobody takes them any more."""

_AGAIN: Final = frozenset(("lost slots", "replaced"))
"""Why an actor host joins once more."""

_LEASE_PATIENCE: Final = 1.5  # leases; a host that was killed holds its slots for one


@dataclass(frozen=True)
class Identity:
    """What a run is called on a server, and which of all runs of that name it is."""

    name: str
    run_id: str
    actors: bool
    """Whether the learner's machine brings actors too."""

    @classmethod
    def of(cls, config: Config, meeting: Meeting, folder: RunFolder | None) -> Identity:
        """A new one, or that of the run in ``folder``, which stands there."""
        known = cls.read(folder) if folder is not None else None
        name = meeting.run or (known.name if known else folder.path.name if folder is not None else config.name)
        actors = meeting.actors if meeting.actors is not None else known is None or known.actors
        return cls(check_name(name), known.run_id if known else str(uuid.uuid4()), actors)

    def write(self, folder: RunFolder) -> None:
        values = {"run": self.name, "run_id": self.run_id, "actors": self.actors}
        replace_text(folder.hosts_path, json.dumps(values) + "\n", folder.lives.check)

    @classmethod
    def read(cls, folder: RunFolder) -> Identity | None:
        """None: it was never on a server."""
        try:
            values = json.loads(read_text(folder.hosts_path))
            return cls(str(values["run"]), str(values["run_id"]), bool(values["actors"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            path = folder.hosts_path
            raise ConfigError(f"{path} cannot be read ({error}): delete it, and resume under a new --run") from error


def learn(
    config: Config,
    meeting: Meeting,
    observers: Sequence[Observer],
    claim: Claim | None,
    interrupts: Interrupts,
    began: float,
) -> dict[str, Any]:
    """The learner's side, from its place on the server to the summary.

    Args:
        meeting: with ``actors``, this machine is an actor host too, with ``config.actor.actors``.

    Raises:
        LinkError: the server cannot be reached, or is not fit for a run.
        HeldError: the run has a learner.
        ConfigError: it cannot be such a run, or the server keeps another one of that name.
    """
    config = _for_many(config, meeting)
    if claim is not None:
        config = replace(config, out=str(claim.folder.path.parent))  # of the actors here: beside it
    before = claim is not None and (not claim.begins or claim.folder.hosts_path.exists())
    identity = Identity.of(config, meeting, None if claim is None else claim.folder)
    wire = topology(config.topology)
    server = Server(meeting.url)
    server.check()
    with ExitStack() as stack:
        companion = stack.enter_context(closing(Companion(meeting.url, identity, config))) if identity.actors else None
        preload = (*preloaded(config), *HOST_PRELOAD)
        hurried = ("interrupted", "replaced")
        supervisor = stack.enter_context(closing(Supervisor(config, interrupts, preload, hurried)))
        seen = supervisor.probe()
        whole = wire(config, seen)
        record = make_record(config, identity, whole, seen)
        if meeting.token:
            record = sign(record, meeting.token)
        if claim is not None and not claim.folder.hosts_path.exists():  # who dies now finds its place again
            identity.write(claim.folder)
        place = LearnerPlace.take(server, record, config.hosts.lease_seconds, meeting.replace_run)
        remote = {"server": server, "keys": place.keys, "run_id": identity.run_id, "fence": place.taken}
        beacon = stack.enter_context(closing(Beacon(place, config)))
        program = learner_side(whole, remote, resumed=before)
        watchers = [beacon] if companion is None else [beacon, companion]

        def first(ledger: Ledger, board: ControlBoard) -> None:
            beacon.announce(ledger.tell)
            beacon.guard(board)
            if companion is not None:
                companion.announce(ledger.tell)
            ledger.note("hosts.json", lambda: identity.write(ledger.folder))
            ledger.tell(f"run {identity.name} is at {server.address}: actors may join", "info")

        def last() -> None:
            beacon.check()
            if companion is not None:
                companion.check()

        return supervise(supervisor, program, config, [*observers, *watchers], claim, began, seen, first, last)


def join(
    url: str,
    run: str,
    *,
    actors: int = 0,
    out: str = "runs",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    token: str = "",
    observers: Sequence[Observer] = (),
    interrupts: Interrupts,
    began: float,
    run_id: str = "",
) -> dict[str, Any]:
    """An actor host's side: wait for the run, work until it is over, and return this host's summary.

    A host that lost its slots, or whose run was begun anew, joins again.

    Args:
        actors: actor processes; 0: as many as the run's configuration says.
        out: folder of run folders.
        env_kwargs: in place of the run's, one by one: what is different on this host.
        trust: modules of which the run may name an environment, an agent or a network.
        token: shared with the learner, which signs the run's record with it; then all that the record names may be.
        run_id: work for this run of that name only.

    Raises:
        LinkError: the server cannot be reached, or is not fit; or learner or server stayed away for too long.
        WaitTimeout: nobody started the run.
        ConfigError, EnvError: the environment is another one here, or cannot be made; names this host. Or the run
            wants something called here that is not of a trusted module.
    """
    RunKeys(run)
    server = Server(url)
    server.check()

    observers = contained(observers)
    tell = partial(contained_observers.tell, observers)
    minutes = HostsConfig().patience_minutes
    while True:
        record = _find(server, run, run_id, minutes, tell, interrupts)
        origin = f"run {record.name} at {server.address}"
        allowed = trusted_modules(record, token, trust, origin)
        config = local_config(record, actors, out, env_kwargs or {}, origin, allowed)
        minutes = config.hosts.patience_minutes
        try:
            summary = _work(server, record, config, observers, tell, interrupts, began)
        except ClosedError as error:  # it ended before we were in
            tell(str(error), "warning")
            continue
        if summary["stopped_by"] not in _AGAIN or interrupts.count:
            return summary
        tell(f"joining run {run} again", "info")


def make_record(config: Config, identity: Identity, program: Program, seen: Probe) -> RunRecord:
    """What other hosts must know before they join."""
    options = replay_of(program).options
    local = passing(options, 1, config.actor.envs_per_actor, int(config.hosts.window_mb * 2**20))
    return RunRecord(
        run_id=identity.run_id,
        name=identity.name,
        apexrl=versions()["apexrl"] or "",
        config=convert.to_toml(config),
        spec=spec_to_json(seen.spec),
        step_spec=step_spec_to_json(seen.step_spec),
        schema=schema(**options).hex(),
        weights_nbytes=seen.weights_nbytes,
        actor_slots=config.actor.actor_slots,
        host=host_name(),
        began=time.time(),
        local=options_to_json(local),
    )


def local_config(
    record: RunRecord,
    actors: int,
    out: str,
    env_kwargs: Mapping[str, Any],
    origin: str,
    trust: Sequence[str] = (),
) -> Config:
    """The run's configuration as an actor host uses it: when it ends is the learner's business.

    Raises:
        ConfigError: it is none, or does not go with what is wanted here, or names something to be called here that is
            not of a module in ``trust``.
    """
    config = entrusted(convert.from_toml(record.config, origin), trust, origin)
    folder = re.sub(r"[^\w.+=@-]", "-", f"{record.name}@{host_name()}")
    wanted = actors_here(actors, config.actor.actors, origin)
    actor = replace(config.actor, actors=wanted, actor_slots=record.actor_slots)
    actor = replace(actor, min_actors=min(actor.min_actors, actor.actors))
    env: EnvConfig = replace(config.env, env_kwargs={**config.env.env_kwargs, **env_kwargs})
    config = replace(config, name=folder, out=out, actor=actor, env=env, stop=StopConfig())
    convert.check(config)
    return config


def compare(record: RunRecord, seen: Probe, config: Config) -> None:
    """Refuse an environment, or an agent, that is another one here than on the learner's host.

    Raises:
        ConfigError: names this host and the first difference.
    """
    ours = {"environment": spec_to_json(seen.spec), "agent": step_spec_to_json(seen.step_spec)}
    theirs = {"environment": record.spec, "agent": record.step_spec}
    found = first_difference(ours, theirs)
    if found is None and seen.weights_nbytes != record.weights_nbytes:
        found = f"agent.weights: {seen.weights_nbytes} bytes here, {record.weights_nbytes} there"
    if found is not None:
        have = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
        raise ConfigError(
            f"on host {host_name()} {env_name(config)} is not what it is on the learner's host {record.host}: {found}. "
            f"Install the same versions on both (here: {have}; there: apexrl {record.apexrl})"
        )


def _for_many(config: Config, meeting: Meeting) -> Config:
    """``config`` settled for a run over several hosts.

    Raises:
        ConfigError: it cannot be one.
    """
    if config.serial:
        raise ConfigError("--serial runs everything in one process: leave it out, or --redis")
    if callable(config.env.env):  # other hosts must find it by its name
        convert.import_callable(convert.describe_callable(config.env.env), "--redis")
    return with_slots(replace(config, name=config.name or meeting.run or default_name(config)))


def _find(
    server: Server, run: str, run_id: str, minutes: float, tell: Callable[[str, Level], None], interrupts: Interrupts
) -> RunRecord:
    """The run's record; waits for the learner to publish it, and for a server that is away."""
    deadline = time.monotonic() + 60.0 * minutes
    told = False
    while True:
        try:
            rest = max(0.0, deadline - time.monotonic()) if told else 0.0
            record = find_run(server, run, rest, stopped=lambda: interrupts.count > 0)
            if not run_id or record.run_id == run_id:
                break
            late = f"run {run} at {server.address} is another one than the one to join"
        except ClosedError:
            raise KeyboardInterrupt from None
        except WaitTimeout as error:
            late = str(error)
        if time.monotonic() >= deadline:
            raise WaitTimeout(f"{late} (waited {minutes:g} minutes)")
        if not told:
            tell(f"waiting for run {run} at {server.address}", "info")
        told = True
        _pause(0.2, interrupts)
    ours = versions()["apexrl"] or ""
    if ours.split(".")[:2] != record.apexrl.split(".")[:2]:
        raise ConfigError(
            f"run {run} was started by apexrl {record.apexrl} on {record.host}, and host {host_name()} has {ours}: "
            "install the same version on every host"
        )
    return record


def _work(
    server: Server,
    record: RunRecord,
    config: Config,
    observers: Sequence[Observer],
    tell: Callable[[str, Level], None],
    interrupts: Interrupts,
    began: float,
) -> dict[str, Any]:
    """One membership, from the probe to the summary."""
    wire = topology(config.topology)
    with ExitStack() as stack:
        preload = (*preloaded(config), *HOST_PRELOAD)
        supervisor = stack.enter_context(closing(Supervisor(config, interrupts, preload, _HURRIED)))
        try:
            seen = supervisor.probe()
        except (EnvError, ConfigError, AgentError, SpecError) as error:
            raise type(error)(f"on host {host_name()}: {error}") from error
        compare(record, seen, config)
        whole = wire(config, seen)
        if schema(**replay_of(whole).options).hex() != record.schema:
            raise ConfigError(
                f"host {host_name()} would store steps otherwise than the learner's host {record.host}: install the "
                f"same version of apexrl on both (there: {record.apexrl})"
            )
        place = _lease(server, record, config, tell, interrupts)
        beacon = stack.enter_context(closing(Beacon(place, config)))
        remote = {
            "server": server,
            "keys": place.keys,
            "run_id": record.run_id,
            "member": place.member,
            "generation": place.generation,
        }
        program = actor_side(whole, [(slot.index, slot.generation) for slot in place.slots], remote)

        def first(ledger: Ledger, board: ControlBoard) -> None:
            beacon.announce(ledger.tell)
            slots = ", ".join(str(slot.index) for slot in place.slots)
            ledger.tell(f"joined run {record.name} at {server.address} with the slots {slots}", "info")

        return supervise(supervisor, program, config, [*observers, beacon], None, began, seen, first, beacon.check)


def _lease(
    server: Server, record: RunRecord, config: Config, tell: Callable[[str, Level], None], interrupts: Interrupts
) -> HostPlace:
    """Slots for all actors; those of a host that was just killed are waited for, and a server that is away."""
    lease, patience, backoff = config.hosts.lease_seconds, 60.0 * config.hosts.patience_minutes, Backoff()
    away = full = None  # monotonic seconds since when
    told: set[type[Exception]] = set()
    while True:
        now = time.monotonic()
        try:
            return HostPlace.join(server, record, config.actor.actors, ttl=lease)
        except LinkError as error:
            away, full = away or now, None  # slots may be leased that we were never told of: they expire
            if now - away > patience:
                raise
            words, pause = f"{error}; trying again", backoff.next()
            kind: type[Exception] = LinkError
        except ExhaustedError as error:
            away, full = None, full or now
            if now - full > _LEASE_PATIENCE * lease:
                raise
            words, pause = f"{error}; waiting, as those of a dead host are free after {lease:g} s", 0.25
            kind = ExhaustedError
            backoff.reset()
        if kind not in told:
            tell(words, "warning")
        told.add(kind)
        _pause(pause, interrupts)


def _pause(seconds: float, interrupts: Interrupts) -> None:
    """Sleep, but no longer than until Ctrl-C, which is raised."""
    ends = time.monotonic() + seconds
    while not interrupts.count and time.monotonic() < ends:
        time.sleep(min(0.05, seconds))
    if interrupts.count:
        raise KeyboardInterrupt
