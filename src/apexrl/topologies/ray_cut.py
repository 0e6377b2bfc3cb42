"""Cuts a program for Ray: the learner's node, and groups of the roles that move (``crossing``) on one node each.

What crosses is carried otherwise than between hosts that join through Redis. Where moving roles write into a replay,
each group has a shard of it in its own memory, and the learner's node samples all shards; where every learner has a
replay of its own, group k has a shard of that of learner k mod N. Who asks an inference server on the learner's node
asks through a gateway there; so does the relay of workers that send gradients to parameter servers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from apexrl.config import Config
from apexrl.config.topology_settings import (
    A3CSettings,
    GA3CSettings,
    GorilaSettings,
    InferenceSettings,
    LearnersSettings,
    QueueSettings,
    SampleFactorySettings,
)
from apexrl.errors import ConfigError
from apexrl.replay.hindsight import hindsight_of
from apexrl.replay.layout import Layout
from apexrl.roles import WorkerGateway
from apexrl.topologies import gateway_cut, host_cut, info
from apexrl.topologies.crossing import Crossing, check_rounding, crossing
from apexrl.topologies.parameter_server_links import board
from apexrl.topologies.program import Program, ReplayLink

LEARNERS = ("learner", "gradient_learner", "model_server")
"""The roles on the learner's node, each of which gets the processors and GPUs of a learner."""
INFERENCE = ("inference_server", "policy_worker", "model_server")
"""The roles that choose the actions of others, each of which gets the GPUs for inference."""
RELAY = "relay"
"""Stands for the parameter servers in a group."""

_SAMPLING = ("capacity", "sampler", "min_size", "samples_per_insert", "insert_band", "seed")


def learners(config: Config) -> int:
    """How many learners the run has."""
    return config.wiring.learners if LearnersSettings in info(config.topology).reads else 1


def queues(config: Config, nodes: int = 1) -> int:
    """How many replays are written into in groups: the least number of groups. ``nodes``: that have learners."""
    reads = info(config.topology).reads
    own = nodes > 1 or QueueSettings in reads or (GorilaSettings in reads and config.wiring.replay == "local")
    return learners(config) if own else 1


def in_shards(config: Config) -> bool:
    """Whether every group has a shard of the replay; else all experience comes to be on the learner's node."""
    reads = info(config.topology).reads
    return A3CSettings not in reads and (InferenceSettings not in reads or SampleFactorySettings in reads)


def policy_workers(config: Config) -> int:
    """How many of the run choose actions in groups."""
    return config.wiring.policy_workers if SampleFactorySettings in info(config.topology).reads else 0


def inference_servers(config: Config) -> int:
    """How many on the learner's node choose actions, and do not learn."""
    reads = info(config.topology).reads
    return int(InferenceSettings in reads and not {SampleFactorySettings, GA3CSettings}.intersection(reads))


def infers(config: Config) -> bool:
    """Whether the run has ``INFERENCE`` roles."""
    return InferenceSettings in info(config.topology).reads


def asking(program: Program) -> frozenset[str]:
    """The roles in groups that ask through the gateway on the learner's node."""
    found = cut(program)
    if found.gradients is not None:
        return frozenset((RELAY,))
    return frozenset(node.name for node in found.moving) if found.inference is not None else frozenset()


def learner_node_side(program: Program, samplers: Sequence[Any], listen: Any = None) -> Program:
    """Every role that does not move, with ``samplers`` where they had the replays that others write into.

    Args:
        listen: the gateway's port that says where it listens, if there is to be one.

    Raises:
        ConfigError: the topology cannot be cut.
    """
    found = cut(program)
    nodes = list(found.staying)
    for link, sampler in zip(found.replays, samplers, strict=True):
        nodes = host_cut.rewired(nodes, link, sampler)
    side = Program(program.config, nodes)
    asked = {"inference": found.inference, "gradients": found.gradients, "parameters": found.parameters}
    links = {name: link for name, link in asked.items() if link is not None}
    if links:
        ports = {**links, "listen": listen, "record": None, "first": 0, "found": True}
        side.role(WorkerGateway, config=program.config, **ports, restarts=program.config.learner.learner_restarts)
    return side


