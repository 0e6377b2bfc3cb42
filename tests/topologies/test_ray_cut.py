"""A program cut into a home and groups of actors, each with a shard of the replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apexrl.config import Config
from apexrl.protocols import Item
from apexrl.replay import Replay
from apexrl.replay.chunks import schema
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, ReplayLink, topology
from apexrl.topologies.program import Node
from apexrl.topologies.ray_cut import actor_group_side, learner_node_side, sampling

PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)), {"q": Field((2,), "float32", sampled=False)}, 64
)
UNROLLS = replace(PROBE, item=Item("unroll", length=5))


def program(name: str = "apex", probe: Probe = PROBE, **wiring: Any) -> Program:
    config = Config(topology=name)
    config = replace(
        config,
        actor=replace(config.actor, actors=5, envs_per_actor=3),
        replay=replace(config.replay, capacity=1000, min_size=100, updates_per_step=0.125),
        learner=replace(config.learner, batch_size=32),
        wiring=replace(config.wiring, **wiring),
    )
    return topology(name)(config, probe)


def nodes(side: Program) -> dict[str, Node]:
    return {node.name: node for node in side.nodes}


def test_home_keeps_every_role_but_the_actors() -> None:
    whole, sampler = program(), object()
    home = nodes(learner_node_side(whole, [sampler]))
    assert list(home) == ["learner", "evaluator"]
    assert home["learner"].ports["replay"] is sampler
    assert home["learner"].ports["weights"] is home["evaluator"].ports["weights"]
    assert home["learner"].traits.writes_checkpoints
    assert not any(isinstance(port, ReplayLink) for node in home.values() for port in node.ports.values())


def test_groups_share_out_the_slots_and_the_capacity() -> None:
    whole = program()
    sides = [nodes(actor_group_side(whole, group, 2)) for group in range(2)]
    assert [list(side) for side in sides] == [["actor"], ["actor"]]
    assert [side["actor"].indices for side in sides] == [(0, 2, 4), (1, 3)]
    assert [side["actor"].leases for side in sides] == [[(0, 0), (2, 0), (4, 0)], [(1, 0), (3, 0)]]
    options = [side["actor"].ports["replay"].options for side in sides]
    assert [one["capacity"] for one in options] == [500, 500]
    assert [(one["writers"], one["streams"]) for one in options] == [(3, 9), (2, 6)]
    assert all(one["samples_per_insert"] == 0.0 and one["min_size"] == 0 for one in options)
    assert len({one["seed"] for one in options}) == 2


def test_shards_hold_the_same_items_as_one_replay_would() -> None:
    whole = program()
    own = next(node for node in whole.nodes if node.name == "actor").ports["replay"].options
    shard = nodes(actor_group_side(whole, 0, 2))["actor"].ports["replay"].options
    assert schema(**own) == schema(**shard)
    with Replay(**shard) as replay:
        assert replay.capacity == 500


def test_the_limiter_is_that_of_all_shards_together() -> None:
    (found,) = sampling(program())
    assert (found["capacity"], found["min_size"], found["samples_per_insert"]) == (1000, 100, 4.0)
    assert found["stratified"] is True


def test_a_queue_is_cut_too() -> None:
    whole = program("impala", UNROLLS, queue_batches=2)
    assert [one["sampler"] for one in sampling(whole)] == ["fifo"]
    shard = nodes(actor_group_side(whole, 1, 3))["actor"].ports["replay"].options
    assert shard["sampler"] == "fifo"
    assert shard["capacity"] == 22
    with Replay(**shard) as replay:
        assert replay.stats()["chunk_items"] == 1  # a slot holds one unroll


def test_slots_may_be_dealt_out_in_another_way() -> None:
    whole = program()
    sides = [
        nodes(actor_group_side(whole, group, 3, slots))["actor"] for group, slots in enumerate([(0, 2), (1,), (3, 4)])
    ]
    assert [[slot for slot, _ in side.leases] for side in sides] == [[0, 2], [1], [3, 4]]
    options = [side.ports["replay"].options for side in sides]
    assert [(one["writers"], one["streams"], one["capacity"]) for one in options] == [
        (2, 6, 334), (1, 3, 334), (2, 6, 334)
    ]  # fmt: skip
