"""Cuts a program between hosts where requests for actions, or gradients and parameters, cross (``crossing``).

The learner's side keeps every role and gains a gateway; its links get room for the workers of all hosts. Another host
has the roles that move: environment workers alone, or workers that compute gradients with a relay in the servers'
place. Workers and servers see no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.roles import EnvWorker, Relay, WorkerGateway
from apexrl.spec import EnvSpec
from apexrl.topologies.crossing import Crossing, check_rounding, crossing
from apexrl.topologies.host_cut import leased, rewired
from apexrl.topologies.program import Link, Node, Program, ReplayLink

if TYPE_CHECKING:
    from apexrl.links.tcp.parameter_relay import ParameterGateway

EXPERIENCE_NEEDS_REDIS: Final = (
    "over TCP travel observations, actions, gradients and parameters; experience crosses through Redis, which keeps it "
    "while the learner is away"
)


def asks_servers(program: Program) -> bool:
    """Whether workers on other hosts would use a gateway to this program's servers, and nothing else."""
    found = crossing(program)
    return bool(found.inference or found.gradients) and not found.replays


def over_tcp(program: Program) -> Crossing:
    """How ``program`` can be cut where only requests, gradients and parameters cross.

    Raises:
        ConfigError: it cannot; or a setting means nothing there.
    """
    found = crossing(program)
    if found.replays or found.weights or not (found.inference or found.gradients):
        raise ConfigError(
            f"topology {program.config.topology} cannot run with --listen: {EXPERIENCE_NEEDS_REDIS}. Use --redis, or "
            "--topology seed, ga3c, or a3c --no-hogwild"
        )
    check_rounding(program.config, found)
    return found


def gateway_side(program: Program, remote: Mapping[str, Any]) -> Program:
    """What runs on the learner's host.

    Args:
        program: of a configuration whose actor slots are settled.
        remote: the gateway's ports that say where it listens, and what it tells other hosts.

    Raises:
        ConfigError: nothing of the topology could run elsewhere, or there is no slot for other hosts' workers.
    """
    config, found = program.config, over_tcp(program)
    slots, actors = config.actor.actor_slots, config.actor.actors
    if slots <= actors:
        raise ConfigError(
            f"--actor-slots {slots} leaves none for other hosts beside --actors {actors}: give more, or leave out "
            "--listen"
        )
    roomy: dict[int, Any] = {}

    def port(value: Any) -> Any:
        if id(value) not in roomy:
            roomy[id(value)] = _roomy(value, slots, slots * config.actor.envs_per_actor)
        return roomy[id(value)]

    nodes = [
        replace(node, most=min(node.most, node.count), ports={name: port(value) for name, value in node.ports.items()})
        for node in program.nodes
    ]  # other hosts have the other slots
    side = Program(config, nodes)
    crossing_links = {"inference": found.inference, "gradients": found.gradients, "parameters": found.parameters}
    links = {name: port(link) for name, link in crossing_links.items() if link is not None}
    side.role(WorkerGateway, config=config, **links, first=actors, restarts=config.learner.learner_restarts, **remote)
    return side


def envs_side(config: Config, spec: EnvSpec, leases: Sequence[tuple[int, int]], inference: Any) -> Program:
    """What runs on a host that brings environment workers.

    Args:
        leases: (slot of the run, generation of its lease) of every worker.
        inference: stands for the link, whose server is elsewhere.
    """
    actor = config.actor
    ports = {"config": config, "spec": spec, "inference": inference}
    fragile: dict[str, Any] = {"restarts": actor.actor_restarts, "env_timeout": actor.env_timeout}
    workers = Node("env_worker", EnvWorker, len(leases), ports, **fragile, least=actor.min_actors)
    return Program(config, [leased(workers, leases)])


def relay_side(program: Program, leases: Sequence[tuple[int, int]], gateway: ParameterGateway | None) -> Program:
    """What runs on a host that brings workers which compute gradients.

    Args:
        program: of this host's configuration.
        leases: (slot of the run, generation of its lease) of every worker.
        gateway: to the parameter servers; None: the relay is told when it begins.
    """
    found = over_tcp(program)
    nodes = [leased(node, leases) for node in found.moving]
    return relayed(program.config, nodes, found.gradients, found.parameters, leases, gateway)


def relayed(
    config: Config,
    nodes: Sequence[Node],
    gradients: Link | None,
    parameters: Link | None,
    senders: Sequence[tuple[int, int]],
    gateway: ParameterGateway | None,
) -> Program:
    """``nodes``, with a relay in the place of the servers behind ``gradients`` and ``parameters``.

    Args:
        senders: (slot at the gateway, generation of its lease) of every worker that sends gradients.
    """
    from apexrl.links.tcp.parameter_relay import LOCAL_CAPACITY

    assert gradients is not None
    assert parameters is not None
    slots = tuple(slot for slot, _ in senders)
    own = _with(gradients, {"senders": len(slots), "slots": slots, "capacity": LOCAL_CAPACITY})
    copies = replace(parameters)
    side = Program(config, rewired(rewired(nodes, gradients, own), parameters, copies))
    side.role(Relay, gradients=own, parameters=copies, gateway=gateway, restarts=config.actor.actor_restarts)
    return side


def _roomy(port: Any, workers: int, streams: int) -> Any:
    """A link with room for that many workers and their environments; whatever is none, as it is."""
    if isinstance(port, ReplayLink):
        more = {"writers": workers, "streams": max(streams, port.options["streams"])}
        return ReplayLink({**port.options, **more})
    if isinstance(port, Link) and "splits" in port.options:
        return _with(port, {"workers": workers})
    if isinstance(port, Link) and port.make is GradientLink:
        return _with(port, {"senders": workers})
    return port


def _with(link: Link, options: Mapping[str, Any]) -> Link:
    return replace(link, options={**link.options, **options})
