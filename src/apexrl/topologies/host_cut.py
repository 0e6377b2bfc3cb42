"""Cuts a program between hosts, where experience and weights cross (``crossing``).

The learner's side keeps every role that stays, and gains an intake. Another host's side has the roles that move, with a
replay that only passes steps on, and an uplink in the learner's place. Neither sees a difference. What lies between
roles that move, every host has for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.links.local.inference import InferenceLink
from apexrl.replay.options import OPTIONS
from apexrl.roles import Intake, Uplink
from apexrl.run.spec_json import fields_to_json
from apexrl.spec import Field
from apexrl.topologies.crossing import Crossing, crossing
from apexrl.topologies.parameter_server_links import board
from apexrl.topologies.program import BatchesLink, Link, MixedLink, Node, Program, ReceiptsLink, ReplayLink
from apexrl.topologies.queue_links import OfAllQueues, queue_ports

DEFAULT_SLOTS = 64
"""Actors of a run over several hosts, where ``actor_slots`` leaves it open."""

_PASSING = 2048  # items that an actor host's replay holds, at least
_CHUNK, _SHORT_CHUNK = 64, 8  # items in a slot of a replay that is large enough; where steps are very large
_UNROLLS = 4  # the most that a slot holds
_OWN_BYTES = 16  # of a step beside its fields: reward, flags
_LEARNERS_OWN = (  # not what it holds
    *("sampler", "draws", "recency_half_life", "lag_half_life", "remover", "remover_alpha", "trim_every"),
    *("check_memory", "hindsight", "hindsight_share"),
)


def with_slots(config: Config) -> Config:
    """``config`` with its number of actor slots settled, for a run over several hosts."""
    actor = config.actor
    slots = actor.actor_slots or max(DEFAULT_SLOTS, actor.actors)
    return replace(config, actor=replace(actor, actor_slots=slots))


def with_actors(config: Config, actors: int) -> Config:
    """The ``config`` of a run as a host has it that brings ``actors`` of its actors.

    It has its share of what moves with them, and one queue: which learner takes what, the learners' host decides.
    """
    actor, wiring = config.actor, config.wiring
    share = math.ceil(wiring.policy_workers * actors / max(1, actor.actors))
    return replace(
        config,
        actor=replace(actor, actors=actors, min_actors=min(actor.min_actors, actors)),
        wiring=replace(wiring, learners=1, policy_workers=max(1, min(share, actors))),
    )


def learner_side(program: Program, remote: Mapping[str, Any], resumed: bool = False) -> Program:
    """What runs on the learners' host.

    Args:
        remote: the intake's ports that say where other hosts are.
        resumed: these may have been at work for the run before.

    Raises:
        ConfigError: not experience and weights cross in this topology, or a setting cannot hold on both sides.
    """
    found, config = cut(program), program.config
    streams = config.actor.actor_slots * config.actor.envs_per_actor
    nodes, shared = list(found.staying), []
    for link in found.replays:  # its one writer stands for all remote actors
        options = {**link.options, "writers": 1, "streams": max(streams, link.options["streams"])}
        shared.append(ReplayLink(options))
        nodes = rewired(nodes, link, shared[-1])
    side = Program(config, nodes)
    side.role(
        OfAllQueues(Intake),
        config=config,
        **queue_ports(shared),
        weights=found.weights,
        receipts=ReceiptsLink(resumed),
        streams=streams,
        restarts=config.learner.learner_restarts,
        **remote,
    )
    return side


def actor_side(
    program: Program, leases: Sequence[tuple[int, int]], remote: Mapping[str, Any], gives_way: bool = False
) -> Program:
    """What runs on another host.

    Args:
        program: of a configuration ``with_actors`` of this host.
        leases: (slot of the run, generation of its lease) of every actor.
        remote: the uplink's ports that say where the learners are.
        gives_way: to a learner on the same machine.

    Raises:
        ConfigError: not experience and weights cross in this topology, or a setting cannot hold on both sides.
    """
    found, config = cut(program), program.config
    streams = len(leases) * config.actor.envs_per_actor
    window = int(config.hosts.window_mb * 2**20)
    local = ReplayLink(passing(found.replays[0].options, len(leases), streams, window))
    weights = None if found.weights is None else board(found.weights)
    first = 0 if gives_way else min(node.nice for node in found.moving)
    nodes = [replace(leased(node, leases), nice=node.nice - first) for node in found.moving]
    for link in found.replays:
        nodes = rewired(nodes, link, local)
    nodes = rewired(nodes, found.weights, weights)
    for link in found.inner:
        nodes = rewired(nodes, link, own_link(link, leases))
    side = Program(config, nodes)
    side.role(Uplink, config=config, replay=local, weights=weights, restarts=config.actor.actor_restarts, **remote)
    return side


def leased(node: Node, leases: Sequence[tuple[int, int]]) -> Node:
    """``node`` in the first of the leased slots."""
    mine = leases[: node.count]
    slots, generations = zip(*mine, strict=True)
    return replace(node, count=len(mine), indices=slots, generations=generations, most=0)


def own_link(link: Any, leases: Sequence[tuple[int, int]], servers: int = 0) -> Any:
    """A host's own of a link among roles that move. ``servers``: that answer there; 0: as many as the program has."""
    if not isinstance(link, Link) or link.make is not InferenceLink.make:
        return replace(link)
    sizes = {"workers": len(leases), "slots": tuple(slot for slot, _ in leases)}
    return replace(link, options={**link.options, **sizes, "servers": servers or link.options.get("servers", 1)})


