"""A host that works for a run through its gateway: with environment workers, or with workers that compute gradients.

It has a supervisor, a ledger and a run folder of its own, with these workers alone. A thread (``lease_keeper``) renews
the host's lease at the gateway, reports what ended here, and hears whether the run is over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from apexrl.agents import AGENTS, with_agent
from apexrl.config import AgentConfig, Config, HostsConfig, StopConfig, convert
from apexrl.config.trust import entrusted
from apexrl.errors import AgentError, ApexrlError, ConfigError, EnvError, ExhaustedError, LinkError, SpecError
from apexrl.launch import contained_observers
from apexrl.launch.contained_observers import contained
from apexrl.launch.fork_client import preloaded
from apexrl.launch.host_agreement import (
    actors_here,
    first_difference,
    on_this_host,
    refuse_difference,
)
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.lease_keeper import LeaseKeeper
from apexrl.launch.local_run import supervise
from apexrl.launch.probe import probe, probe_env
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Supervisor
from apexrl.links.backoff import Backoff
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.printable import host_name
from apexrl.links.tcp.gateway_messages import Record
from apexrl.links.tcp.handshake import UnreachableError
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.parameter_frames import schema_of
from apexrl.links.tcp.parameter_relay import ParameterGateway
from apexrl.links.tcp.remote_inference import RemoteInference
from apexrl.links.tcp.tls import ClientTls
from apexrl.roles.env_worker import reply_fields, request_fields
from apexrl.run.log_lines import LogFormat
from apexrl.run.spec_json import fields_to_json, spec_to_json
from apexrl.run.status import Level, Observer
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.gateway_cut import envs_side, over_tcp, relay_side
from apexrl.topologies.validation import validate

if TYPE_CHECKING:
    from apexrl.links.redis.run_record import GatewayNews

ENVS_PRELOAD: Final = (
    "gymnasium",
    "apexrl.envs",
    "apexrl.launch.probe",
    "apexrl.launch.worker_process",
    "apexrl.links.tcp.remote_inference",
    "apexrl.roles",
)
"""What the fork server of a host of environment workers imports before the first one: no agent, and so no PyTorch."""

AGAIN: Final = frozenset(("lost slots", "replaced", "moved", "scaled"))
"""Why a host joins once more."""
_HURRIED: Final = frozenset(("finished", "stopped", "lost learner", "interrupted")) | AGAIN
"""Why workers end at once: nobody waits for what they have."""
_FULL_LEASES: Final = 1.5  # that a host which was killed holds its slots


class Place(NamedTuple):
    """Where a run's gateway is."""

    address: tuple[str, int]
    token: str
    tls: ClientTls | None = None
    news: Callable[[], GatewayNews] = lambda: "here"
    """What the run says of it now."""


class Membership(Protocol):
    """What else ties a host to its run: an observer."""

    def announce(self, tell: Callable[[str, Level], None]) -> None: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


