"""A program to which other hosts bring workers over TCP, and what they run."""

from __future__ import annotations

from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import from_toml, override
from apexrl.errors import ConfigError
from apexrl.launch.gateway_run import make_record
from apexrl.links.local.gradient_ring import GradientLink
from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp.parameter_relay import ParameterGateway
from apexrl.protocols import Item, Place
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.gateway_cut import envs_side, gateway_side, relay_side
from apexrl.topologies.program import Node, ReplayLink

SPEC = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
PROBE = Probe(SPEC, {"q": Field((2,), "float32", sampled=False)}, 64, Item())


def settings(**changes: Any) -> Config:
    return override(Config(topology="seed"), {"actors": 2, "actor_slots": 5, "envs_per_actor": 3, **changes})


def side(**changes: Any) -> dict[str, Node]:
    config = settings(**changes)
    program = gateway_side(topology("seed")(config, PROBE), {"listen": "a listen", "record": "a record"})
    return {node.name: node for node in program.nodes}


@pytest.mark.parametrize("actors", [0, 2])
def test_the_learners_host_gains_a_gateway_and_room_for_all_slots(actors: int) -> None:
    nodes = side(actors=actors)
    assert [nodes[name].count for name in ("learner", "inference_server", "env_worker", "gateway")] == [1, 1, actors, 1]
    link = nodes["gateway"].ports["inference"]
    assert link is nodes["inference_server"].ports["inference"]
    assert link is nodes["env_worker"].ports["inference"]
    made = link.make(shared=True, **link.options)
    assert isinstance(made, InferenceLink)
    assert (made.workers, made.splits, made.envs) == (5, (2, 1), 15)
    replay = nodes["learner"].ports["replay"]
    assert isinstance(replay, ReplayLink)
    assert replay is nodes["inference_server"].ports["replay"]
    assert replay.options["writers"] == 5
    assert replay.options["streams"] >= 15
    gateway = nodes["gateway"].ports
    assert (gateway["first"], gateway["listen"], gateway["record"]) == (actors, "a listen", "a record")


def test_ga3c_has_environment_workers_that_ask_too() -> None:
    config = override(Config(topology="ga3c"), {"agent": "a2c", "actors": 0, "actor_slots": 5, "envs_per_actor": 3})
    places = {"weight": Place("policy_value", 0, (32,))}
    probe = Probe(SPEC, {}, 64, Item("unroll", 5), ("networks",), {"policy_value/online": 32}, places)
    program = gateway_side(topology("ga3c")(config, probe), {"listen": "a listen", "record": "a record"})
    nodes = {node.name: node for node in program.nodes}
    link = nodes["gateway"].ports["inference"]
    assert link is nodes["model_server"].ports["inference"]
    made = link.make(shared=True, **link.options)
    assert (made.workers, made.splits) == (5, (2, 1))
    assert nodes["model_server"].ports["replay"].options["streams"] >= 15


UNROLLS = Probe(
    SPEC,
    {},
    64,
    Item("unroll", 5),
    ("gradients", "apply", "networks"),
    {"policy_value/online": 320, "policy_value/optimizer/steps": 1},
    {"weight": Place("policy_value", 0, (320,))},
)


def a3c(**changes: Any) -> Program:
    changes = {"agent": "a2c", "actors": 2, "actor_slots": 5, "hogwild": False, "parameter_servers": 3, **changes}
    return topology("a3c")(override(Config(topology="a3c"), changes), UNROLLS)


def test_gradients_and_parameters_of_a3c_cross_and_a_relay_stands_for_the_servers() -> None:
    whole = a3c()
    there = {node.name: node for node in gateway_side(whole, {"listen": "a listen", "record": "a record"}).nodes}
    gradients = there["gateway"].ports["gradients"]
    assert gradients.options["senders"] == 5
    assert there["parameter_server"].ports["gradients"] is there["worker"].ports["gradients"] is gradients
    assert there["gateway"].ports["parameters"] is there["evaluator"].ports["weights"]
    assert there["worker"].count == there["gateway"].ports["first"] == 2

    gateway = ParameterGateway(("there", 1), "token", [(3, 7), (4, 1)])
    here = {node.name: node for node in relay_side(whole, [(3, 7), (4, 1)], gateway).nodes}
    assert list(here) == ["worker", "relay"]
    assert here["worker"].leases == [(3, 7), (4, 1)]
    link = here["worker"].ports["gradients"]
    made = link.make(shared=True, **link.options)
    assert isinstance(made, GradientLink)
    assert (made.slots, made.capacity, made.shards.count) == ((3, 4), 1, 3)
    assert here["relay"].ports["gradients"] is link
    assert (
        here["relay"].ports["parameters"]
        is here["worker"].ports["parameters"]
        is not there["gateway"].ports["parameters"]
    )
    record = make_record(whole.config, "12345678-abcd", whole, UNROLLS)
    assert record.brings == "gradients"
    assert record.schema != make_record(whole.config, "12345678-abcd", a3c(parameter_servers=2), UNROLLS).schema
    assert from_toml(record.config).agent == whole.config.agent


def test_other_hosts_learn_nothing_of_where_the_learner_keeps_its_runs() -> None:
    config = settings(name="r", out="/home/somebody/runs")
    record = make_record(config, "12345678-abcd", topology("seed")(config, PROBE), PROBE)
    assert "somebody" not in record.config
    assert from_toml(record.config).actor == config.actor
    assert record.splits == [2, 1]


def test_another_host_has_environment_workers_in_its_slots_and_nothing_else() -> None:
    config = settings(env_timeout=7.0, actor_restarts=3)
    program = envs_side(config, SPEC, [(3, 8), (4, 1)], "a link")
    (node,) = program.nodes
    assert node.name == "env_worker"
    assert node.leases == [(3, 8), (4, 1)]
    assert (node.count, node.env_timeout, node.restarts) == (2, 7.0, 3)
    assert node.ports["inference"] == "a link"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="--actor-slots 2 leaves none for other hosts beside --actors 2"):
        side(actor_slots=2)
    with pytest.raises(ConfigError, match=r"share SharedParameters, which lies .*: set --no-hogwild"):
        gateway_side(a3c(hogwild=True, parameter_servers=1), {})
    for program in (a3c(weights_precision="bfloat16"), topology("seed")(settings(weights_precision="bfloat16"), PROBE)):
        with pytest.raises(ConfigError, match=r"--weights-precision bfloat16 means nothing .* no weights travel"):
            gateway_side(program, {})
    config = override(Config(topology="apex"), {"actor_slots": 64})
    with pytest.raises(ConfigError, match="experience crosses through Redis, which keeps it while the learner is away"):
        gateway_side(topology("apex")(config, PROBE), {})