def actor_group_side(
    program: Program, group: int, groups: int, slots: Sequence[int] | None = None, choosing: int = 0
) -> Program:
    """Group ``group`` of ``groups``: its share of the moving roles, who keep their slots of the run, and its shard.

    Args:
        slots: of the run that it serves; default: every ``groups``-th.
        choosing: policy workers that it has, which are numbered as the first of its slots; 0: there are none.

    Raises:
        ConfigError: there are fewer groups than replays.
    """
    found, config = cut(program), program.config
    several = len(found.replays)
    if groups < several:
        raise ConfigError(f"{groups} groups are fewer than the {several} replays that each want one: take more groups")
    if slots is None:
        slots = range(group, config.actor.actors, groups)
    leases = [(slot, 0) for slot in slots]
    if found.gradients is not None:
        side = gateway_cut.relay_side(program, leases, None)
        # Relays of all groups have names of their own.
        nodes = [node if node.moves else host_cut.leased(node, leases) for node in side.nodes]
        return Program(config, nodes)
    nodes = [replace(node, count=choosing) if node.name in INFERENCE else node for node in found.moving]
    nodes = [host_cut.leased(node, leases) for node in nodes]
    if found.replays:
        own = found.replays[group % several]
        shards = len(range(group % several, groups, several))
        streams = len(slots) * config.actor.envs_per_actor
        nodes = host_cut.rewired(nodes, own, ReplayLink(_shard(own.options, group, shards, len(slots), streams)))
    if found.weights is not None:
        nodes = host_cut.rewired(nodes, found.weights, board(found.weights))
    for link in found.inner:
        nodes = host_cut.rewired(nodes, link, host_cut.own_link(link, leases, choosing))
    elsewhere = {id(link) for link in (*found.replays, found.inference) if link is not None}
    here = [{name: port for name, port in node.ports.items() if id(port) not in elsewhere} for node in nodes]
    return Program(config, [replace(node, ports=ports) for node, ports in zip(nodes, here, strict=True)])


def sampling(program: Program) -> list[dict[str, Any]]:
    """How the shards of each replay are sampled together: keyword arguments of ``ShardedReplay``. Empty: there are no
    shards.

    Raises:
        ConfigError: they cannot be sampled as is set.
    """
    replays = cut(program).replays
    if program.config.agent.anneal_horizon and any(link.options.get("kind") != "unroll" for link in replays):
        raise ConfigError(
            "--anneal-horizon changes n and γ with every batch, and shards of a replay on other nodes sum rewards with "
            "one n: set --no-anneal-horizon, or run without Ray"
        )
    found = []
    for link in replays:
        options = link.options
        steps = options.get("burn_in", 0) + options.get("length", 0)
        goals = hindsight_of(options["fields"], options)
        layout = Layout(options["fields"], options.get("kind", "rows"), options.get("stack", 1), steps, goals)
        own = {name: options[name] for name in _SAMPLING if name in options}
        found.append(own | {"stratified": options.get("draws", "stratified") == "stratified", "layout": layout})
    return found


def cut(program: Program) -> Crossing:
    """What moves into groups, and what crosses.

    Raises:
        ConfigError: it cannot be carried.
    """
    found = crossing(program)
    if found.replays:
        host_cut.check_whole_queue(program.config, "on Ray")
    if not (found.inference or (found.gradients and found.parameters) or (found.replays and found.weights)):
        raise ConfigError(
            f"topology {program.config.topology} cannot run on Ray: its roles that move must write into a replay and "
            "read weights, ask an inference server, or send gradients to parameter servers. Leave out --ray, or take "
            "another --topology"
        )
    check_rounding(program.config, found)
    return found


def _shard(options: Any, group: int, groups: int, writers: int, streams: int) -> dict[str, Any]:
    """Options of a group's shard: its part of everything, and no limiter, which would see only this part."""
    capacity = max(math.ceil(options["capacity"] / groups), 1)
    if options.get("sampler") == "fifo":  # as in topologies.experience.queue
        streams = max(streams, min(capacity // 2, 65_536))
    own = {"capacity": capacity, "writers": writers, "streams": streams, "seed": options.get("seed", 0) + group}
    return {**options, **own, "min_size": 0, "samples_per_insert": 0.0}
