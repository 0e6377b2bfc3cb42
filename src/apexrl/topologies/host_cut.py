"""Cuts a program between hosts, where experience and weights cross.

The learner's side keeps every role but the actors, and gains an intake. An actor host's side has the actors alone, with
a replay that only passes steps on, and an uplink in the learner's place. Actors and learner see no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.replay.options import OPTIONS
from apexrl.roles import Intake, Uplink
from apexrl.spec import Field
from apexrl.topologies.program import BatchesLink, Node, Program, ReceiptsLink, ReplayLink, WeightsLink

ACTOR = "actor"
DEFAULT_SLOTS = 64
"""Actors of a run over several hosts, where ``actor_slots`` leaves it open."""

_PASSING = 2048  # items that an actor host's replay holds, at least
_CHUNK, _SHORT_CHUNK = 64, 8  # items in a slot of a replay that is large enough; where steps are very large
_UNROLLS = 4  # the most that a slot holds
_OWN_BYTES = 16  # of a step beside its fields: reward, flags
_LEARNERS_OWN = (  # not what it holds
    *("sampler", "draws", "recency_half_life", "lag_half_life", "remover", "remover_alpha", "trim_every"),
    "check_memory",
)


def with_slots(config: Config) -> Config:
    """``config`` with its number of actor slots settled, for a run over several hosts."""
    actor = config.actor
    slots = actor.actor_slots or max(DEFAULT_SLOTS, actor.actors)
    return replace(config, actor=replace(actor, actor_slots=slots))


def learner_side(program: Program, remote: Mapping[str, Any], resumed: bool = False) -> Program:
    """What runs on the learner's host.

    Args:
        remote: the intake's ports that say where other hosts are.
        resumed: these may have been at work for the run before.

    Raises:
        ConfigError: the topology cannot be cut between actors and learner, or a setting cannot hold on both sides.
    """
    actor, replay, weights = cut(program)
    config = program.config
    if config.agent.exploration_steps:
        raise ConfigError(
            "--exploration-steps counts the steps of the whole run, and actors on other hosts know only their own: "
            "set --exploration-steps 0 with --redis"
        )
    streams = config.actor.actor_slots * config.actor.envs_per_actor
    # its one writer stands for all remote actors
    shared = ReplayLink({**replay.options, "writers": 1, "streams": max(streams, replay.options["streams"])})
    side = Program(config, rewired([node for node in program.nodes if node is not actor], replay, shared))
    side.role(
        Intake,
        config=config,
        replay=shared,
        weights=weights,
        receipts=ReceiptsLink(resumed),
        streams=streams,
        restarts=config.learner.learner_restarts,
        **remote,
    )
    return side


def actor_side(program: Program, leases: Sequence[tuple[int, int]], remote: Mapping[str, Any]) -> Program:
    """What runs on an actor host.

    Args:
        leases: (slot of the run, generation of its lease) of every actor.
        remote: the uplink's ports that say where the learner is.

    Raises:
        ConfigError: the topology cannot be cut between actors and learner, or a setting cannot hold on both sides.
    """
    actor, replay, weights = cut(program)
    config = program.config
    if config.agent.exploration_steps:
        raise ConfigError(
            "--exploration-steps counts the steps of the whole run, and actors on other hosts know only their own: "
            "set --exploration-steps 0 with --redis"
        )
    streams = len(leases) * config.actor.envs_per_actor
    local = ReplayLink(passing(replay.options, len(leases), streams, int(config.hosts.window_mb * 2**20)))
    here = replace(
        *rewired([actor], replay, local),
        count=len(leases),
        indices=tuple(index for index, _ in leases),
        generations=tuple(generation for _, generation in leases),
    )
    side = Program(config, [here])
    side.role(Uplink, config=config, replay=local, weights=weights, restarts=config.actor.actor_restarts, **remote)
    return side


def replay_of(program: Program) -> ReplayLink:
    """The replay that the actors write into.

    Raises:
        ConfigError: the topology cannot be cut between actors and learner.
    """
    return cut(program)[1]


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
    fields = {name: {**vars(field), "shape": list(field.shape)} for name, field in options["fields"].items()}
    return {**options, "fields": fields}


def options_from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """``options_to_json`` undone. Raises KeyError, TypeError, ValueError or SpecError when ``values`` is something
    else: it may say what a step holds, and no folder of this machine."""
    if unknown := values.keys() - {"fields", *OPTIONS}:
        raise ValueError(f"an option {sorted(unknown)[0]!r} of a replay that only passes on")
    fields = {name: Field(**{**field, "shape": tuple(field["shape"])}) for name, field in values["fields"].items()}
    return {**values, "fields": fields}


def cut(program: Program, where: str = "over several hosts") -> tuple[Node, ReplayLink, WeightsLink]:
    """The actors, and the two links through which alone they know the rest.

    Raises:
        ConfigError: there is more between them; it says that the topology cannot run ``where``.
    """
    name = program.config.topology
    check_whole_queue(program.config, where)
    actor = next((node for node in program.nodes if node.name == ACTOR), None)
    if actor is None:
        raise ConfigError(f"topology {name} cannot run {where}: it has no role {ACTOR!r}")
    replays = [port for port in actor.ports.values() if isinstance(port, ReplayLink)]
    weights = [port for port in actor.ports.values() if isinstance(port, WeightsLink)]
    others = [port for port in actor.ports.values() if isinstance(port, BatchesLink)]
    if len(replays) != 1 or len(weights) != 1 or others:
        raise ConfigError(
            f"topology {name} cannot run {where}: its actors must have one replay to write into, one "
            "weights board to read, and no other link"
        )
    return actor, replays[0], weights[0]


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


def rewired(nodes: Sequence[Node], old: ReplayLink, new: Any) -> list[Node]:
    """The nodes with another replay, or what samples one, where they had ``old``, also as the source of batches."""
    batches: dict[int, BatchesLink] = {}  # one placeholder stays one

    def port(value: Any) -> Any:
        if isinstance(value, BatchesLink) and value.replay is old:
            return batches.setdefault(id(value), replace(value, replay=new))
        return new if value is old else value

    return [replace(node, ports={name: port(value) for name, value in node.ports.items()}) for node in nodes]
