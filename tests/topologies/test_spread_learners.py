"""Learners that average their gradients, spread over nodes beside shards of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.config.placement import Ray
from apexrl.errors import ConfigError
from apexrl.launch.ray.group_plan import plan, resource_bundles
from apexrl.protocols import Item, Place
from apexrl.roles import Learner, ReplayServer
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, ReplayLink, topology
from apexrl.topologies.ray_cut import actor_group_side, learner_node_side, queues, sampling
from apexrl.topologies.spread_learners import averaging_options, check, spread, with_own_replays

PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)),
    {},
    64,
    Item(),
    ("gradients", "apply", "networks"),
    {"q/online": 30},
    {"w": Place("q", 0, (30,))},
)
SIZES: dict[str, Any] = {"actors": 6, "envs_per_actor": 2, "batch_size": 8, "capacity": 1000, "min_size": 101}


def config_of(name: str, **changes: Any) -> Config:
    fixed = {"anneal": False, "epochs": 1, "minibatches": 1}
    return override(Config(topology=name), {**SIZES, **fixed, **changes})


def program(name: str, **changes: Any) -> Program:
    probe = replace(PROBE, item=Item("unroll", length=5)) if name == "impala" else PROBE
    return topology(name)(config_of(name, **changes), probe)


def cut_up(whole: Program, groups: int, nodes: int) -> tuple[Program, list[Program]]:
    samplers = [f"sampler {i}" for i, _ in enumerate(sampling(whole))]
    sides = [actor_group_side(whole, group, groups) for group in range(groups)]
    return spread(learner_node_side(whole, samplers), sides, nodes)


@pytest.mark.parametrize("name", ["apex", "impala"])
def test_every_node_has_its_learners_with_the_weights_of_its_group(name: str) -> None:
    whole = with_own_replays(program(name, learners=3))
    assert averaging_options(whole)["members"] == 3
    home, sides = cut_up(whole, 4, 2)
    first = next(node for node in home.nodes if node.name == "learner")
    assert first.indices == (0, 2)
    assert "averaging" not in first.ports  # whoever launches them gives it
    assert [[node.name for node in side.nodes] for side in sides] == [
        ["actor"], ["actor", "learner"], ["actor"], ["actor"]
    ]  # fmt: skip
    actor, second = sides[1].nodes
    assert second.indices == (1,)
    assert second.ports["weights"] is actor.ports["weights"]
    assert first.ports["weights"] is not second.ports["weights"]
    assert (first.ports["publisher"], second.ports["publisher"]) == (0, 1)
    assert [second.ports[f"queue_{i}"] for i in range(3)] == ["sampler 0", "sampler 1", "sampler 2"]


def test_learners_of_apex_get_a_replay_each_that_hold_together_what_one_did() -> None:
    whole = with_own_replays(program("apex", learners=2, updates_per_step=0.25))
    assert not any(node.factory is ReplayServer for node in whole.nodes)
    assert not any(node.factory is Learner for node in whole.nodes)  # but one of several queues
    rules = sampling(whole)
    assert [(one["capacity"], one["min_size"]) for one in rules] == [(500, 51)] * 2
    assert len({one["seed"] for one in rules}) == 2
    # Each sees half of the steps, and both make every update: so many samples of an inserted item as of one replay.
    assert [one["samples_per_insert"] for one in rules] == [0.25 * 8 * 2] * 2
    for group in range(4):
        (actor,) = actor_group_side(whole, group, 4).nodes
        assert [name for name in actor.ports if name.startswith("queue_")] == [f"queue_{group % 2}"]
        assert sum(isinstance(port, ReplayLink) for port in actor.ports.values()) == 1


def test_queues_of_impala_stay_as_they_are() -> None:
    whole = program("impala", learners=2)
    assert with_own_replays(whole) is whole


def test_the_node_of_a_learner_has_its_processors() -> None:
    config = config_of("apex", learners=3)
    placement = Ray(actor_cpus=0.5, shard_cpus=0.25, learner_cpus=2.0, learner_gpus=1.0, learner_nodes=2)
    assert queues(config, 2) == 3
    dealt = plan(config, placement, 3, queues(config, 2))
    home, *groups = resource_bundles(config, placement, dealt)
    assert home == {"CPU": 4.0, "GPU": 2.0}  # learners 0 and 2
    assert groups == [{"CPU": 1.25}, {"CPU": 3.25, "GPU": 1.0}, {"CPU": 1.25}]


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("apex", {}, "--learner-nodes 2 want a learner each, and --learners is 1: raise it"),
        ("gorila", {"learners": 2}, "topology gorila has none: use --topology apex or impala"),
        ("seed", {}, "topology seed has none: use --topology apex or impala"),
    ],
)
def test_nodes_without_learners_that_average_are_refused(name: str, changes: dict[str, Any], what: str) -> None:
    check(config_of(name, **changes), 1)
    with pytest.raises(ConfigError, match=what):
        check(config_of(name, **changes), 2)
