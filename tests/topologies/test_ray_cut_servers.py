"""Topologies whose workers ask servers, cut into a learner's node and groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.links.local.inference import InferenceLink
from apexrl.protocols import Item, Place
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, ReplayLink, topology
from apexrl.topologies.program import Node, WeightsLink
from apexrl.topologies.ray_cut import (
    actor_group_side,
    asking,
    in_shards,
    inference_servers,
    learner_node_side,
    policy_workers,
    sampling,
)

PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)),
    {"log_prob": Field((), "float32")},
    64,
    Item("unroll", length=5),
    ("gradients", "networks"),
    vectors={"q/online": 30},
    places={"w": Place("q", 0, (30,))},
)
A3C = replace(PROBE, offers=("gradients", "apply", "networks"))


def program(name: str, **changes: Any) -> Program:
    config = with_agent(Config(topology=name), "impala")
    sizes = {"actors": 5, "envs_per_actor": 4, "batch_size": 8, "splits": 2}
    return topology(name)(override(config, {**sizes, **changes}), PROBE)


def nodes(side: Program) -> dict[str, Node]:
    return {node.name: node for node in side.nodes}


def test_groups_of_sample_factory_have_both_kinds_of_workers_and_a_link_of_their_own() -> None:
    whole = program("sample_factory", policy_workers=3)
    home = nodes(learner_node_side(whole, [sampler := object()]))
    assert list(home) == ["learner", "evaluator"]
    assert home["learner"].ports["replay"] is sampler

    sides = [nodes(actor_group_side(whole, group, 2, choosing=2 - group)) for group in range(2)]
    assert [set(side) for side in sides] == [{"policy_worker", "rollout_worker"}] * 2
    assert [side["rollout_worker"].indices for side in sides] == [(0, 2, 4), (1, 3)]
    assert [side["policy_worker"].indices for side in sides] == [(0, 2), (1,)]
    links = [side["rollout_worker"].ports["inference"] for side in sides]
    assert [side["policy_worker"].ports["inference"] for side in sides] == links
    assert links[0] is not links[1]
    made = [link.make(shared=True, **link.options) for link in links]
    assert [(link.workers, link.slots, link.servers) for link in made] == [(3, (0, 2, 4), 2), (2, (1, 3), 1)]
    for side, link in zip(sides, made, strict=True):  # each finds its own
        for slot in side["rollout_worker"].indices:
            link.worker(slot, 0)
        assert [link.place(slot) for slot in side["policy_worker"].indices] == list(range(link.servers))
        assert isinstance(side["rollout_worker"].ports["replay"], ReplayLink)
        assert isinstance(side["policy_worker"].ports["weights"], WeightsLink)
    assert [one["sampler"] for one in sampling(whole)] == ["fifo"]


def test_rounded_weights_are_refused_where_none_travel() -> None:
    for name, refused in (("seed", True), ("ga3c", True), ("sample_factory", False)):
        whole = program(name, weights_precision="bfloat16")
        if refused:
            with pytest.raises(ConfigError, match=f"--weights-precision bfloat16 means nothing to topology {name}"):
                sampling(whole)
        else:
            assert sampling(whole)


@pytest.mark.parametrize(("name", "stays"), [("seed", ["learner", "inference_server"]), ("ga3c", ["model_server"])])
def test_the_server_of_seed_and_ga3c_stays_with_its_replay_and_workers_ask_through_a_gateway(
    name: str, stays: list[str]
) -> None:
    whole = program(name)
    home = nodes(learner_node_side(whole, [], listen := object()))
    assert list(home) == [*stays, "evaluator", "gateway"]
    server = home[stays[-1]]
    assert home["gateway"].ports["inference"] is server.ports["inference"]
    assert server.ports["inference"].make is InferenceLink.make
    assert server.ports["inference"].options["workers"] == 5
    assert home["gateway"].ports["listen"] is listen
    assert home["gateway"].ports["record"] is None
    assert isinstance(server.ports["replay"], ReplayLink)  # it is not cut
    assert sampling(whole) == []

    (workers,) = actor_group_side(whole, 1, 2).nodes
    assert (workers.name, workers.indices) == ("env_worker", (1, 3))
    assert set(workers.ports) == {"config", "spec"}  # what stands for the link is known when the gateway is there


def test_groups_of_a3c_have_a_relay_in_the_place_of_the_parameter_servers() -> None:
    config = with_agent(Config(topology="a3c"), "a2c")
    sizes = {"actors": 5, "hogwild": False, "anneal": False, "epochs": 1, "minibatches": 1}
    whole = topology("a3c")(override(config, {**sizes, "parameter_servers": 1}), A3C)
    home = nodes(learner_node_side(whole, [], listen := object()))
    assert set(home) == {"parameter_server", "evaluator", "gateway"}
    gateway = home["gateway"].ports
    assert gateway["gradients"] is home["parameter_server"].ports["gradients"]
    assert gateway["parameters"] is home["parameter_server"].ports["parameters"]
    assert gateway["listen"] is listen
    assert "inference" not in gateway
    assert sampling(whole) == []
    assert asking(whole) == {"relay"}

    sides = [nodes(actor_group_side(whole, group, 2)) for group in range(2)]
    assert [side["worker"].indices for side in sides] == [(0, 2, 4), (1, 3)]
    assert [side["relay"].leases for side in sides] == [[(0, 0)], [(1, 0)]]  # no two have a name
    for side in sides:
        worker, relay = side["worker"], side["relay"]
        assert worker.ports["gradients"] is relay.ports["gradients"] is not gateway["gradients"]
        assert worker.ports["parameters"] is relay.ports["parameters"] is not gateway["parameters"]
        assert relay.ports["gradients"].options["slots"] == worker.indices
        assert not relay.moves  # it takes no processor of an actor


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("apex", (True, 0, 0)),
        ("sample_factory", (True, 3, 0)),
        ("seed", (False, 0, 1)),
        ("ga3c", (False, 0, 0)),  # its model server learns too
        ("a3c", (False, 0, 0)),
    ],
)
def test_what_a_topology_has_where(name: str, expected: tuple[bool, int, int]) -> None:
    config = override(replace(Config(), topology=name), {"policy_workers": 3})
    assert (in_shards(config), policy_workers(config), inference_servers(config)) == expected
