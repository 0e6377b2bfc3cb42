"""Cuts a program for Ray: the learner's node, and actor groups with a shard of the replay each.

As between hosts (``topologies.host_cut``), replay and weights are all that connects actors to the rest. Here no chunk
travels: actors write into their own group's shard, in shared memory, and the learner's node samples all shards. Where
every learner has a replay of its own, group k has a shard of that of learner k mod N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from apexrl.config import Config
from apexrl.config.topology_settings import GorilaSettings, LearnersSettings, QueueSettings
from apexrl.errors import ConfigError
from apexrl.replay.layout import Layout
from apexrl.topologies import host_cut, info
from apexrl.topologies.parameter_server_links import board
from apexrl.topologies.program import BatchesLink, CountLink, Link, Node, Program, ReceiptsLink, ReplayLink, WeightsLink
from apexrl.topologies.queue_links import queue_names

LEARNERS = ("learner", "gradient_learner")
"""The roles on the learner's node, each of which gets the processors and GPUs of a learner."""

_SAMPLING = ("capacity", "sampler", "min_size", "samples_per_insert", "insert_band", "seed")
_LINKS = (ReplayLink, BatchesLink, WeightsLink, ReceiptsLink, Link, CountLink)


@dataclass(frozen=True)
class Cut:
    """The actors of a program, and the links that connect them to the rest."""

    actor: Node
    replays: tuple[ReplayLink, ...]  # one, or that of every learner in turn
    weights: WeightsLink | Link
    board: WeightsLink  # for the same weights, in a group


def learners(config: Config) -> int:
    """How many learners the run has."""
    return config.wiring.learners if LearnersSettings in info(config.topology).reads else 1


def queues(config: Config) -> int:
    """How many replays its actors write into: the least number of groups."""
    reads = info(config.topology).reads
    own = QueueSettings in reads or (GorilaSettings in reads and config.wiring.replay == "local")
    return learners(config) if own else 1


def learner_node_side(program: Program, samplers: Sequence[Any]) -> Program:
    """Every role but the actors, with ``samplers`` where they had the replays.

    Raises:
        ConfigError: the topology cannot be cut between actors and learner.
    """
    whole = cut(program)
    nodes = [node for node in program.nodes if node is not whole.actor]
    for link, sampler in zip(whole.replays, samplers, strict=True):
        nodes = host_cut.rewired(nodes, link, sampler)
    return Program(program.config, nodes)


def actor_group_side(program: Program, group: int, groups: int, slots: Sequence[int] | None = None) -> Program:
    """Group ``group`` of ``groups``: its share of the actors, who keep their slots of the run, and its shard.

    Args:
        slots: of the run that it serves; default: every ``groups``-th.

    Raises:
        ConfigError: there are fewer groups than replays.
    """
    whole = cut(program)
    actor, several = whole.actor, len(whole.replays)
    if groups < several:
        raise ConfigError(f"{groups} groups are fewer than the {several} replays that each want one: take more groups")
    if slots is None:
        slots = range(group, actor.count, groups)
    own = whole.replays[group % several]
    shards = len(range(group % several, groups, several))
    streams = len(slots) * program.config.actor.envs_per_actor
    here: dict[int, Any] = {
        id(own): ReplayLink(_shard(own.options, group, shards, len(slots), streams)),
        id(whole.weights): whole.board,
    }
    elsewhere = {id(link) for link in whole.replays if link is not own}
    node = replace(
        actor,
        ports={name: here.get(id(port), port) for name, port in actor.ports.items() if id(port) not in elsewhere},
        count=len(slots),
        indices=tuple(slots),
        generations=(0,) * len(slots),
        most=0,
    )
    return Program(program.config, [node])


def sampling(program: Program) -> list[dict[str, Any]]:
    """How the shards of each replay are sampled together: keyword arguments of ``ShardedReplay``.

    Raises:
        ConfigError: they cannot be sampled as is set.
    """
    if program.config.agent.anneal_horizon:
        raise ConfigError(
            "--anneal-horizon changes n and γ with every batch, and shards of a replay on other nodes sum rewards with "
            "one n: set --no-anneal-horizon, or run without Ray"
        )
    found = []
    for link in cut(program).replays:
        options = link.options
        steps = options.get("burn_in", 0) + options.get("length", 0)
        layout = Layout(options["fields"], options.get("kind", "rows"), options.get("stack", 1), steps)
        own = {name: options[name] for name in _SAMPLING if name in options}
        found.append(own | {"stratified": options.get("draws", "stratified") == "stratified", "layout": layout})
    return found


def cut(program: Program) -> Cut:
    """The actors, and the replays and the weights through which alone they know the rest.

    Raises:
        ConfigError: there is more between them, or less.
    """
    host_cut.check_whole_queue(program.config, "on Ray")
    actor = next((node for node in program.nodes if node.name == host_cut.ACTOR), None)
    if actor is None:
        raise _refused(program, f"it has no role {host_cut.ACTOR!r}")
    links = [port for port in actor.ports.values() if isinstance(port, _LINKS)]
    replays = [port for port in links if isinstance(port, ReplayLink)]
    weights = [
        (port, there) for port in links if isinstance(port, WeightsLink | Link) and (there := board(port)) is not None
    ]
    of_learners = queue_names(actor.ports)
    if len(replays) != max(1, len(of_learners)) or len(weights) != 1 or len(links) != len(replays) + 1:
        raise _refused(
            program,
            "its actors must have one replay to write into, or one of each learner, one set of weights to read, and no "
            "other link",
        )
    in_order = tuple(actor.ports[name] for name in of_learners) or tuple(replays)
    return Cut(actor, in_order, *weights[0])


def _refused(program: Program, why: str) -> ConfigError:
    return ConfigError(
        f"topology {program.config.topology} cannot run on Ray: {why}. Leave out --ray, or take a --topology whose "
        "actors fill a replay (apex, impala, gorila)"
    )


def _shard(options: Any, group: int, groups: int, writers: int, streams: int) -> dict[str, Any]:
    """Options of a group's shard: its part of everything, and no limiter, which would see only this part."""
    capacity = max(math.ceil(options["capacity"] / groups), 1)
    if options.get("sampler") == "fifo":  # as in topologies.experience.queue
        streams = max(streams, min(capacity // 2, 65_536))
    own = {"capacity": capacity, "writers": writers, "streams": streams, "seed": options.get("seed", 0) + group}
    return {**options, **own, "min_size": 0, "samples_per_insert": 0.0}
