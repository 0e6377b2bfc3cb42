"""Gorila's page, and A3C's with servers: who is wired to what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.protocols import Item, Place
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Node, Probe, topology
from apexrl.topologies.program import BatchesLink, Link, ReplayLink

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


def test_with_local_replays_every_learner_has_that_of_its_own_actors() -> None:
    sizes = {"capacity": 1001, "min_size": 99}
    found = nodes("gorila", "dqn", PROBE, learners=2, replay="local", **sizes)
    counts = {"gradient_learner": 2, "parameter_server": 1, "actor": 3, "evaluator": 1}
    assert {name: node.count for name, node in found.items()} == counts
    learner, actor = found["gradient_learner"], found["actor"]
    queues = [learner.ports[f"queue_{index}"] for index in range(2)]
    assert queues == [actor.ports[f"queue_{index}"] for index in range(2)]
    assert all(isinstance(queue, ReplayLink) for queue in queues)
    assert [queue.options["capacity"] for queue in queues] == [500, 500]
    assert [queue.options["min_size"] for queue in queues] == [50, 50]
    assert "batches" not in learner.ports
    made = {index: learner_or_actor(actor, index) for index in range(3)}
    assert made == {0: "queue_0", 1: "queue_1", 2: "queue_0"}


def learner_or_actor(node: Node, index: int) -> str:
    """The queue that slot ``index`` serves in."""
    named: Any = node.factory
    ports = {name: name for name in node.ports if name.startswith("queue_")}
    return str(type(named)(lambda context, replay: replay)(SimpleNamespace(index=index), **ports))


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"save_replay": True}, "--save-replay keeps one"), ({"learners": 4}, "--actors 3 some of the")],
)
def test_what_local_replays_cannot_do_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        nodes("gorila", "dqn", PROBE, replay="local", **changes)


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
    assert [role for role, node in found.items() if node.traits.writes_checkpoints] == ["parameter_server"]


def test_what_it_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="gorila cannot run agent a2c, which learns from unrolls"):
        nodes("gorila", "a2c", UNROLLS)
    with pytest.raises(ConfigError, match="gorila cannot run agent crossq, which is made of more than gradients"):
        nodes("gorila", "crossq", PROBE.__class__(SPEC, {}, 1280, Item(), OFFERS, VECTORS))
    with pytest.raises(ConfigError, match="--parameter-servers 6"):
        nodes("gorila", "dqn", PROBE, parameter_servers=6)
