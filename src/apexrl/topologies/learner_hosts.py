"""Learners on several hosts, each with a replay and actors of its own. They average gradients; or send them to the
parameter servers of the first host, through a gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from apexrl.config import Config
from apexrl.errors import AgentError, ConfigError
from apexrl.roles import GradientLearner, Learner, WorkerGateway
from apexrl.topologies.gateway_cut import relayed
from apexrl.topologies.host_cut import cut, leased, rewired
from apexrl.topologies.program import Link, Node, Probe, Program
from apexrl.topologies.queue_links import OfQueue
from apexrl.topologies.sync_learners import check

if TYPE_CHECKING:
    from apexrl.links.tcp.parameter_relay import ParameterGateway

OTHER_LEARNERS: Final = 8
"""That may send gradients to the parameter servers of a run from other hosts."""


def refusal(program: Program, probe: Probe) -> str:
    """Why other hosts cannot bring learners to a run; empty: they can."""
    if sends_gradients(program) is not None:
        return ""
    if not any(averages(node) for node in program.nodes):
        return f"no host brings learners to topology {program.config.topology}, but to apex, impala and gorila"
    try:
        check(program.config, probe)
    except (ConfigError, AgentError) as error:
        return str(error)
    return ""


def first_host(program: Program, averaging: Link) -> Program:
    """``program``, whose learners make updates with those of other hosts."""
    nodes = [_averaging(node, averaging) if averages(node) else node for node in program.nodes]
    return Program(program.config, nodes, program.thread_counts)


def other_host(program: Program, leases: Sequence[tuple[int, int]], averaging: Link) -> Program:
    """What runs on a host that joins with a learner.

    Args:
        program: of a configuration ``with_actors`` of this host.
        leases: (slot of the run, generation of its lease) of every actor.
        averaging: through which the learner makes every update with the others.

    Raises:
        ConfigError: a setting cannot hold on several hosts.
    """
    found = cut(program)
    learners = [_averaging(node, averaging) for node in found.staying if averages(node)]
    learners = [replace(node, ports={**node.ports, "elsewhere": True}) for node in learners]
    return Program(program.config, [*learners, *(leased(node, leases) for node in found.moving)])


def averages(node: Node) -> bool:
    """Whether its workers are learners that can make updates together."""
    return _makes(node, Learner)


def sends_gradients(program: Program) -> Node | None:
    """The learners whose gradients go to parameter servers; None: there are none."""
    return next((node for node in program.nodes if _makes(node, GradientLearner)), None)


def with_gateway(program: Program, remote: Mapping[str, Any]) -> Program:
    """``program``, whose parameter servers also take gradients of learners on other hosts.

    Args:
        remote: the gateway's ports that say where it listens, and what it tells other hosts.
    """
    config, learners = program.config, sends_gradients(program)
    assert learners is not None
    own, parameters, first = learners.ports["gradients"], learners.ports["parameters"], learners.count
    roomy = replace(own, options={**own.options, "senders": first + OTHER_LEARNERS})
    side = Program(config, rewired(program.nodes, own, roomy), program.thread_counts)
    links = {"gradients": roomy, "parameters": parameters, "first": first}
    side.role(WorkerGateway, config=config, **links, restarts=config.learner.learner_restarts, **remote)
    return side


def with_own_replay(config: Config) -> Config:
    """``config`` of a host whose learner samples what the actors there bring, however other hosts do it."""
    wiring, learner = replace(config.wiring, replay="local"), replace(config.learner, save_replay=False)
    return replace(config, wiring=wiring, learner=learner)


def host_of_a_sender(
    program: Program,
    leases: Sequence[tuple[int, int]],
    learner: Sequence[tuple[int, int]],
    gateway: ParameterGateway | None,
) -> Program:
    """What runs on a host that joins with a learner whose gradients go to parameter servers elsewhere.

    Args:
        program: of a configuration ``with_actors`` of this host, and ``with_own_replay``.
        leases: (slot of the run, generation of its lease) of every actor.
        learner: the same of the learner, whose slot is the gateway's.
        gateway: to the parameter servers; None: the relay is told when it begins.
    """
    found, learners = cut(program), sends_gradients(program)
    assert learners is not None
    nodes = [leased(learners, learner), *(leased(node, leases) for node in found.moving)]
    links = learners.ports["gradients"], learners.ports["parameters"]
    return relayed(program.config, nodes, *links, learner, gateway)


def _makes(node: Node, role: Any) -> bool:
    return node.factory is role or (isinstance(node.factory, OfQueue) and node.factory.role is role)


def _averaging(node: Node, link: Link) -> Node:
    return replace(node, ports={**node.ports, "averaging": link})
