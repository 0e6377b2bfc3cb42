"""A3C's page: who is wired to what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import AgentError, ConfigError
from apexrl.links.local.shared_parameters import SharedParameters
from apexrl.protocols import Item, Place
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, topology
from apexrl.topologies.program import Link, WeightsLink

VECTORS = {"policy_value/online": 32, "policy_value/optimizer/square_average": 32, "policy_value/optimizer/steps": 1}
SPEC = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
PLACES = {"weight": Place("policy_value", 0, (32,))}
PROBE = Probe(SPEC, {}, 64, Item("unroll", 5), ("gradients", "apply", "networks"), VECTORS, PLACES)


def nodes(probe: Probe = PROBE, **changes: Any) -> dict[str, Any]:
    config = override(with_agent(Config(), "a2c"), {"topology": "a3c", "actors": 3, **changes})
    return {node.name: node for node in topology("a3c")(config, probe).nodes}


def test_workers_and_the_keeper_share_parameters_and_nothing_travels_to_a_learner() -> None:
    found = nodes()
    assert {name: node.count for name, node in found.items()} == {"parameter_server": 1, "worker": 3, "evaluator": 1}
    parameters = found["worker"].ports["parameters"]
    assert parameters is found["parameter_server"].ports["parameters"]
    assert parameters == Link(SharedParameters, {"sizes": VECTORS})
    assert found["parameter_server"].ports["weights"] is found["evaluator"].ports["weights"]
    assert found["parameter_server"].ports["weights"] == WeightsLink(64)
    assert set(found["worker"].ports) == {"config", "spec", "parameters"}


def test_the_keeper_alone_writes_checkpoints() -> None:
    assert [name for name, node in nodes().items() if node.traits.writes_checkpoints] == ["parameter_server"]
    apex = {node.name: node for node in topology("apex")(Config(), Probe(SPEC, {}, 64)).nodes}
    assert [name for name, node in apex.items() if node.traits.writes_checkpoints] == ["learner"]


def test_statistics_of_ones_own_are_not_shared() -> None:
    sizes = nodes(shared_statistics=False)["worker"].ports["parameters"].options["sizes"]
    assert sizes == {"policy_value/online": 32}


def test_what_it_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="topology a3c cannot run agent a2c, which learns from transitions"):
        nodes(PROBE.__class__(SPEC, {}, 64))
    with pytest.raises(AgentError, match="lacks apply, networks"):
        nodes(PROBE.__class__(SPEC, {}, 64, Item("unroll", 5), ("gradients",)))
    with pytest.raises(ConfigError, match="which is made of more than gradients"):
        nodes(replace(PROBE, places={}))
    with pytest.raises(ConfigError, match="runs agents with --epochs 1 alone, and not with --epochs 2"):
        nodes(epochs=2)
    with pytest.raises(ConfigError, match="--anneal cannot go with --no-hogwild"):
        nodes(anneal=True, hogwild=False)
