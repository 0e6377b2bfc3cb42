"""Gorila's page, and A3C's with servers: who is wired to what."""

from __future__ import annotations

from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.errors import AgentError, ConfigError
from apexrl.links.gradients import GradientLink
from apexrl.links.sharded_parameters import ShardedParameters
from apexrl.protocols import Item, Place
from apexrl.settings import override
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Node, Probe, topology
from apexrl.topologies.program import BatchesLink, Link

VECTORS = {"q/online": 320, "q/target": 320, "q/optimizer/square_average": 320, "q/optimizer/steps": 1}
PLACES = {"w": Place("q", 0, (10, 32))}
SPEC = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
OFFERS = ("gradients", "apply", "networks")
PROBE = Probe(SPEC, {}, 1280, Item(), OFFERS, VECTORS, PLACES)
UNROLLS = Probe(SPEC, {}, 1280, Item("unroll", 5), OFFERS, VECTORS, PLACES)


def nodes(name: str, agent: str, probe: Probe, **changes: Any) -> dict[str, Node]:
    config = override(with_agent(Config(), agent), {"topology": name, "actors": 3, **changes})
    return {node.name: node for node in topology(name)(config, probe).nodes}


def test_learners_get_batches_and_send_gradients_to_servers_that_everybody_reads() -> None:
    found = nodes("gorila", "dqn", PROBE, learners=4, parameter_servers=2)
    counts = {"replay": 1, "gradient_learner": 4, "parameter_server": 2, "actor": 3, "evaluator": 1}
    assert {name: node.count for name, node in found.items()} == counts
    batches = found["gradient_learner"].ports["batches"]
    assert isinstance(batches, BatchesLink)
    assert batches is found["replay"].ports["batches"]
    assert batches.replay is found["actor"].ports["replay"]
    assert batches.options["learners"] == 4
    parameters, gradients = (found["parameter_server"].ports[name] for name in ("parameters", "gradients"))
    assert isinstance(parameters, Link)
    assert parameters.make is ShardedParameters
    assert gradients.make is GradientLink
    assert gradients.options["senders"] == 4
    assert gradients.options["shards"] is parameters.options["shards"]
    assert gradients.options["shards"].count == 2
    readers = [found[name].ports["weights"] for name in ("actor", "evaluator")]
    assert all(port is parameters for port in (*readers, found["gradient_learner"].ports["parameters"]))
    assert found["gradient_learner"].ports["gradients"] is gradients


def test_workers_of_a3c_send_to_the_same_servers_without_hogwild() -> None:
    found = nodes("a3c", "a2c", UNROLLS, hogwild=False, parameter_servers=3)
    assert {name: node.count for name, node in found.items()} == {"worker": 3, "parameter_server": 3, "evaluator": 1}
    for name in ("parameters", "gradients"):
        assert found["worker"].ports[name] is found["parameter_server"].ports[name]
    assert found["worker"].ports["gradients"].options["senders"] == 3
    assert found["evaluator"].ports["weights"] is found["worker"].ports["parameters"]


@pytest.mark.parametrize(("name", "agent", "probe"), [("gorila", "dqn", PROBE), ("a3c", "a2c", UNROLLS)])
def test_servers_alone_write_checkpoints(name: str, agent: str, probe: Probe) -> None:
    changes: dict[str, Any] = {"hogwild": False} if name == "a3c" else {}
    found = nodes(name, agent, probe, **changes)
    assert [role for role, node in found.items() if node.keeps] == ["parameter_server"]


def test_what_it_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="gorila cannot run agent a2c, which learns from unrolls"):
        nodes("gorila", "a2c", UNROLLS)
    with pytest.raises(AgentError, match="gorila cannot run agent crossq: parameter servers change it by gradients"):
        nodes("gorila", "crossq", PROBE.__class__(SPEC, {}, 1280, Item(), OFFERS, VECTORS))
    with pytest.raises(ConfigError, match="--parameter-servers 6"):
        nodes("gorila", "dqn", PROBE, parameter_servers=6)
