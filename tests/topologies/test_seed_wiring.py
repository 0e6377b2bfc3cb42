from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.links.local.inference import InferenceLink
from apexrl.protocols import Item
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, topology
from apexrl.topologies.program import Link, Node

PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2), stack=3),
    {"q": Field((2,), "float32", sampled=False)},
    64,
)


def wired(config: Config, probe: Probe = PROBE) -> dict[str, Node]:
    return {node.name: node for node in topology("seed")(config, probe).nodes}


def settings(**changes: Any) -> Config:
    return override(Config(topology="seed"), {"actors": 5, "envs_per_actor": 3, "splits": 2, **changes})


def test_workers_have_environments_and_no_weights() -> None:
    nodes = wired(settings(env_timeout=9.0))
    assert {name: node.count for name, node in nodes.items()} == {
        "learner": 1,
        "inference_server": 1,
        "env_worker": 5,
        "evaluator": 1,
    }
    assert {"weights", "replay"}.isdisjoint(nodes["env_worker"].ports)
    assert nodes["env_worker"].ports["inference"] is nodes["inference_server"].ports["inference"]
    assert nodes["inference_server"].ports["replay"] is nodes["learner"].ports["replay"]
    assert nodes["inference_server"].ports["weights"] is nodes["learner"].ports["weights"]
    assert nodes["env_worker"].env_timeout == 9.0
    assert nodes["inference_server"].env_timeout is None
    assert nodes["env_worker"].nice > nodes["inference_server"].nice == nodes["learner"].nice


def test_the_link_has_a_row_for_every_environment_and_shows_stacked_frames() -> None:
    link = wired(settings())["env_worker"].ports["inference"]
    assert isinstance(link, Link)
    made = link.make(shared=True, **link.options)
    assert isinstance(made, InferenceLink)
    assert (made.workers, made.splits, made.envs) == (5, (2, 1), 15)
    assert made.request["observation"] == Field((3, 4), "float32")
    assert made.reply == {"action": Field((), "int64")}


@pytest.mark.parametrize("kind", ["transition", "sequence", "unroll"])
def test_unrolls_go_through_a_queue_and_all_else_through_a_prioritized_replay(kind: Any) -> None:
    windows = {"transition": Item(), "sequence": Item("sequence", 8, 4, 2), "unroll": Item("unroll", 8)}
    options = wired(settings(), replace(PROBE, item=windows[kind]))["learner"].ports["replay"].options
    assert options["kind"] == kind
    assert options.get("sampler", "prioritized") == ("fifo" if kind == "unroll" else "prioritized")
    assert options["streams"] >= 15
    assert options["writers"] == 5
