"""A program cut in two: what runs on the learner's host, and what on one that brings actors."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.launch.wiring import Wiring
from apexrl.protocols import Item, Place
from apexrl.replay import Replay
from apexrl.replay.chunks import ChunkSink, Receipts, schema
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
    with_actors,
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
    assert intake.ports["queue_0"] is learner.ports["replay"]
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
    assert actor.nice == 0, "no learner is there to go first"
    beside = actor_side(program, [(4, 7), (9, 1)], {"member": "m"}, gives_way=True)
    assert nodes(beside)["actor"].nice == nodes(program)["actor"].nice > 0
    options = actor.ports["replay"].options
    assert (options["sampler"], options["writers"], options["streams"]) == ("fifo", 2, 6)
    assert (options["min_size"], options["samples_per_insert"]) == (0, 0.0)


ABLE = replace(
    PROBE,
    offers=("gradients", "apply", "networks"),
    vectors={"q/online": 30, "q/target": 30, "q/optimizer/steps": 1},
    places={"w": Place("q", 0, (30,))},
)
UNROLLS = replace(ABLE, item=Item("unroll", length=5))


def program_of(name: str, config: Config) -> Program:
    return topology(name)(replace(config, topology=name), ABLE if name in ("apex", "gorila") else UNROLLS)


CROSSED = [  # topology, its settings, and how many replays it has
    ("apex", {}, 1),
    ("apex", {"learners": 2}, 1),
    ("impala", {}, 1),
    ("impala", {"learners": 3}, 3),
    ("gorila", {"learners": 2}, 1),
    ("gorila", {"learners": 2, "replay": "local"}, 2),
    ("sample_factory", {}, 1),
]


@pytest.mark.parametrize(("name", "changes", "replays"), CROSSED)
def test_every_program_of_which_experience_and_weights_cross_is_cut(
    name: str, changes: dict[str, Any], replays: int
) -> None:
    config = override(settings(actors=4, envs_per_actor=3), changes)
    there = learner_side(program_of(name, config), {})
    here = actor_side(program_of(name, with_actors(config, 2)), [(4, 7), (9, 1)], {})
    learners, host = Wiring(there, True, Path("none")), Wiring(here, True, Path("none"))
    try:
        sides = nodes(there), nodes(here)
        intake, uplink = (learners.ports(sides[0]["intake"]), host.ports(sides[1]["uplink"]))
        into = [port for port in intake.values() if isinstance(port, Replay)]
        assert len(into) == replays
        assert {one.core.options["writers"] for one in into} == {1}
        assert schema(**sides[1]["uplink"].ports["replay"].options) == ChunkSink(into[0], Receipts(1), 1).schema
        assert not {node.name for node in there.nodes if node.moves}
        for node in here.nodes[:-1]:
            ports = host.ports(node)
            assert {id(port) for port in ports.values() if isinstance(port, Replay)} <= {id(uplink["replay"])}
            assert ports.get("weights", uplink["weights"]) is uplink["weights"]
            assert node.leases == [(4, 7), (9, 1)][: node.count]
        assert uplink["weights"].capacity >= (120 if name == "gorila" else 64)
    finally:
        for wiring in (learners, host):
            wiring.close()


def test_a_hosts_policy_workers_are_its_share_and_serve_its_own_slots() -> None:
    config = override(settings(actors=6), {"policy_workers": 3})
    side = actor_side(program_of("sample_factory", with_actors(config, 3)), [(4, 1), (5, 1), (9, 2)], {})
    assert nodes(side)["rollout_worker"].nice > nodes(side)["policy_worker"].nice == 0
    found = nodes(side)
    assert {name: node.indices for name, node in found.items() if node.moves} == {
        "policy_worker": (4, 5),
        "rollout_worker": (4, 5, 9),
    }
    link = found["policy_worker"].ports["inference"]
    assert link is found["rollout_worker"].ports["inference"]
    made = link.make(shared=True, **link.options)
    assert (made.workers, made.servers, made.slots, made.place(9)) == (3, 2, (4, 5, 9), 2)
    assert pickle.loads(pickle.dumps(made)).slots == made.slots


def test_a_host_with_few_actors_needs_none_for_every_learner() -> None:
    config = with_actors(override(settings(actors=4, min_actors=4), {"learners": 3, "policy_workers": 4}), 1)
    assert (config.actor.actors, config.actor.min_actors) == (1, 1)
    assert (config.wiring.learners, config.wiring.policy_workers) == (1, 1)


def test_the_cut_leaves_the_program_as_it_was() -> None:
    program = whole(settings())
    before = [(node.name, dict(node.ports)) for node in program.nodes]
    learner_side(program, {})
    actor_side(program, [(0, 1)], {})
    assert [(node.name, dict(node.ports)) for node in program.nodes] == before


def test_both_replays_can_be_made_and_exchange_chunks() -> None:
    program = whole(settings(actors=2, envs_per_actor=3))
    there = nodes(learner_side(program, {}))["intake"].ports["queue_0"].options
    here = nodes(actor_side(program, [(0, 1), (1, 1)], {}))["uplink"].ports["replay"].options
    assert schema(**there) == schema(**here) == schema(**replay_of(program).options)
    for options in (there, here):
        Replay(**options).close()


def test_batches_follow_their_replay_in_every_role() -> None:
    program = Program(settings())
    replay = program.replay(fields={"observation": Field((), "float32")}, capacity=10, writers=2, streams=2)
    batches = program.batches(replay, learners=2)
    program.role(object, name="replay", batches=batches)  # type: ignore[arg-type]
    weights = program.weights(8)
    program.role(object, name="learner", batches=batches, weights=weights)  # type: ignore[arg-type]
    acting: dict[str, Any] = {"replay": replay, "weights": weights, "moves": True}
    program.role(object, name="actor", **acting)  # type: ignore[arg-type]
    side = nodes(learner_side(program, {}))
    moved = side["replay"].ports["batches"]
    assert moved is side["learner"].ports["batches"]
    assert moved.replay is side["intake"].ports["queue_0"]


@pytest.mark.parametrize("missing", ["weights", "replay"])
def test_a_topology_without_such_a_cut_is_refused_by_name(missing: str) -> None:
    program = Program(replace(Config(), topology="strange"))
    replay, weights = program.replay(fields={}), program.weights(8)
    ports: dict[str, Any] = {"replay": replay, "weights": weights}
    program.role(object, name="learner", **ports)  # type: ignore[arg-type]
    del ports[missing]
    program.role(object, name="actor", moves=True, **ports)  # type: ignore[arg-type]
    for cut in (lambda: learner_side(program, {}), lambda: actor_side(program, [(0, 1)], {})):
        with pytest.raises(ConfigError, match="topology strange cannot run over several hosts with --redis"):
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


def test_older_releases_are_told_nothing_that_they_do_not_know() -> None:
    """Their hosts and clients refuse a field with a name of its own that they have not."""
    fields = {"observation": Field((8,), "float32"), "image": Field((4, 4, 3), "uint8", compressed=True)}
    told = options_to_json({"fields": fields})["fields"]
    assert told["observation"].keys() == {"shape", "dtype", "windowed", "sampled", "per_item"}
    assert told["image"].keys() - told["observation"].keys() == {"compressed"}
