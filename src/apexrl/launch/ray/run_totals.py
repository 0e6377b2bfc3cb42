"""Counters of a run on Ray, summed over all groups, with those that were lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apexrl.launch.ray.ray_slots import ActorGroup
from apexrl.launch.run_ledger import Ledger
from apexrl.links.local.control_board import DROPPED


def enter(
    ledger: Ledger, groups: Sequence[ActorGroup], total: Callable[[str], int], more: Mapping[str, int], now: float
) -> dict[str, int]:
    """Enter how everything stands; returns the sums over all shards and all their generations.

    Args:
        groups: that of the learner's node first.
        total: counter name -> total over the whole run.
        more: what else was dropped.
        now: monotonic seconds.
    """
    home = groups[0]
    restarts: dict[str, int] = {}
    for group in groups:
        for slot in group.slots:
            restarts[slot.node.name] = restarts.get(slot.node.name, 0) + slot.restarts
    restarts["shard" if groups[1].has_shard else "group"] = sum(group.restarts for group in groups[1:])
    names = ("inserted", "sampled", "updates_stale", "lost")
    sums = {n: sum(group.sums[n] + group.look.replay.get(n, 0) for group in groups) for n in names}
    inserted = sums["inserted"]
    replay: dict[str, Any] = {
        "size": sum(group.look.replay.get("size", 0) for group in groups),
        "capacity": sum(group.capacity for group in groups),
        "observed_samples_per_insert": sums["sampled"] / inserted if inserted else 0.0,
    }
    ledger.tick(
        now,
        totals=total,
        replay=replay,
        version=home.look.version,
        workers=[
            slot.status(now)
            for group in groups
            if group.starts or not group.optional
            for slot in group.slots
            if slot.handle is not None or not (slot.resting or group.resting)
        ],
        restarts=restarts,
        dropped={
            **{what: total(counter) for what, counter in DROPPED.items()},
            **more,
            "stale_priorities": sums["updates_stale"],
            "lost_items": sums["lost"] + sum(group.lost_items for group in groups),
            "spoilt_weight_reads": sum(group.look.spoilt for group in groups),
        },
    )
    return sums
