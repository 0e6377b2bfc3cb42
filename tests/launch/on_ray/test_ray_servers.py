"""Whole runs of Sample Factory, SEED, GA3C and A3C on a real Ray of several nodes: whoever dies, they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from killing_runs import SMALL, Killer, run
from short_runs import Watcher

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.presets import with_topology
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def config_of(topology: str, tmp_path: Path, **changes: Any) -> Config:
    chosen = with_topology(override(Config(), {"out": str(tmp_path), "name": "run"}), topology)
    return override(with_agent(chosen, "impala"), {**SMALL, "unroll_length": 5, **changes})


def check(summary: dict[str, Any], tmp_path: Path, **restarts: int) -> None:
    expected = dict.fromkeys(summary["restarts"], 0) | restarts
    assert summary["restarts"] == expected
    assert summary["policy_lag"]["steps"] > 5 * 8 * 60
    assert checkpoint.load_latest(tmp_path / "run" / "checkpoints") is not None


def test_sample_factory_goes_on_whoever_dies(cluster: str, tmp_path: Path) -> None:
    killer = Killer("rollout_worker-1", "policy_worker-1", "learner-0", "shard-0")
    summary, watcher = run(cluster, config_of("sample_factory", tmp_path, policy_workers=2), killer, replay_shards=2)
    check(summary, tmp_path, rollout_worker=1 + 2, policy_worker=1 + 1, learner=1, shard=1)
    assert {worker.name for worker in watcher.status.workers if worker.role == "policy_worker"} == {
        "policy_worker-0",
        "policy_worker-1",
    }
    assert summary["dropped"]["lost_items"] >= 0


@pytest.mark.parametrize(
    ("topology", "server", "learner"), [("seed", "inference_server", "learner"), ("ga3c", "model_server", "")]
)
def test_seed_and_ga3c_go_on_whoever_dies(
    cluster: str, tmp_path: Path, topology: str, server: str, learner: str
) -> None:
    """The gateway listens where it did; a learner's node that is lost takes along who asks there."""
    killer = Killer(
        *("env_worker-0", "env_worker-3", f"{server}-0", *([f"{learner}-0"] if learner else [])),
        *("gateway-0", "group-0", "home"),
    )
    summary, watcher = run(cluster, config_of(topology, tmp_path), killer, replay_shards=3)
    once = {server: 2, "gateway": 2, "evaluator": 1, "group": 1} | ({learner: 2} if learner else {})
    # Group 0 has slots 0 and 3; with the learner's node go all four.
    check(summary, tmp_path, env_worker=2 + 2 + 4, **once)
    assert summary["hosts"]["refused"] == 0 or watcher.said("was refused")
    assert watcher.said("group-0 was lost")
    assert watcher.said("the learner's node or memory was lost")


def test_a3c_goes_on_whoever_dies(cluster: str, tmp_path: Path) -> None:
    """Workers wait while their relay, the gateway or a server is away; of the learner's node, only relays ask."""
    killer = Killer("worker-1", "relay-0", "parameter_server-0", "gateway-0", "group-0", "home")
    changes = {"hogwild": False, "anneal": False, "epochs": 1, "minibatches": 1}
    chosen = with_agent(config_of("a3c", tmp_path), "a2c")
    summary, watcher = run(cluster, override(chosen, changes), killer, replay_shards=2)
    restarts = {role: count for role, count in summary["restarts"].items() if count}
    once = {"worker": 1 + 2, "relay": 1 + 1 + 2, "parameter_server": 2, "gateway": 2, "evaluator": 1, "group": 1}
    assert restarts == once
    assert checkpoint.load_latest(tmp_path / "run" / "checkpoints") is not None
    assert watcher.said("the learner's node or memory was lost")


def test_env_workers_come_and_go_with_nodes(nodes: Any, tmp_path: Path) -> None:
    """Two at first, and two more on the third node. It is lost with them, and they begin again on another one."""
    lost: list[int] = []
    added: list[int] = []

    def at_work(status: RunStatus) -> int:
        return sum(worker.role == "env_worker" and worker.pid is not None for worker in status.workers)

    def act(watcher: Watcher, status: RunStatus) -> bool:
        if not lost:
            if at_work(status) == 4 and status.updates > 20:
                nodes.lose(watcher.where("group-1"))
                lost.append(status.updates)
            return False
        if not added:
            if watcher.said("group-1 was lost") and status.updates > lost[0] + 20:  # with the others
                assert at_work(status) == 2
                nodes.add()
                added.append(status.updates)
            return False
        return at_work(status) == 4 and status.updates > added[0] + 20

    config = config_of("seed", tmp_path, actors=2, actor_slots=4)
    sizes = {"actor_cpus": 1.0, "learner_cpus": 1.0, "inference_cpus": 1.0, "replay_shards": 2}
    summary, watcher = run(nodes.address, config, act, **sizes)
    assert watcher.said("4 actors have resources now, of at most 4")
    assert summary["restarts"]["group"] == 1
    assert summary["restarts"]["inference_server"] == summary["restarts"]["gateway"] == 0
