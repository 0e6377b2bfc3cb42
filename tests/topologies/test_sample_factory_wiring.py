from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.links.local.inference import InferenceLink
from apexrl.protocols import Item
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, topology
from apexrl.topologies.program import Link, Program

STATE = Field((7,), "float32", per_item=True)
PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2), stack=3),
    {"log_prob": Field((), "float32"), "lstm_h": STATE},
    64,
    Item("unroll", 8),
)


def wired(probe: Probe = PROBE, **changes: Any) -> Program:
    settings: dict[str, Any] = {"actors": 5, "envs_per_actor": 3, "splits": 2, "policy_workers": 2, **changes}
    return topology("sample_factory")(override(Config(topology="sample_factory"), settings), probe)


def test_rollout_workers_write_where_the_learner_reads_and_have_no_weights() -> None:
    nodes = {node.name: node for node in wired(env_timeout=9.0).nodes}
    assert {name: node.count for name, node in nodes.items()} == {
        "learner": 1,
        "policy_worker": 2,
        "rollout_worker": 5,
        "evaluator": 1,
    }
    assert nodes["rollout_worker"].ports["replay"] is nodes["learner"].ports["replay"]
    assert "weights" not in nodes["rollout_worker"].ports
    assert nodes["policy_worker"].ports["weights"] is nodes["learner"].ports["weights"]
    assert "replay" not in nodes["policy_worker"].ports
    assert nodes["rollout_worker"].ports["inference"] is nodes["policy_worker"].ports["inference"]
    assert nodes["rollout_worker"].env_timeout == 9.0
    assert nodes["policy_worker"].env_timeout is None
    assert nodes["rollout_worker"].nice > nodes["policy_worker"].nice == nodes["learner"].nice


def test_the_queue_has_a_lane_for_every_worker_and_a_stream_for_every_environment() -> None:
    options = next(node.ports["replay"].options for node in wired().nodes if node.name == "learner")
    assert (options["kind"], options["sampler"], options["length"], options["writers"]) == ("unroll", "fifo", 8, 5)
    assert options["streams"] >= 15


def test_the_link_carries_what_is_seen_what_is_done_and_the_recurrent_state_both_ways() -> None:
    link = next(node.ports["inference"] for node in wired().nodes if node.name == "policy_worker")
    assert isinstance(link, Link)
    made = link.make(shared=True, **link.options)
    assert isinstance(made, InferenceLink)
    assert (made.workers, made.splits, made.servers) == (5, (2, 1), 2)
    assert made.request == {"observation": Field((3, 4), "float32"), "lstm_h": STATE}
    assert made.reply.keys() == {"action", "log_prob", "lstm_h", "version"}


def test_more_policy_workers_than_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--policy-workers 11 share 10 groups of environments"):
        wired(policy_workers=11)


def test_an_auto_tuner_may_change_both_kinds_of_workers() -> None:
    tunable = wired(autotune=True, actor_slots=16).tunable
    assert tunable == {"policy_worker": (2, 8), "rollout_worker": (5, 16)}
    assert wired(autotune=True, actors=1, policy_workers=1).tunable["policy_worker"] == (1, 2)  # there are two groups


def test_only_agents_of_unrolls_run() -> None:
    with pytest.raises(ConfigError, match="topology sample_factory cannot run agent dueling_dqn"):
        wired(replace(PROBE, item=Item()))
