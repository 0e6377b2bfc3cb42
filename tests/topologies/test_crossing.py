"""Which roles of each topology may run on other hosts, and which links cross."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.protocols import Item, Place
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.crossing import crossing

PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)),
    {"q": Field((2,), "float32", sampled=False)},
    64,
    offers=("gradients", "apply", "networks"),
    vectors={"q/online": 30, "q/target": 30, "q/optimizer/steps": 1},
    places={"w": Place("q", 0, (30,))},
)
UNROLLS = replace(PROBE, item=Item("unroll", length=5))


def program(name: str, probe: Probe, **settings: Any) -> Program:
    config = override(replace(Config(), topology=name), {"actors": 4, **settings})
    return topology(name)(config, probe)


@pytest.mark.parametrize(
    ("name", "probe", "settings", "moving", "carried"),
    [
        ("apex", PROBE, {}, ["actor"], {"replays": 1, "weights": True}),
        ("impala", UNROLLS, {}, ["actor"], {"replays": 1, "weights": True}),
        ("impala", UNROLLS, {"learners": 3}, ["actor"], {"replays": 3, "weights": True}),
        ("gorila", PROBE, {"learners": 2}, ["actor"], {"replays": 1, "weights": True}),
        ("gorila", PROBE, {"learners": 2, "replay": "local"}, ["actor"], {"replays": 2, "weights": True}),
        ("a3c", UNROLLS, {"hogwild": False}, ["worker"], {"gradients": True, "parameters": True}),
        ("ga3c", UNROLLS, {}, ["env_worker"], {"inference": True}),
        ("seed", UNROLLS, {}, ["env_worker"], {"inference": True}),
        ("sample_factory", UNROLLS, {}, ["policy_worker", "rollout_worker"],
         {"replays": 1, "weights": True, "inner": 1}),
    ],
)  # fmt: skip
def test_what_moves_and_what_crosses(
    name: str, probe: Probe, settings: dict[str, Any], moving: list[str], carried: dict[str, Any]
) -> None:
    whole = program(name, probe, **settings)
    found = crossing(whole)
    assert [node.name for node in found.moving] == moving
    assert {node.name for node in (*found.moving, *found.staying)} == {node.name for node in whole.nodes}
    has = {
        "replays": len(found.replays),
        "inner": len(found.inner),
        "weights": found.weights is not None,
        "inference": found.inference is not None,
        "gradients": found.gradients is not None,
        "parameters": found.parameters is not None,
    }
    assert {name: value for name, value in has.items() if value} == carried


def test_the_queues_of_several_learners_stand_in_their_order() -> None:
    whole = program("impala", UNROLLS, learners=3)
    actor = crossing(whole).moving[0]
    assert [actor.ports[f"queue_{i}"] for i in range(3)] == list(crossing(whole).replays)


def test_shared_memory_does_not_cross() -> None:
    with pytest.raises(
        ConfigError,
        match=r"a3c cannot run over several hosts .* share SharedParameters, which lies .*: set --no-hogwild",
    ):
        crossing(program("a3c", UNROLLS))


def test_a_program_of_which_nothing_moves_is_refused() -> None:
    whole = program("apex", PROBE)
    with pytest.raises(ConfigError, match="keeps all of its roles on one machine"):
        crossing(Program(whole.config, [node for node in whole.nodes if not node.moves]))
