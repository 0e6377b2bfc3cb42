"""Spreads learners that average their gradients over several nodes, each beside shards of its own (for Ray)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from apexrl.config import Config
from apexrl.config.topology_settings import GorilaSettings, LearnersSettings
from apexrl.errors import ConfigError
from apexrl.roles import Learner, ReplayServer
from apexrl.topologies import info
from apexrl.topologies.crossing import crossing
from apexrl.topologies.learner_hosts import averages
from apexrl.topologies.program import Node, Program, ReplayLink
from apexrl.topologies.queue_links import OfQueue, queue_ports

AVERAGING = "averaging"
"""The port of such a learner that its launcher gives it, as the others are on other nodes."""


def check(config: Config, nodes: int) -> None:
    """Refuse learners on so many ``nodes``.

    Raises:
        ConfigError: the topology has none that average, or there are fewer learners than nodes.
    """
    if nodes <= 1:
        return
    reads, count = info(config.topology).reads, config.wiring.learners
    if LearnersSettings not in reads or GorilaSettings in reads:
        raise ConfigError(
            f"--learner-nodes {nodes} spreads learners that average their gradients, and topology {config.topology} "
            "has none: use --topology apex or impala, or leave it out"
        )
    if count < nodes:
        raise ConfigError(f"--learner-nodes {nodes} want a learner each, and --learners is {count}: raise it")


def with_own_replays(program: Program) -> Program:
    """``program`` with a replay for each of its learners, which hold its items together: one replay cannot serve
    learners on other nodes. What has one for each already stays as it is."""
    replays, count = crossing(program).replays, program.config.wiring.learners
    if len(replays) == count:
        return program
    options = replays[0].options
    capacity = max(1, options["capacity"] // count)
    least = min(capacity, -(-options["min_size"] // count))
    share = {"capacity": capacity, "min_size": least}
    own = queue_ports([ReplayLink({**options, **share, "seed": options.get("seed", 0) + i}) for i in range(count)])
    nodes = []
    for node in program.nodes:
        if node.factory is ReplayServer:
            continue
        if node.factory is Learner or any(port is replays[0] for port in node.ports.values()):
            ports = {name: port for name, port in node.ports.items() if name != "replay"}
            node = replace(node, factory=OfQueue(node.factory), ports={**ports, **own})
        nodes.append(node)
    return Program(program.config, nodes, program.thread_counts)


def averaging_options(program: Program) -> dict[str, Any]:
    """What the learners' link is made with."""
    link = next(node for node in program.nodes if averages(node)).ports[AVERAGING]
    return {name: link.options[name] for name in ("members", "patience", "compression", "share", "transport")}


def spread(home: Program, sides: Sequence[Program], nodes: int) -> tuple[Program, list[Program]]:
    """Learner i on node i mod ``nodes``: of node 0 at home, of node k in group k. The first of each node publishes to
    its weights board.

    Args:
        home: the learner's node, with all learners.
        sides: of the groups, at least as many as nodes.
    """
    learner = next(node for node in home.nodes if averages(node))
    ports = {name: port for name, port in learner.ports.items() if name != AVERAGING}
    places = [range(node, learner.count, nodes) for node in range(nodes)]

    def those(indices: range, weights: Any) -> Node:
        here = tuple(indices)
        ports_here = {**ports, "weights": weights, "publisher": here[0]}
        return replace(learner, ports=ports_here, count=len(here), indices=here, generations=(0,) * len(here))

    here = [those(places[0], ports["weights"]) if node is learner else node for node in home.nodes]
    spread_sides = list(sides)
    for number, indices in enumerate(places[1:], start=1):
        side = sides[number]
        board = next(node.ports["weights"] for node in side.nodes if "weights" in node.ports)
        spread_sides[number] = Program(side.config, [*side.nodes, those(indices, board)])
    return Program(home.config, here), spread_sides
