from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import TOPOLOGIES, Probe, Program, ReplayLink, WeightsLink, topology

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


@pytest.mark.parametrize(("name", "hint"), [("apx", "did you mean 'apex'"), ("zzz", "known: apex")])
def test_an_unknown_topology_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        topology(name)
