"""Learners on several hosts: each with a replay, a weights board and actors of its own; all average gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from apexrl.errors import AgentError, ConfigError
from apexrl.roles import Learner
from apexrl.topologies.host_cut import cut, leased
from apexrl.topologies.program import Link, Node, Probe, Program
from apexrl.topologies.queue_links import OfQueue
from apexrl.topologies.sync_learners import check


def refusal(program: Program, probe: Probe) -> str:
    """Why other hosts cannot bring learners to a run; empty: they can."""
    if not any(averages(node) for node in program.nodes):
        return f"learners of topology {program.config.topology} do not average their gradients; apex and impala do"
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
    return node.factory is Learner or (isinstance(node.factory, OfQueue) and node.factory.role is Learner)


def _averaging(node: Node, link: Link) -> Node:
    return replace(node, ports={**node.ports, "averaging": link})
