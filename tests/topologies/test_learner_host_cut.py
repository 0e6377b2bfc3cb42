"""Learners on several hosts: what runs on the first one, and what on one that joins it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.protocols import Item, Place
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.host_cut import learner_side, with_actors, with_slots
from apexrl.topologies.learner_hosts import (
    OTHER_LEARNERS,
    first_host,
    host_of_a_sender,
    other_host,
    refusal,
    with_gateway,
    with_own_replay,
)
from apexrl.topologies.program import Node
from apexrl.topologies.sync_learners import averaging

OFFERS = ("gradients", "apply", "networks")
VECTORS, PLACES = {"q/online": 30}, {"w": Place("q", 0, (30,))}
PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)), {}, 64, Item(), OFFERS, VECTORS, PLACES
)
UNROLLS = replace(PROBE, item=Item("unroll", 5), step_spec={"log_prob": Field((), "float32")})
RECORD: Any = object()
REMOTE: dict[str, Any] = {"server": None, "keys": None, "run_id": "r", "fence": 1}


def program(name: str, learners: int = 1, actors: int = 2, **changes: Any) -> tuple[Program, Probe]:
    config = override(Config(topology=name), {"learners": learners, "actors": actors, **changes})
    seen = PROBE if name in ("apex", "gorila") else UNROLLS
    return topology(name)(with_slots(config), seen), seen


def nodes(program: Program) -> dict[str, Node]:
    return {node.name: node for node in program.nodes}


@pytest.mark.parametrize("name", ["apex", "impala"])
@pytest.mark.parametrize("learners", [1, 2])
def test_learners_of_the_first_host_average_through_the_record(name: str, learners: int) -> None:
    whole, seen = program(name, learners)
    assert refusal(whole, seen) == ""
    link = averaging(whole, whole.config, seen, record=RECORD)
    found = nodes(learner_side(first_host(whole, link), REMOTE))
    assert found["learner"].ports["averaging"] is link
    assert found["learner"].count == learners
    assert (link.options["members"], link.options["record"]) == (learners, RECORD)
    assert "intake" in found
    assert "elsewhere" not in found["learner"].ports


@pytest.mark.parametrize("name", ["apex", "impala"])
def test_a_host_that_joins_has_a_learner_with_actors_a_replay_and_a_board_of_its_own(name: str) -> None:
    config = with_actors(program(name, learners=2)[0].config, 3)
    seen = PROBE if name == "apex" else UNROLLS
    whole = topology(name)(config, seen)
    link = averaging(whole, config, seen, record=RECORD, first=70)
    found = nodes(other_host(whole, [(4, 1), (5, 2), (9, 3)], link))
    assert set(found) == {"learner", "actor"}  # the first host evaluates
    learner, actor = found["learner"], found["actor"]
    assert (learner.count, learner.ports["elsewhere"], learner.ports["averaging"]) == (1, True, link)
    assert learner.ports["replay"] is actor.ports["replay"]
    assert learner.ports["weights"] is actor.ports["weights"]
    assert (actor.indices, actor.generations) == ((4, 5, 9), (1, 2, 3))


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("ga3c", {}, "no host brings learners to topology ga3c, but to apex, impala and gorila"),
        ("apex", {"anneal": True}, "--no-anneal"),
        ("apex", {"reset_period_updates": 100}, "--reset-period-updates 0"),
    ],
)
def test_what_cannot_average_takes_no_learners(name: str, changes: dict[str, Any], why: str) -> None:
    config = override(Config(topology=name), changes)
    seen = UNROLLS if name == "ga3c" else PROBE
    assert why in refusal(topology(name)(config, seen), seen)


@pytest.mark.parametrize("replay", ["global", "local"])
def test_parameter_servers_have_room_for_learners_of_other_hosts(replay: str) -> None:
    whole, seen = program("gorila", learners=2, replay=replay)
    assert refusal(whole, seen) == ""
    found = nodes(learner_side(with_gateway(whole, {"listen": "here"}), REMOTE))
    assert "intake" in found  # for hosts that bring actors alone
    gateway = found["gateway"].ports
    assert (gateway["first"], gateway["listen"]) == (2, "here")
    assert gateway["gradients"].options["senders"] == 2 + OTHER_LEARNERS
    for name in ("gradient_learner", "parameter_server"):
        assert found[name].ports["gradients"] is gateway["gradients"]
        assert found[name].ports["parameters"] is gateway["parameters"]
    assert found["evaluator"].ports["weights"] is gateway["parameters"]


@pytest.mark.parametrize("replay", ["global", "local"])
def test_a_host_that_joins_them_has_a_learner_with_its_actors_replay_and_a_relay(replay: str) -> None:
    config = override(program("gorila", learners=2, replay=replay)[0].config, {"save_replay": replay == "global"})
    whole = topology("gorila")(with_own_replay(with_actors(config, 2)), PROBE)
    found = nodes(host_of_a_sender(whole, [(4, 1), (9, 3)], [(3, 7)], None))
    assert set(found) == {"gradient_learner", "actor", "relay"}
    learner, actor, relay = found["gradient_learner"], found["actor"], found["relay"].ports
    assert (learner.indices, learner.generations, actor.indices) == ((3,), (7,), (4, 9))
    assert learner.ports["queue_0"] is actor.ports["queue_0"]
    assert learner.ports["gradients"] is relay["gradients"]
    assert relay["gradients"].options["slots"] == (3,)
    assert learner.ports["parameters"] is actor.ports["weights"] is relay["parameters"]


def test_an_agent_that_is_more_than_gradients_takes_no_learners() -> None:
    whole, _ = program("apex")
    assert "made of more than these" in refusal(whole, replace(PROBE, places={}))
