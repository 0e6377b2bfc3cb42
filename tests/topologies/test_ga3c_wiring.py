from __future__ import annotations

from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import AgentError, ConfigError
from apexrl.links.local.inference import InferenceLink
from apexrl.presets import preset, with_topology
from apexrl.protocols import Item, Place
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, topology
from apexrl.topologies.program import CountLink, Program

PROBE = Probe(
    EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2), stack=3),
    {"log_prob": Field((), "float32")},
    64,
    Item("unroll", 8),
    ("gradients", "apply", "networks"),
    {"policy_value/online": 16},
    {"policy.weight": Place("policy_value", 0, (16,))},
)


def wired(probe: Probe = PROBE, **changes: Any) -> Program:
    settings = {"actors": 5, "envs_per_actor": 3, "splits": 2, "agent": "a2c", "batch_size": 6, **changes}
    return topology("ga3c")(override(Config(topology="ga3c"), settings), probe)


def test_one_server_has_the_model_and_workers_have_environments() -> None:
    nodes = {node.name: node for node in wired(env_timeout=9.0).nodes}
    assert {name: node.count for name, node in nodes.items()} == {"model_server": 1, "env_worker": 5, "evaluator": 1}
    server, worker = nodes["model_server"], nodes["env_worker"]
    assert {"weights", "replay"}.isdisjoint(worker.ports)
    assert worker.ports["inference"] is server.ports["inference"]
    assert server.ports["weights"] is nodes["evaluator"].ports["weights"]
    assert server.traits.writes_checkpoints
    assert (server.env_timeout, worker.env_timeout) == (None, 9.0)
    assert worker.nice > server.nice == 0


def test_experience_goes_through_a_queue_of_unrolls_with_a_row_for_every_environment() -> None:
    server = wired(queue_batches=3).nodes[0]
    options = server.ports["replay"].options
    assert (options["kind"], options["sampler"], options["length"]) == ("unroll", "fifo", 8)
    assert (options["capacity"], options["writers"]) == (18, 5)
    link = server.ports["inference"]
    made = link.make(shared=True, **link.options)
    assert isinstance(made, InferenceLink)
    assert (made.workers, made.splits, made.envs) == (5, (2, 1), 15)
    assert made.request["observation"] == Field((3, 4), "float32")


def test_environments_and_both_kinds_of_threads_are_tunable() -> None:
    program = wired(predictors=3, trainers=1, autotune=True, actor_slots=12)
    assert program.tunable == {"env_worker": (5, 12), "predictor": (3, 8), "trainer": (1, 8)}
    ports = program.nodes[0].ports
    assert [ports[name] for name in ("predictors", "trainers")] == program.thread_counts
    assert all(isinstance(knob, CountLink) for knob in program.thread_counts)
    assert wired(predictors=20).tunable["predictor"] == (20, 20)


def test_trainers_that_would_wait_for_more_than_they_may_take_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="--training-min-batch 7 is more than --batch-size 6, the most that a trainer"
    ):
        wired(training_min_batch=7)
    wired(training_min_batch=6)


def test_agents_that_cannot_share_their_parameters_are_refused_by_name() -> None:
    with pytest.raises(AgentError, match="topology ga3c cannot run agent a2c, which lacks networks"):
        wired(PROBE.__class__(PROBE.spec, PROBE.step_spec, 64, PROBE.item, ("gradients", "apply")))
    with pytest.raises(ConfigError, match="topology ga3c cannot run agent dqn, which learns from transitions"):
        with_topology(preset("cartpole").config, "ga3c", "dqn")
    config = with_topology(preset("cartpole").config, "ga3c")
    assert (config.topology, config.agent.agent) == ("ga3c", "a2c")
