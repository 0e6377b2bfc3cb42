"""The learner's side of a run through Redis: a supervised run whose experience comes from other hosts too."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from apexrl.config import Config
from apexrl.config.placement import Redis
from apexrl.config.record_form import for_hosts
from apexrl.errors import ConfigError
from apexrl.launch.actor_host import HOST_PRELOAD
from apexrl.launch.beacon import Beacon
from apexrl.launch.fork_client import preloaded
from apexrl.launch.gateway_run import GATEWAY_PRELOAD
from apexrl.launch.gateway_run import make_record as make_tcp_record
from apexrl.launch.host_agreement import open_to_hosts
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.local_actor_host import LocalActorHost
from apexrl.launch.local_run import supervise
from apexrl.launch.open_gateway import OpenGateway
from apexrl.launch.probe import probe_beginning, probe_learner
from apexrl.launch.run_claim import Claim
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Supervisor
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.printable import host_name
from apexrl.links.redis.averaging_record import RedisRecord
from apexrl.links.redis.keys import check_name
from apexrl.links.redis.run_record import LearnerLease, RunRecord
from apexrl.links.redis.server import Server
from apexrl.links.redis.signing import sign
from apexrl.replay.chunks import schema
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.folder import RunFolder, versions
from apexrl.run.spec_json import fields_to_json, spec_to_json
from apexrl.run.status import Observer
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.gateway_cut import asks_servers, gateway_side
from apexrl.topologies.host_cut import learner_side, options_to_json, passing, replay_of
from apexrl.topologies.learner_hosts import first_host, refusal, sends_gradients, with_gateway
from apexrl.topologies.sync_learners import averaging


@dataclass(frozen=True)
class Identity:
    """A run's name on a Redis server, and its id among all runs of that name."""

    name: str
    run_id: str
    actors: bool
    """Whether the learner's machine brings actors too."""

    @classmethod
    def of(cls, config: Config, placement: Redis, folder: RunFolder | None) -> Identity:
        """A new identity, or that of the run in ``folder``."""
        known = cls.read(folder) if folder is not None else None
        name = placement.run or (known.name if known else folder.path.name if folder is not None else config.name)
        actors = placement.actors if placement.actors is not None else known is None or known.actors
        return cls(check_name(name), known.run_id if known else str(uuid.uuid4()), actors)

    def write(self, folder: RunFolder) -> None:
        values = {"run": self.name, "run_id": self.run_id, "actors": self.actors}
        replace_text(folder.hosts_path, json.dumps(values) + "\n", folder.generations.check)

    @classmethod
    def read(cls, folder: RunFolder) -> Identity | None:
        """The identity in a run folder; None: the run was never on a server."""
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
    placement: Redis,
    observers: Sequence[Observer],
    claim: Claim | None,
    interrupts: Interrupts,
    began: float,
) -> dict[str, Any]:
    """Run the learner's side, from its lease on the server to the summary.

    Args:
        placement: with ``actors``, this machine is an actor host too, with ``config.actor.actors``.

    Raises:
        LinkError: the server cannot be reached, or is not fit for a run.
        HeldError: the run has a learner.
        ConfigError: it cannot be such a run, or the server keeps another one of that name.
    """
    config = open_to_hosts(config, "--redis", placement.run)
    if claim is not None:
        config = replace(config, out=claim.folder.out(config))  # of the actors here: beside it
    identity = Identity.of(config, placement, None if claim is None else claim.folder)
    server = Server(placement.url)
    server.check()
    with ExitStack() as stack:
        actors = stack.enter_context(ExitStack())
        local_host = (
            actors.enter_context(closing(LocalActorHost(placement.url, identity, config))) if identity.actors else None
        )
        where = {"listen": placement.listen, "advertise": placement.advertise}
        begins = claim is None or claim.begins
        side = LearnerSide(config, placement.token, server, identity, interrupts, begins, **where)
        stack.enter_context(closing(side))
        if side.gateway is not None:  # workers of this machine need none
            actors.close()
            local_host = None
        resumed = claim is not None and (not claim.begins or claim.folder.hosts_path.exists())
        if claim is not None and not claim.folder.hosts_path.exists():  # a restart finds its lease again
            identity.write(claim.folder)
        lease = side.take(placement.replace_run)
        beacon = stack.enter_context(closing(side.hold(lease)))
        return side.work(lease, beacon, observers, claim, began, resumed, local_host)