class GatewayHost:
    """This host, for one run after another.

    Args:
        actors: workers that it brings; 0: as many as the run says.
        out: folder of its run folder.
        env_kwargs: keyword arguments of the environment that differ here.
        log_format: of the logs of roles here.
        observers: told of everything.
    """

    def __init__(
        self,
        actors: int,
        out: str,
        env_kwargs: Mapping[str, Any] | None,
        log_format: LogFormat,
        observers: Sequence[Observer],
        interrupts: Interrupts,
        began: float,
    ) -> None:
        self.actors = actors
        self._here = out, env_kwargs or {}
        self._log_format = log_format
        self._observers = contained(observers)
        self._interrupts, self._began = interrupts, began
        self._minutes = HostsConfig().patience_minutes
        self.tell = partial(contained_observers.tell, self._observers)

    def work(
        self,
        place: Place,
        trust: Sequence[str] = (),
        member: Callable[[Config, list[int]], Membership] | None = None,
    ) -> dict[str, Any] | None:
        """Wait for the run's gateway, work until the run is over, and return this host's summary; None: the run
        was over, or its gateway elsewhere, before this host was in.

        Args:
            trust: modules from which the run may name what is called here.
            member: called with the configuration and the leased slots; what it returns is closed at the end.
        """
        host = _connection(place)
        with ExitStack() as stack:
            stack.callback(host.leave)
            record = self._find(host, place)
            if record is None:
                return None
            config = local_config(record, self.actors, *self._here, f"the run at {host.where}", trust)
            config = replace(config, log_format=self._log_format)
            self._minutes = config.hosts.patience_minutes
            preload = ENVS_PRELOAD if record.brings == "environments" else preloaded(config)
            supervisor = stack.enter_context(closing(Supervisor(config, self._interrupts, preload, _HURRIED)))
            seen, whole = _look(supervisor, record, config)
            self._lease(host, record, config.actor.actors)
            keepers: list[Any] = [stack.enter_context(closing(self._keeper(host, record, place)))]
            if member is not None:
                keepers.append(stack.enter_context(closing(member(config, [slot for slot, _ in host.leases]))))
            program = _program(host, record, config, seen, whole)

            def first(ledger: Ledger, board: ControlBoard) -> None:
                slots = ", ".join(str(slot) for slot, _ in host.leases)
                ledger.carried = {"learner": record.host, "slots": [slot for slot, _ in host.leases]}
                keepers[0].tell_changes(board)
                for one in keepers:
                    one.announce(ledger.tell)
                ledger.tell(f"joined run {record.name} at {host.where} with the slots {slots}", "info")

            def last() -> None:
                for one in keepers:
                    one.check()

            watching = [*self._observers, *keepers]
            return supervise(supervisor, program, config, watching, None, self._began, seen, first, last)

    def enter(self, stack: ExitStack, place: Place, run: str, schema: str) -> tuple[HostConnection, LeaseKeeper] | None:
        """Take a place for one learner at the gateway; ``stack`` gives it back. None: as of ``work``.

        Args:
            run: its id.
            schema: of the parameters here, as of ``Record``.

        Raises:
            ConfigError: those there are others.
            ExhaustedError: there is none.
        """
        host = _connection(place)
        stack.callback(host.leave)
        record = self._find(host, place, run)
        if record is None:
            return None
        if record.schema != schema:
            config = convert.from_toml(record.config, f"the run at {host.where}")
            refuse_difference(config, "agent: its parameters are others, or cut otherwise", record.host, record.apexrl)
        self._lease(host, record, 1)
        return host, stack.enter_context(closing(self._keeper(host, record, place)))

    def _keeper(self, host: HostConnection, record: Record, place: Place) -> LeaseKeeper:
        return LeaseKeeper(host, record, 60.0 * self._minutes, place.news)

    def _find(self, host: HostConnection, place: Place, run: str = "") -> Record | None:
        """The run's record; waits for the learner. None: the run says that it is over, or its gateway elsewhere."""
        deadline, told, backoff = time.monotonic() + 60.0 * self._minutes, False, Backoff(least=0.2)
        while True:
            try:
                record = host.connect(run)
                break
            except ApexrlError as error:
                if place.news() != "here":
                    return None
                if not isinstance(error, UnreachableError):
                    raise
                if time.monotonic() >= deadline:
                    raise LinkError(f"{error} (waited {self._minutes:g} minutes)") from None
                if not told:
                    self.tell(f"waiting for a run at {host.where} ({error})", "info")
                told = True
                self._interrupts.pause(backoff.next())
        return record

    def _lease(self, host: HostConnection, record: Record, wanted: int) -> None:
        """Slots for all workers; those of a host that was just killed are waited for, and a learner that is away."""
        deadline = time.monotonic() + _FULL_LEASES * record.lease_seconds
        told, backoff = False, Backoff()
        while True:
            try:
                host.join(wanted)
                return
            except ExhaustedError as error:
                if time.monotonic() > deadline:
                    raise
                words = f"{error}; waiting, as those of a dead host are free after {record.lease_seconds:g} s"
                self._interrupts.pause(0.25)
            except UnreachableError as error:  # the probe took long, or the learner restarts
                if time.monotonic() > deadline:
                    raise
                words = f"{error}; trying again"
                self._interrupts.pause(backoff.next())
                try:
                    host.connect(record.run_id)
                except UnreachableError:
                    continue
            if not told:
                self.tell(words, "warning")
            told = True