def replay_of(program: Program) -> ReplayLink:
    """The replay that the actors write into, or the first of several alike.

    Raises:
        ConfigError: not experience and weights cross in this topology.
    """
    return cut(program).replays[0]


def passing(options: Mapping[str, Any], writers: int, streams: int, window_bytes: int) -> dict[str, Any]:
    """Options of a replay that holds the same steps as one with ``options``, but only until they are passed on.

    Args:
        writers: actors on this host.
        streams: their environments.
        window_bytes: of experience that may be under way; the replay holds about as much again at most.
    """
    step, item = _OWN_BYTES, 0
    for field in options["fields"].values():
        step, item = (step, item + field.nbytes) if field.per_item else (step + field.nbytes, item)
    if options.get("kind") == "unroll":
        added, passing, chunk, short = options["length"], _PASSING // options["length"], _UNROLLS, 1
    else:
        added, passing, chunk, short = options.get("stride", 1), _PASSING, _CHUNK, _SHORT_CHUNK
    item += step * added  # what an item adds to those before it
    room = max(passing, 2 * chunk * streams)  # for whole chunks in every stream, and as many waiting; what waits ages
    capacity = max(2 * short * streams, min(room, window_bytes // item))
    kept = {name: value for name, value in options.items() if name not in _LEARNERS_OWN}
    return kept | {
        "sampler": "fifo",
        "capacity": capacity,
        "min_size": 0,
        "samples_per_insert": 0.0,
        "writers": writers,
        "streams": streams,
    }


def options_to_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a replay as JSON-able values."""
    return {**options, "fields": fields_to_json(options["fields"])}


def options_from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """``options_to_json`` undone. Raises KeyError, TypeError, ValueError or SpecError when ``values`` is something
    else: it may say what a step holds, and no folder of this machine."""
    if unknown := values.keys() - {"fields", *OPTIONS}:
        raise ValueError(f"an option {sorted(unknown)[0]!r} of a replay that only passes on")
    fields = {name: Field(**{**field, "shape": tuple(field["shape"])}) for name, field in values["fields"].items()}
    return {**values, "fields": fields}


def cut(program: Program) -> Crossing:
    """What moves, and the replays and the weights through which alone it knows the rest.

    Raises:
        ConfigError: there is more between them, or less; or a setting cannot hold on both sides.
    """
    name, config = program.config.topology, program.config
    check_whole_queue(config, "over several hosts")
    found = crossing(program)
    if not found.replays or found.weights is None or found.inference or found.gradients:
        raise ConfigError(
            f"topology {name} cannot run over several hosts with --redis: what moves must have a replay to write into, "
            "weights to read, and no other link to what stays"
        )
    return found


def check_whole_queue(config: Config, where: str) -> None:
    """Refuse a limit that actors keep by looking at the whole queue.

    Raises:
        ConfigError: there is one.
    """
    if lag := config.wiring.wait_at_policy_lag:
        raise ConfigError(
            f"--wait-at-policy-lag {lag} cannot hold {where}: actors there do not see what waits at the learner. Leave "
            "it out; --max-policy-lag leaves out what is too old"
        )


def rewired(nodes: Sequence[Node], old: Any, new: Any) -> list[Node]:
    """The nodes with ``new`` where they had the link ``old``, also as a source of batches, or of a mix."""
    changed: dict[int, BatchesLink | MixedLink] = {}  # one placeholder stays one

    def port(value: Any) -> Any:
        if isinstance(value, BatchesLink | MixedLink) and (inner := port(value.replay)) is not value.replay:
            return changed.setdefault(id(value), replace(value, replay=inner))
        return new if value is old else value

    return [replace(node, ports={name: port(value) for name, value in node.ports.items()}) for node in nodes]
