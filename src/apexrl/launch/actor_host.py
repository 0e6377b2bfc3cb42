"""An actor host: a machine that brings actors to a run whose learner is elsewhere, through Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from apexrl.config import Config, HostsConfig, StopConfig, convert
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
from apexrl.launch.fork_client import preloaded
from apexrl.launch.gateway_host import AGAIN, GatewayHost, Place, parameter_gateway
from apexrl.launch.host_agreement import actors_here, first_difference, on_this_host, refuse_difference
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.lease_keeper import LeaseKeeper
from apexrl.launch.local_run import supervise
from apexrl.launch.probe import probe, probe_learner
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Supervisor
from apexrl.links.backoff import Backoff
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.printable import host_name
from apexrl.links.redis.averaging_record import RedisRecord
from apexrl.links.redis.checked_values import PROTOCOLS, GatewayAddress
from apexrl.links.redis.host_orders import ordered_actors
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_record import RunRecord, find_run, gateway_news
from apexrl.links.redis.server import Server
from apexrl.links.redis.signing import trusted_modules
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.parameter_frames import schema_of
from apexrl.links.tcp.tls import ClientTls
from apexrl.replay.chunks import schema
from apexrl.run.log_lines import LogFormat
from apexrl.run.spec_json import fields_to_json, spec_to_json
from apexrl.run.status import Level, Observer
from apexrl.topologies import Probe, topology
from apexrl.topologies.host_cut import actor_side, replay_of
from apexrl.topologies.learner_hosts import host_of_a_sender, other_host, sends_gradients, with_own_replay
from apexrl.topologies.sync_learners import averaging
from apexrl.topologies.validation import validate

HOST_PRELOAD: Final = ("redis", "apexrl.links.redis.experience_stream", "apexrl.links.redis.weights_downloader")

_HURRIED: Final = frozenset(("finished", "stopped", "replaced", "lost learner"))
"""Reasons to end without waiting for the last steps to arrive: nobody would take them."""

_AGAIN: Final = AGAIN
"""Reasons to join once more."""

_OTHER_PLACES: Final = 1 << 16  # of learners: those of the first host come before

Enter = Callable[..., tuple[HostConnection, LeaseKeeper] | None]
"""``GatewayHost.enter`` of a place and a run."""

_LEASE_PATIENCE: Final = 1.5  # leases; a host that was killed holds its slots for one


def join(
    url: str,
    run: str,
    *,
    actors: int = 0,
    learners: int = 0,
    out: str = "runs",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    log_format: LogFormat = "text",
    token: str = "",
    observers: Sequence[Observer] = (),
    interrupts: Interrupts,
    began: float,
    run_id: str = "",
    gives_way: bool = False,
) -> dict[str, Any]:
    """Wait for the run, work until it is over, and return this host's summary; see ``remote_api.join``.

    A host that lost its slots, that was told to bring another number of actors, or whose run was started anew, joins
    again. One that was drained does not, and is refused.

    Args:
        run_id: work only for the run of that name with this id.
        gives_way: the learner is on this machine, and has its processors first.
    """
    RunKeys(run)
    server = Server(url)
    server.check()

    observers = contained(observers)
    tell = partial(contained_observers.tell, observers)
    minutes, refused = HostsConfig().patience_minutes, 0
    through_gateway = GatewayHost(actors, out, env_kwargs, log_format, observers, interrupts, began)
    while True:
        record = _find(server, run, run_id, minutes, tell, interrupts)
        origin = f"run {record.name} at {server.address}"
        allowed = trusted_modules(record, token, trust, origin)
        if learners:
            _check_learners(record)
        ordered = ordered_actors(server, run, host_name())
        heeds = ordered not in (0, refused) and ordered <= record.actor_slots
        wanted, unheeded = (ordered, 0) if heeds else (actors, ordered)
        if isinstance(record.gateway, GatewayAddress):
            place = _place(server, record, record.gateway, token)
            through_gateway.actors = wanted
            try:
                member = partial(_member, server, record, tell, interrupts, unheeded)
                found = through_gateway.work(place, allowed, member)
            except ClosedError as error:
                tell(str(error), "warning")
                continue
            except ExhaustedError as error:
                if not heeds:
                    raise
                tell(f"{error}. This host was told to bring {ordered}, and brings as many as before", "warning")
                refused = ordered
                continue
            if found is not None and (found["stopped_by"] not in _AGAIN or interrupts.count):
                return found
            moved = f"run {run} has ended, or has its gateway elsewhere now"
            tell(f"joining run {run} again" if found else moved, "info")
            continue
        config = local_config(record, wanted, out, env_kwargs or {}, origin, allowed)
        config = replace(config, log_format=log_format)
        minutes = config.hosts.patience_minutes
        enter: Enter | None = None
        if learners and isinstance(record.learners_gateway, GatewayAddress):
            place, config = _place(server, record, record.learners_gateway, token), with_own_replay(config)
            enter = partial(through_gateway.enter, place=place, run=record.run_id)
        try:
            summary = _work(
                server, record, config, learners, enter, observers, tell, interrupts, began, unheeded, gives_way
            )
        except ExhaustedError as error:
            if not heeds:
                raise
            tell(f"{error}. This host was told to bring {ordered} actors, and brings as many as before", "warning")
            refused = ordered
            continue
        except ClosedError as error:  # it ended before we were in
            tell(str(error), "warning")
            continue
        if summary["stopped_by"] not in _AGAIN or interrupts.count:
            return summary
        tell(f"joining run {run} again", "info")


def _place(server: Server, record: RunRecord, gateway: GatewayAddress, token: str) -> Place:
    """Where the run's gateway is.

    Raises:
        ConfigError: one must have the token that the learner's user has given to its hosts.
    """
    secret = gateway.token or token
    if not secret:
        raise ConfigError(
            f"run {record.name} at {server.address} lets in hosts with its token alone: give --token-file, or set "
            "APEXRL_TOKEN"
        )
    tls = ClientTls(fingerprint=gateway.fingerprint) if gateway.fingerprint else None
    return Place((gateway.host, gateway.port), secret, tls, partial(gateway_news, server, record))


def _member(
    server: Server,
    record: RunRecord,
    tell: Callable[[str, Level], None],
    interrupts: Interrupts,
    refused: int,
    config: Config,
    slots: list[int],
) -> Beacon:
    """The run's server is told of this host, too; its slots are the gateway's."""
    lease = _lease(server, record, config, 0, tell, interrupts)
    lease.works_in = slots
    return Beacon(lease, config, reports=False, refused=refused)


def local_config(
    record: RunRecord,
    actors: int,
    out: str,
    env_kwargs: Mapping[str, Any],
    origin: str,
    trust: Sequence[str] = (),
) -> Config:
    """The run's configuration on an actor host, without the stop rules, which are the learner's.

    Raises:
        ConfigError: it is none, or does not go with what is wanted here, or names something to be called here that is
            not of a module in ``trust``.
    """
    config = entrusted(convert.from_toml(record.config, origin), trust, origin)
    config = on_this_host(config, record.name, actors_here(actors, config.actor.actors, origin), out, env_kwargs)
    config = replace(config, actor=replace(config.actor, actor_slots=record.actor_slots))
    return replace(validate(config), stop=StopConfig())


def _check_learners(record: RunRecord) -> None:
    """Refuse to bring a learner to a run that takes none.

    Raises:
        ConfigError: says why.
    """
    known = record.learners_refused
    why = known if isinstance(known, str) else f"it was started by apexrl {record.apexrl}, which knows of none"
    if why:
        raise ConfigError(f"run {record.name} takes no learners of other hosts (--learners): {why}")


def compare(record: RunRecord, seen: Probe, config: Config) -> None:
    """Refuse an environment, or an agent, that differs from the learner's host.

    Raises:
        ConfigError: names this host and the first difference.
    """
    ours = {"environment": spec_to_json(seen.spec), "agent": fields_to_json(seen.step_spec)}
    theirs = {"environment": record.spec, "agent": record.step_spec}
    found = first_difference(ours, theirs)
    if found is None and seen.weights_nbytes != record.weights_nbytes:
        found = f"agent.weights: {seen.weights_nbytes} bytes here, {record.weights_nbytes} there"
    if found is not None:
        refuse_difference(config, found, record.host, record.apexrl)


def _find(
    server: Server, run: str, run_id: str, minutes: float, tell: Callable[[str, Level], None], interrupts: Interrupts
) -> RunRecord:
    """Wait for the run's record, and for a server that cannot be reached."""
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
        interrupts.pause(0.2)
    return record


