"""The plan of a run on Ray: which actors are in which group, and the resources of each group."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apexrl.config import Config
from apexrl.config.placement import Ray
from apexrl.errors import ConfigError
from apexrl.replay.options import CHUNK
from apexrl.roles.env_worker import with_own_groups
from apexrl.topologies.ray_cut import in_shards, inference_servers, infers, learners, policy_workers

_SPLITS = 2  # of a worker's environments, one of which steps while actions for the other are on their way


@dataclass(frozen=True)
class Plan:
    """Which slots are in which actor group.

    Args:
        slots: of the run, for every group of actors.
        base: groups that the run begins with, the first ones; the others begin when the cluster has room for them.
    """

    slots: tuple[tuple[int, ...], ...]
    base: int

    @property
    def least(self) -> int:
        """Actors of the groups that the run begins with."""
        return sum(len(slots) for slots in self.slots[: self.base])

    @property
    def most(self) -> int:
        """Actors that there may come to be."""
        return sum(len(slots) for slots in self.slots)


def most_actors(config: Config) -> int:
    """Actors that a run on a cluster may grow to: ``--actors MIN:MAX`` sets ``actor_slots`` to the second."""
    return max(config.actor.actors, config.actor.actor_slots)


def settled(config: Config, placement: Ray) -> Config:
    """``config`` with its ``splits`` settled. Workers on a cluster have processors of their own, unless it is one
    machine."""
    if placement.address == "local":
        return with_own_groups(config, most_actors(config))
    return replace(config, wiring=replace(config.wiring, splits=config.wiring.splits or _SPLITS))


def plan(config: Config, placement: Ray, nodes: int, queues: int = 1) -> Plan:
    """Deal the slots out. Those that the run begins with are the first, for which the ladder of ε was made even.

    Args:
        nodes: that could take a group; each gets one, unless ``replay_shards`` says how many there are in all.
        queues: group k belongs to queue k mod this many, and none may be without one.

    Raises:
        ConfigError: so many groups cannot be had; the message names the setting.
    """
    least, most, shards = config.actor.actors, most_actors(config), int(placement.replay_shards)
    if shards > most:
        raise ConfigError(
            f"--replay-shards {shards} want an actor each, and --actors is {most}: raise it, or take fewer shards"
        )
    if least == most:
        groups = shards or min(least, _multiple(min(least, max(1, nodes)), queues))
        if groups < queues:
            lacking = "--actors" if least < queues else "--replay-shards"
            raise ConfigError(
                f"--learners {queues} have shards of their own, and {lacking} {groups} are fewer: raise {lacking}, or "
                "take fewer learners"
            )
        return Plan(tuple(tuple(range(group, least, groups)) for group in range(groups)), groups)
    if least < queues:
        raise ConfigError(
            f"--learners {queues} have shards of their own, and --actors {least} are fewer: raise --actors, or take "
            "fewer learners"
        )
    if shards:
        if shards <= queues:
            raise ConfigError(
                f"--replay-shards {shards} leave none for actors that come later (--actors {least}:{most}): "
                f"say at least {queues + 1}, or leave it out"
            )
        base = min(shards - 1, max(queues, shards * least // most, shards - (most - least)), least)
        more = shards - base
    else:
        base = min(least, _multiple(min(least, max(1, nodes)), queues))
        more = math.ceil((most - least) / math.ceil(least / base))
    first = [tuple(range(group, least, base)) for group in range(base)]
    later = [tuple(range(least + group, most, more)) for group in range(more)]
    return Plan((*first, *later), base)


def choosing(config: Config, plan: Plan) -> list[int]:
    """Policy workers of each group: as even as can be, at least one and at most as many as actors. Groups that come
    later have as many as the first ones."""
    total = policy_workers(config)
    if not total:
        return [0] * len(plan.slots)
    shares = [len(range(group % plan.base, total, plan.base)) for group in range(len(plan.slots))]
    return [min(max(1, share), len(slots)) for share, slots in zip(shares, plan.slots, strict=True)]


def resource_bundles(config: Config, placement: Ray, plan: Plan) -> list[dict[str, float]]:
    """What Ray is to reserve: for the learner's node, and for each group.

    Raises:
        ConfigError: that is nothing for a group; or GPUs for inference, where the topology has none.
    """
    if placement.inference_gpus and not infers(config):
        raise ConfigError(
            f"--inference-gpus means nothing to topology {config.topology}, whose actors choose for themselves: leave "
            "it out"
        )
    count, apart = learners(config), inference_servers(config)
    both = 0.0 if apart or policy_workers(config) else placement.inference_gpus  # of who learns and chooses
    each = max(placement.learner_gpus, both)
    beside = [len(range(node, count, placement.learner_nodes)) for node in range(placement.learner_nodes)]
    cpus = placement.learner_cpus * beside[0] + placement.inference_cpus * apart
    home = _resources(cpus, [each] * beside[0] + [placement.inference_gpus] * apart)
    bundles = [home]
    for number, (slots, there) in enumerate(zip(plan.slots, choosing(config, plan), strict=True)):
        learning = beside[number] if 0 < number < len(beside) else 0
        cpus = placement.shard_cpus * in_shards(config) + placement.actor_cpus * len(slots)
        cpus += placement.inference_cpus * there + placement.learner_cpus * learning
        if not cpus:
            raise ConfigError(
                "--actor-cpus 0 leaves groups of environment workers without processors, and Ray schedules nothing "
                "without resources: give them a part of one, such as 0.1"
            )
        bundles.append(_resources(cpus, [placement.inference_gpus] * there + [each] * learning))
    return bundles


def _resources(cpus: float, gpus: Sequence[float]) -> dict[str, float]:
    """A bundle, with GPUs for processes that want so many each, or such a part of one.

    Beyond one, Ray reserves whole GPUs only, and a part lies on one of them.
    """
    wanted = sum(gpus)
    if wanted > 1:
        free: list[float] = []  # of GPUs that are shared
        for part in sorted((one for one in gpus if 0 < one < 1), reverse=True):
            place = next((i for i, left in enumerate(free) if left + 1e-9 >= part), len(free))
            free[place : place + 1] = [(free[place] if place < len(free) else 1.0) - part]
        wanted = float(sum(one for one in gpus if one >= 1) + len(free))
    return {"CPU": cpus} | ({"GPU": wanted} if wanted else {})


def enough(plan: Plan, replays: Sequence[Mapping[str, Any]], groups: Collection[int]) -> bool:
    """Whether learning goes on with these ``groups`` alone: each replay has one, and they hold what it wants; without
    shards, that there is one."""
    if not groups:
        return False
    for own, options in enumerate(replays):
        there = [shard for shard in groups if shard % len(replays) == own]
        if not there or _held(plan, replays, own, len(there)) < options.get("min_size", 0):
            return False
    return True


def _held(plan: Plan, replays: Sequence[Mapping[str, Any]], own: int, count: int) -> int:
    """Items that ``count`` full shards of a replay hold at least."""
    each: int = max(1, math.ceil(replays[own]["capacity"] / len(range(own, len(plan.slots), len(replays)))))
    return count * max(1, each - _chunk_items(replays[own], each) + 1)


def check_room(plan: Plan, replays: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a run that could not begin to learn, or not go on, before more groups have come.

    A full shard removes a chunk at a time, so it holds up to a chunk less one item below its capacity.

    Args:
        replays: options of each: ``capacity``, and ``min_size`` where it has one. Shard k is one of number k mod their
            count, with an equal share of its capacity. ``kind`` or ``layout``, and ``remover``, say how large a chunk
            can be; it may be smaller where there are many streams, or sequences are short.

    Raises:
        ConfigError: the shards of the first groups hold fewer items than it wants.
    """
    for own, options in enumerate(replays):
        shards = range(own, len(plan.slots), len(replays))
        first = sum(shard < plan.base for shard in shards)
        holds = _held(plan, replays, own, first)
        if holds < options.get("min_size", 0):
            chunk = _chunk_items(options, max(1, math.ceil(options["capacity"] / len(shards))))
            size, least = options["capacity"], options["min_size"]
            raise ConfigError(
                f"--capacity {size} lies in {len(shards)} shards, and the {first} that there are at first may hold "
                f"only {holds} items when they are full (each removes up to {chunk} at a time), fewer than --min-size "
                f"{least}: raise --capacity, or lower --min-size"
            )


def _chunk_items(options: Mapping[str, Any], capacity: int) -> int:
    """The most items that a shard of ``capacity`` removes at once; see ``replay.options``."""
    if options.get("remover") == "proportional":
        return 1
    kind = options.get("kind") or getattr(options.get("layout"), "kind", "rows")
    items = max(1, min(CHUNK, capacity // 32))
    return 2 * items if kind == "sequence" else items  # where episodes end, more sequences begin


def _multiple(count: int, of: int) -> int:
    return math.ceil(count / of) * of