class LearnerSide:
    """The learner's side of a run, looked at and wired before it has the run's lease.

    Args:
        config: settled by ``open_to_hosts``.
        token: signs the run's record; empty: it is not signed.
        listen, advertise: of the gateway, if the program needs one (``OpenGateway``).

    Attributes:
        gateway: where workers of other hosts connect that need servers of this one; None: they bring experience.
        learners_gateway: where learners of other hosts connect; None: their gradients go to no servers of this one.
    """

    def __init__(
        self,
        config: Config,
        token: str,
        server: Server,
        identity: Identity,
        interrupts: Interrupts,
        begins: bool = True,
        listen: str = "",
        advertise: str = "",
    ) -> None:
        wire = topology(config.topology)
        self.gateway = self.learners_gateway = None
        self.identity = identity
        self._config = config
        self._server = server
        preload = (*preloaded(config), *HOST_PRELOAD, *GATEWAY_PRELOAD)
        self.supervisor = Supervisor(config, interrupts, preload, hurried=("interrupted", "replaced"))
        try:
            self._seen = self.supervisor.probe(probe_beginning if begins else probe_learner)
            self._program = wire(config, self._seen)
            if asks_servers(self._program):
                self.gateway = OpenGateway(server, listen, advertise, token)
                self._tcp_record = make_tcp_record(config, identity.run_id, self._program, self._seen)
                actors = config.actor.actors if identity.actors else 0
                here = replace(config, actor=replace(config.actor, actors=actors))
                self._program = wire(here, self._seen)
            elif sends_gradients(self._program) is not None:
                self.learners_gateway = OpenGateway(server, listen, advertise, token)
                self._tcp_record = make_tcp_record(config, identity.run_id, self._program, self._seen)
            elif listen or advertise:
                flag = "--listen" if listen else "--advertise"
                raise ConfigError(f"{flag} means nothing to topology {config.topology} with --redis: leave it out")
            record = make_record(config, identity, self._program, self._seen, self.gateway, self.learners_gateway)
            self._record = sign(record, token) if token else record
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.supervisor.close()
        for gateway in (self.gateway, self.learners_gateway):
            if gateway is not None:
                gateway.close()

    def take(self, replace_run: bool = False, takes_over: bool = False) -> LearnerLease:
        """The run's lease; arguments and errors as of ``LearnerLease.take``."""
        ttl = self._config.hosts.learner_lease_seconds
        return LearnerLease.take(self._server, self._record, ttl, replace_run, takes_over)

    def hold(self, lease: LearnerLease) -> Beacon:
        """What renews the lease until it is closed."""
        return Beacon(lease, self._config)

    def work(
        self,
        lease: LearnerLease,
        beacon: Beacon,
        observers: Sequence[Observer],
        claim: Claim | None,
        began: float,
        resumed: bool,
        local_host: LocalActorHost | None,
    ) -> dict[str, Any]:
        """Run it to its end; returns the summary.

        Args:
            beacon: of ``hold``; whoever made it closes it.
            resumed: the run was on a server before.
            local_host: the actor host of this machine; whoever made it closes it.
        """
        identity = self.identity
        remote = {"server": self._server, "keys": lease.keys, "run_id": identity.run_id, "fence": lease.taken}
        if self.gateway is None:
            whole = self._program
            if self.learners_gateway is not None:
                whole = with_gateway(whole, self._opened(self.learners_gateway))
            elif not self._record.learners_refused:
                shared = RedisRecord(self._server, lease.keys, identity.run_id)
                whole = first_host(whole, averaging(whole, self._config, self._seen, record=shared))
            program = learner_side(whole, remote, resumed=resumed)
        else:
            program = gateway_side(self._program, self._opened(self.gateway))
        watchers = [beacon] if local_host is None else [beacon, local_host]

        def first(ledger: Ledger, board: ControlBoard) -> None:
            beacon.announce(ledger.tell)
            beacon.guard(board)
            if local_host is not None:
                local_host.announce(ledger.tell, ledger.keep_output)
            ledger.note("hosts.json", lambda: identity.write(ledger.folder))
            ledger.tell(f"run {identity.name} is at {self._server.address}: actors may join", "info")
            if self.gateway is not None:
                for text in self.gateway.warnings:
                    ledger.tell(text, "warning")
            if self.learners_gateway is not None:  # which few runs need
                for text in self.learners_gateway.warnings:
                    ledger.tell(text, "info")

        def last() -> None:
            beacon.check()
            if local_host is not None:
                local_host.check()

        watching = [*observers, *watchers]
        return supervise(self.supervisor, program, self._config, watching, claim, began, self._seen, first, last)

    def _opened(self, gateway: OpenGateway) -> dict[str, Any]:
        """The gateway role's ports."""
        return {"listen": gateway.listen, "record": self._tcp_record, "found": True}


def make_record(
    config: Config,
    identity: Identity,
    program: Program,
    seen: Probe,
    gateway: OpenGateway | None = None,
    learners_gateway: OpenGateway | None = None,
) -> RunRecord:
    """The record that other hosts read before they join."""
    carried: dict[str, Any]
    if gateway is None:
        options = replay_of(program).options
        local = passing(options, 1, config.actor.envs_per_actor, int(config.hosts.window_mb * 2**20))
        carried = {"schema": schema(**options).hex(), "local": options_to_json(local)}
        if learners_gateway is not None:
            carried["learners_gateway"] = learners_gateway.address
    else:
        carried = {"schema": "", "local": {}, "gateway": gateway.address}
    return RunRecord(
        run_id=identity.run_id,
        name=identity.name,
        apexrl=versions()["apexrl"] or "",
        config=for_hosts(config),
        spec=spec_to_json(seen.spec),
        step_spec=fields_to_json(seen.step_spec),
        weights_nbytes=seen.weights_nbytes,
        actor_slots=config.actor.actor_slots,
        host=host_name(),
        began=time.time(),
        **carried,
        learners_refused=refusal(program, seen)[:1000],
    )
