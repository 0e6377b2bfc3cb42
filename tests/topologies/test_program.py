from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apexrl import agents
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import AgentError, ConfigError
from apexrl.protocols import Place
from apexrl.replay import Replay
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import TOPOLOGIES, BatchesLink, Probe, Program, ReplayLink, WeightsLink, topology
from apexrl.topologies.host_cut import learner_side, with_slots
from apexrl.topologies.replay_links import served

PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)), {"q": Field((2,), "float32", sampled=False)}, 64
)


def actor() -> None: ...


def test_a_program_is_data() -> None:
    program = Program(Config())
    weights = program.weights(10)
    node = program.role(actor, count=3, restarts=2, env_timeout=1.5, weights=weights, answer=42)  # type: ignore[arg-type]
    assert program.nodes == [node]
    assert (node.name, node.count, node.restarts, node.env_timeout) == ("actor", 3, 2, 1.5)
    assert node.ports == {"weights": WeightsLink(10), "answer": 42}


def test_a_role_comes_once() -> None:
    program = Program(Config())
    program.role(actor)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has a role 'actor' already"):
        program.role(actor)  # type: ignore[arg-type]


def test_a_role_has_no_negative_number_of_workers() -> None:
    assert Program(Config()).role(actor, count=0).leases == []  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="role 'actor' cannot have -1 workers: give 0 or more"):
        Program(Config()).role(actor, count=-1)  # type: ignore[arg-type]


def test_apex_names_learner_actors_and_evaluator() -> None:
    config = Config()
    config = replace(config, actor=replace(config.actor, actors=5, envs_per_actor=3, env_timeout=9.0))
    nodes = {node.name: node for node in topology("apex")(config, PROBE).nodes}
    assert {name: node.count for name, node in nodes.items()} == {"learner": 1, "actor": 5, "evaluator": 1}
    assert nodes["actor"].env_timeout == nodes["evaluator"].env_timeout == 9.0
    assert nodes["learner"].restarts == config.learner.learner_restarts
    assert nodes["actor"].restarts == config.actor.actor_restarts


def test_in_apex_actors_and_learner_share_one_replay_and_all_share_the_weights() -> None:
    nodes = {node.name: node for node in topology("apex")(Config(), PROBE).nodes}
    assert nodes["actor"].ports["replay"] is nodes["learner"].ports["replay"]
    assert isinstance(nodes["actor"].ports["replay"], ReplayLink)
    assert "replay" not in nodes["evaluator"].ports
    assert len({id(node.ports["weights"]) for node in nodes.values()}) == 1
    assert nodes["actor"].ports["weights"] == WeightsLink(64)


def test_several_learners_of_apex_are_served_by_one_replay_and_average() -> None:
    able = replace(
        PROBE,
        offers=("gradients", "apply", "networks"),
        vectors={"q/online": 30, "q/target": 30, "q/optimizer/steps": 1},
        places={"w": Place("q", 0, (30,))},
    )
    config = override(Config(), {"learners": 2, "batch_size": 32, "beta": 0.5, "actors": 3})
    nodes = {node.name: node for node in topology("apex")(config, able).nodes}
    counts = {"replay": 1, "learner": 2, "actor": 3, "evaluator": 1}
    assert {name: node.count for name, node in nodes.items()} == counts
    batches = nodes["learner"].ports["replay"]
    assert isinstance(batches, BatchesLink)
    assert batches is nodes["replay"].ports["batches"]
    assert batches.replay is nodes["actor"].ports["replay"]
    assert batches.options == {"learners": 2, "batch_size": 32, "beta": 0.5, "prefetch": 5}
    for prefetch, device, places in ((0, "cuda", 2), (-1, "cpu", 2), (16, "cpu", 17)):
        assert served(override(config, {"prefetch": prefetch, "device": device}))["prefetch"] == places
    link = nodes["learner"].ports["averaging"]
    assert link.options == {"members": 2, "patience": 10.0, "compression": "none", "share": 0.01, "transport": "auto"}
    slow = override(config, {"averaging_timeout": 3.0, "updates_per_second": 0.1})
    (learner,) = [node for node in topology("apex")(slow, able).nodes if node.name == "learner"]
    assert learner.ports["averaging"].options["patience"] == 20.0  # else a slow pace would part them
    assert nodes["learner"].ports["weights"] is nodes["actor"].ports["weights"] is nodes["evaluator"].ports["weights"]
    there = {node.name for node in learner_side(topology("apex")(with_slots(config), able), {}).nodes}
    assert there == {"replay", "learner", "evaluator", "intake"}
    with pytest.raises(AgentError, match=r"several --learners average gradients, .* made of more"):
        topology("apex")(config, replace(able, places={}))


def test_age_counts_in_the_replay_and_is_not_corrected_without_priorities() -> None:
    config = override(Config(), {"recency_half_life": 0.1, "lag_half_life": 300, "capacity": 5000, "min_size": 1})
    options = topology("apex")(config, PROBE).nodes[0].ports["replay"].options
    assert (options["recency_half_life"], options["lag_half_life"]) == (0.1, 300)
    with Replay(**options) as replay:  # steps have the version that it reads
        assert len(replay) == 0
    assert served(config)["beta"] == 0.4
    assert served(override(config, {"alpha": 0.0}))["beta"] == 0.0


def test_d4pgs_replay_lets_go_of_what_surprises_least() -> None:
    config = override(agents.with_agent(Config(), "d4pg"), {"capacity": 400, "min_size": 1, "n_step": 1, "seed": 3})
    options = topology("apex")(config, PROBE).nodes[0].ports["replay"].options
    rows = 800
    fields = {"number": Field((), "int64")}
    writers = {"writers": 1, "streams": 1, "samples_per_insert": 0.0}  # nothing waits here
    replay = Replay(**{**options, "fields": fields, **writers})

    def priorities(items: Mapping[str, Any]) -> Any:
        return np.where(items["number"] % 2, 100.0, 1.0)

    with replay.writer(streams=1, priority_fn=priorities) as writer:
        for number in range(rows):
            step = {"number": [number], "reward": np.zeros(1, np.float32)}
            writer.append(step | {"terminated": [False], "truncated": [False]})
            if number % 4 == 3:
                writer.flush()
                replay.sample(8)
    assert len(replay) <= 500  # a quarter more than its capacity, between trims
    batches = [replay.sample(256).data["number"] for _ in range(200)]
    kept = np.unique(np.concatenate(batches))
    assert len(kept) <= 400
    assert kept.min() < 200  # not the oldest went
    assert (kept % 2).mean() > 0.7  # but what surprised least: at random it were a half
    replay.close()


def test_apex_replay_holds_a_step_and_who_chose_it() -> None:
    config = Config()
    nodes = {node.name: node for node in topology("apex")(config, PROBE).nodes}
    options = nodes["actor"].ports["replay"].options
    fields = options["fields"]
    assert set(fields) == {"observation", "action", "q", "version"}
    assert fields["version"].sampled
    assert not fields["q"].sampled
    assert np.dtype(fields["action"].dtype) == np.int64
    assert options["streams"] == config.actor.actors * config.actor.envs_per_actor


def test_every_topology_can_be_listed_and_found() -> None:
    for name, entry in TOPOLOGIES.items():
        assert topology(name).__name__ == name
        assert entry.summary
        assert entry.source


@pytest.mark.parametrize(("name", "hint"), [("apx", "did you mean 'apex'"), ("zzz", "Known: apex")])
def test_an_unknown_topology_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        topology(name)
