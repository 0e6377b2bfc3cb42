"""A program cut in two: what runs on the learner's host, and what on one that brings actors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.replay import Replay
from apexrl.replay.chunks import schema
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, ReplayLink, topology
from apexrl.topologies.host_cut import (
    DEFAULT_SLOTS,
    actor_side,
    learner_side,
    options_from_json,
    options_to_json,
    passing,
    replay_of,
    with_slots,
)
from apexrl.topologies.program import Node, ReceiptsLink

PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)), {"q": Field((2,), "float32", sampled=False)}, 64
)


def settings(**actor: Any) -> Config:
    config = Config()
    return with_slots(replace(config, actor=replace(config.actor, **actor)))


def whole(config: Config) -> Program:
    return topology("apex")(config, PROBE)


def nodes(program: Program) -> dict[str, Node]:
    return {node.name: node for node in program.nodes}


def test_slots_are_at_least_the_actors_and_leave_room_for_others() -> None:
    assert settings(actors=3).actor.actor_slots == DEFAULT_SLOTS
    assert settings(actors=100).actor.actor_slots == 100
    assert settings(actors=3, actor_slots=5).actor.actor_slots == 5


def test_the_learners_side_has_an_intake_in_place_of_the_actors() -> None:
    config = override(settings(actor_slots=10, envs_per_actor=3), {"updates_per_step": 0.25, "batch_size": 64})
    side = nodes(learner_side(whole(config), {"run_id": "x"}))
    assert {name: node.count for name, node in side.items()} == {"learner": 1, "evaluator": 1, "intake": 1}
    intake, learner = side["intake"], side["learner"]
    assert intake.ports["replay"] is learner.ports["replay"]
    assert intake.ports["weights"] is learner.ports["weights"] is side["evaluator"].ports["weights"]
    assert isinstance(intake.ports["receipts"], ReceiptsLink)
    assert (intake.ports["streams"], intake.ports["run_id"], intake.ports["config"]) == (30, "x", config)
    options = learner.ports["replay"].options
    assert (options["streams"], options["writers"]) == (30, 1)
    assert options["capacity"] == config.replay.capacity
    assert options["samples_per_insert"] == 0.25 * 64


def test_an_actor_hosts_side_has_its_leased_slots_and_an_uplink() -> None:
    config = settings(actors=2, envs_per_actor=3)
    program = whole(config)
    side = nodes(actor_side(program, [(4, 7), (9, 1)], {"member": "m"}))
    assert set(side) == {"actor", "uplink"}
    actor, uplink = side["actor"], side["uplink"]
    assert actor.leases == [(4, 7), (9, 1)]
    assert actor.count == 2
    assert (actor.factory, actor.restarts, actor.env_timeout) == (
        nodes(program)["actor"].factory, config.actor.actor_restarts, config.actor.env_timeout
    )  # fmt: skip
    assert actor.ports["replay"] is uplink.ports["replay"]
    assert actor.ports["weights"] is uplink.ports["weights"]
    assert uplink.ports["member"] == "m"
    options = actor.ports["replay"].options
    assert (options["sampler"], options["writers"], options["streams"]) == ("fifo", 2, 6)
    assert (options["min_size"], options["samples_per_insert"]) == (0, 0.0)


def test_the_cut_leaves_the_program_as_it_was() -> None:
    program = whole(settings())
    before = [(node.name, dict(node.ports)) for node in program.nodes]
    learner_side(program, {})
    actor_side(program, [(0, 1)], {})
    assert [(node.name, dict(node.ports)) for node in program.nodes] == before


def test_both_replays_can_be_made_and_exchange_chunks() -> None:
    program = whole(settings(actors=2, envs_per_actor=3))
    there = nodes(learner_side(program, {}))["intake"].ports["replay"].options
    here = nodes(actor_side(program, [(0, 1), (1, 1)], {}))["uplink"].ports["replay"].options
    assert schema(**there) == schema(**here) == schema(**replay_of(program).options)
    for options in (there, here):
        Replay(**options).close()


def test_batches_follow_their_replay_in_every_role() -> None:
    program = Program(settings())
    replay = program.replay(fields={"observation": Field((), "float32")}, capacity=10, writers=2, streams=2)
    batches = program.batches(replay, learners=2)
    program.role(object, name="replay", batches=batches)  # type: ignore[arg-type]
    program.role(object, name="learner", batches=batches)  # type: ignore[arg-type]
    program.role(object, name="actor", replay=replay, weights=program.weights(8))  # type: ignore[arg-type]
    side = nodes(learner_side(program, {}))
    moved = side["replay"].ports["batches"]
    assert moved is side["learner"].ports["batches"]
    assert moved.replay is side["intake"].ports["replay"]


@pytest.mark.parametrize("missing", ["actor", "weights", "replay", "batches"])
def test_a_topology_without_such_a_cut_is_refused_by_name(missing: str) -> None:
    program = Program(replace(Config(), topology="strange"))
    replay, weights = program.replay(fields={}), program.weights(8)
    ports: dict[str, Any] = {"replay": replay, "weights": weights}
    if missing == "batches":
        ports["batches"] = program.batches(replay)
    ports.pop(missing if missing != "batches" else "", None)
    program.role(object, name="worker" if missing == "actor" else "actor", **ports)  # type: ignore[arg-type]
    for cut in (lambda: learner_side(program, {}), lambda: actor_side(program, [(0, 1)], {})):
        with pytest.raises(ConfigError, match="topology strange cannot run over several hosts"):
            cut()


@pytest.mark.parametrize("streams", [1, 16, 512])
@pytest.mark.parametrize("shape", [(4,), (84, 84), (1000, 1000)])
def test_a_passing_replay_holds_chunks_of_every_stream_and_not_much_more_than_the_window(
    streams: int, shape: tuple[int, ...]
) -> None:
    window = 64 * 2**20
    field = Field(shape, "uint8")
    options = passing({"fields": {"observation": field}, "capacity": 10**7, "alpha": 0.6}, 4, streams, window)
    assert options["capacity"] >= 16 * streams
    assert options["capacity"] * field.nbytes <= max(window, 16 * streams * field.nbytes)
    assert options["alpha"] == 0.6


def test_a_passing_replays_sequences_are_counted_with_their_steps() -> None:
    fields = {"observation": Field((84, 84), "uint8"), "state": Field((512,), "float32", per_item=True)}
    options = {"fields": fields, "capacity": 10**5, "kind": "sequence", "length": 80, "stride": 40, "burn_in": 40}
    one = 40 * (84 * 84) + 4 * 512
    assert 0.9 * 2**26 < passing(options, 1, 1, 2**26)["capacity"] * one <= 2**26


def test_what_only_the_learners_replay_does_stays_there() -> None:
    own = {"remover": "proportional", "recency_half_life": 0.1, "trim_every": 9}
    local = passing({"fields": {"observation": Field((), "float32")}, **own, "n_step": 3}, 1, 1, 2**20)
    assert not {"recency_half_life", "lag_half_life", "remover", "trim_every", "remover_alpha", "draws"} & local.keys()
    assert local["n_step"] == 3


def test_options_cross_as_json() -> None:
    options = passing(replay_of(whole(settings())).options, 1, 8, 2**26)
    assert options_from_json(json.loads(json.dumps(options_to_json(options)))) == options
    assert isinstance(ReplayLink(options).options["fields"]["q"], Field)
