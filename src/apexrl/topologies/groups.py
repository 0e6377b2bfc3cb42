"""Cuts a program into a home and groups of actors with a shard of the replay each: what a cluster runs.

As between hosts (``topologies.hosts``), actors know the rest through one replay and one weights board alone. Here no
chunk travels: actors write into the shard of their own group, in shared memory, and the learner samples all shards.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from apexrl.errors import ConfigError
from apexrl.topologies import hosts
from apexrl.topologies.program import BatchesLink, Node, Program, ReplayLink


def home_side(program: Program, sampler: Any) -> Program:
    """Every role but the actors, with ``sampler`` where they had the replay.

    Raises:
        ConfigError: the topology cannot be cut between actors and learner, or has several learners.
    """
    actor, link, _ = cut(program)
    side = Program(program.config)
    for node in program.nodes:
        if node is not actor:
            ports = {name: sampler if port is link else port for name, port in node.ports.items()}
            side.nodes.append(replace(node, ports=ports))
    return side


def group_side(program: Program, group: int, groups: int) -> Program:
    """Group ``group`` of ``groups``: its share of the actors, who keep their slots of the run, and its shard."""
    actor, link, _ = cut(program)
    slots = range(group, actor.count, groups)
    shard = ReplayLink(
        _shard(link.options, group, groups, len(slots), len(slots) * program.config.actor.envs_per_actor)
    )
    here = replace(
        *hosts.rewired([actor], link, shard),
        count=len(slots),
        indices=tuple(slots),
        generations=(0,) * len(slots),
        most=0,
    )
    return Program(program.config, [here])


def sampling(program: Program) -> dict[str, Any]:
    """How all shards together are sampled: keyword arguments of ``replay.sharded.ShardedReplay``."""
    options = cut(program)[1].options
    names = ("capacity", "sampler", "min_size", "samples_per_insert", "insert_band", "seed")
    found = {name: options[name] for name in names if name in options}
    return found | {"stratified": options.get("draws", "stratified") == "stratified"}


def cut(program: Program) -> tuple[Node, ReplayLink, Any]:
    """The actors, and the replay and the weights through which alone they know the rest.

    Raises:
        ConfigError: there is more between them.
    """
    actor, link, weights = hosts.cut(program, "on Ray")
    ports = [port for node in program.nodes for port in node.ports.values()]
    if any(isinstance(port, BatchesLink) for port in ports):
        raise ConfigError(
            f"topology {program.config.topology} with several learners cannot run on Ray: set --learners 1"
        )
    return actor, link, weights


def _shard(options: Any, group: int, groups: int, writers: int, streams: int) -> dict[str, Any]:
    """Options of a group's shard: its part of everything, and no limiter, which would see only this part."""
    capacity = max(math.ceil(options["capacity"] / groups), 1)
    if options.get("sampler") == "fifo":  # as in topologies.experience.queue
        streams = max(streams, min(capacity // 2, 65_536))
    own = {"capacity": capacity, "writers": writers, "streams": streams, "seed": options.get("seed", 0) + group}
    return {**options, **own, "min_size": 0, "samples_per_insert": 0.0}