def _work(
    server: Server,
    record: RunRecord,
    config: Config,
    learners: int,
    enter: Enter | None,
    observers: Sequence[Observer],
    tell: Callable[[str, Level], None],
    interrupts: Interrupts,
    began: float,
    refused: int,
    gives_way: bool,
) -> dict[str, Any]:
    """Work for the run, from the probe to the summary.

    Args:
        enter: takes the learner's place at the gateway to the run's parameter servers; None: there are none.
        refused: a number of actors that this host was told to bring and could not; 0: none.
    """
    wire = topology(config.topology)
    with ExitStack() as stack:
        preload = (*preloaded(config), *HOST_PRELOAD)
        supervisor = stack.enter_context(closing(Supervisor(config, interrupts, preload, _HURRIED)))
        try:
            seen = supervisor.probe(probe_learner if learners else probe)
        except (EnvError, ConfigError, AgentError, SpecError) as error:
            raise type(error)(f"on host {host_name()}: {error}") from error
        compare(record, seen, config)
        whole = wire(config, seen)
        if schema(**replay_of(whole).options).hex() != record.schema:
            raise ConfigError(
                f"host {host_name()} would store steps otherwise than the learner's host {record.host}: install the "
                f"same version of apexrl on both (there: {record.apexrl})"
            )
        sender = sends_gradients(whole) if learners else None
        if (sender is None) != (enter is None):
            raise ConfigError(
                f"run {record.name} takes no learner of this host: whether its learners have a gateway goes not with "
                f"its topology {config.topology}"
            )
        lease = _lease(server, record, config, config.actor.actors, tell, interrupts)
        averages = learners > 0 and enter is None
        told = {"reports": enter is None, "counts": averages}
        beacon = stack.enter_context(closing(Beacon(lease, config, refused=refused, **told)))
        keepers: list[Beacon | LeaseKeeper] = [beacon]
        leases = [(slot.index, slot.generation) for slot in lease.slots]
        if enter is not None and sender is not None:
            entered = enter(stack, schema=schema_of(sender.ports["gradients"].options["shards"]).hex())
            if entered is None:
                raise ClosedError(f"run {record.name} has ended, or has its gateway elsewhere now")
            host, keeper = entered
            keepers.append(keeper)
            program = host_of_a_sender(whole, leases, host.leases, parameter_gateway(host, record.run_id))
        elif averages:
            shared, place = RedisRecord(server, lease.keys, record.run_id), _OTHER_PLACES + leases[0][0]
            program = other_host(whole, leases, averaging(whole, config, seen, record=shared, first=place))
        else:
            remote = {
                "server": server,
                "keys": lease.keys,
                "run_id": record.run_id,
                "member": lease.member,
                "generation": lease.generation,
                "protocol": PROTOCOLS.newest_common(record.protocols, f"run {record.name}"),
            }
            program = actor_side(whole, leases, remote, gives_way)

        def first(ledger: Ledger, board: ControlBoard) -> None:
            for keeper in keepers:
                keeper.announce(ledger.tell)
            beacon.tell_steps(board)
            slots = ", ".join(str(slot.index) for slot in lease.slots)
            also = "a learner and " if learners else ""
            ledger.tell(f"joined run {record.name} at {server.address} with {also}the slots {slots}", "info")

        def last() -> None:
            for keeper in keepers:
                keeper.check()

        return supervise(supervisor, program, config, [*observers, *keepers], None, began, seen, first, last)


def _lease(
    server: Server,
    record: RunRecord,
    config: Config,
    actors: int,
    tell: Callable[[str, Level], None],
    interrupts: Interrupts,
) -> HostLease:
    """Lease slots for all actors. Waits for those of a killed host, and for a server that cannot be reached."""
    lease, patience, backoff = config.hosts.lease_seconds, 60.0 * config.hosts.patience_minutes, Backoff()
    away = full = None  # monotonic seconds since when
    told: set[type[Exception]] = set()
    while True:
        now = time.monotonic()
        try:
            return HostLease.join(server, record, actors, ttl=lease)
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
        interrupts.pause(pause)