def join(
    address: tuple[str, int],
    token: str,
    *,
    tls: ClientTls | None = None,
    actors: int = 0,
    out: str = "runs",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    log_format: LogFormat = "text",
    observers: Sequence[Observer] = (),
    interrupts: Interrupts,
    began: float,
) -> dict[str, Any]:
    """Work for the run at ``address`` until it is over, and return this host's summary; see ``remote_api.join_envs``.

    A host that lost its slots, or whose run was started anew, joins again.
    """
    here = GatewayHost(actors, out, env_kwargs, log_format, observers, interrupts, began)
    while True:
        summary = here.work(Place(address, token, tls), trust)
        assert summary is not None, "an address that somebody typed stays"
        if summary["stopped_by"] not in AGAIN or interrupts.count:
            return summary
        here.tell(f"joining the run at {address[0]}:{address[1]} again", "info")


def local_config(
    record: Record, actors: int, out: str, env_kwargs: Mapping[str, Any], origin: str, trust: Sequence[str] = ()
) -> Config:
    """The run's configuration as this host uses it: when it ends is the learner's business.

    Raises:
        ConfigError: it is none, or names something to be called here that is not of a module in ``trust``.
    """
    config = convert.from_toml(record.config, origin)
    environments = record.brings == "environments"
    if environments:
        known = config.agent.agent if config.agent.agent in AGENTS else AgentConfig().agent
        config = replace(config, agent=with_agent(Config(), known).agent)  # no agent is called here
        entrusting = replace(config, topology=Config().topology)  # nor is the topology
        config = replace(entrusted(entrusting, trust, origin), topology=config.topology)
    else:
        config = entrusted(config, trust, origin)
    wanted = actors_here(actors, max(1, config.actor.actors), origin)
    config = replace(on_this_host(config, record.name, wanted, out, env_kwargs), stop=StopConfig())
    actor = config.actor
    if environments:
        convert.check_values(replace(config, actor=replace(actor, actor_slots=0)))
        if sum(record.splits) != actor.envs_per_actor:
            raise ConfigError(
                f"{origin} has groups of {record.splits} environments, and {actor.envs_per_actor} of them"
            )
    else:
        config = replace(validate(config), stop=StopConfig())
    return config


def _look(supervisor: Supervisor, record: Record, config: Config) -> tuple[Probe, Program | None]:
    """What environment and agent are here, and the program of the run if its workers compute gradients.

    Raises:
        ConfigError, EnvError …: they cannot be made, or differ from those on the learner's host.
    """
    environments = record.brings == "environments"
    try:
        seen = supervisor.probe(probe_env if environments else probe)
    except (EnvError, ConfigError, AgentError, SpecError) as error:
        raise type(error)(f"on host {host_name()}: {error}") from error
    found = first_difference(spec_to_json(seen.spec), record.spec)
    if found is None and not environments:
        found = first_difference(fields_to_json(seen.step_spec), record.step_spec, "agent")
    if found is not None:
        refuse_difference(config, found, record.host, record.apexrl)
    if environments:
        return seen, None
    whole = topology(config.topology)(config, seen)
    gradients = over_tcp(whole).gradients
    if gradients is None or schema_of(gradients.options["shards"]).hex() != record.schema:
        refuse_difference(config, "agent: its parameters are others, or cut otherwise", record.host, record.apexrl)
    return seen, whole


def _connection(place: Place) -> HostConnection:
    return HostConnection(place.address, place.token, host_name(), os.getpid(), place.tls)


def parameter_gateway(host: HostConnection, run: str) -> ParameterGateway:
    """For the relay of this host."""
    return ParameterGateway(host.address, host.token, tuple(host.leases), run, host.member, host.tls)


def _program(host: HostConnection, record: Record, config: Config, seen: Probe, whole: Program | None) -> Program:
    if whole is None:
        columns = request_fields(seen.spec), reply_fields(seen.spec), record.splits
        who: dict[str, Any] = {"run": record.run_id, "member": host.member, "leases": host.leases, "tls": host.tls}
        return envs_side(config, seen.spec, host.leases, RemoteInference(host.address, host.token, *columns, **who))
    return relay_side(whole, host.leases, parameter_gateway(host, record.run_id))
