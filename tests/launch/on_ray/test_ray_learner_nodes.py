"""Whole runs whose learners are on several nodes of a real Ray: whoever dies, the others go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray
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
REPLAYED = {"capacity": 4000, "min_size": 200, "updates_per_step": 0.25}


def config_of(name: str, tmp_path: Path, **changes: Any) -> Config:
    own: dict[str, Any] = {"unroll_length": 5} if name == "impala" else REPLAYED
    base = override(Config(), {"out": str(tmp_path), "name": "run"})
    chosen = with_topology(base, name) if name == "impala" else with_agent(base, "dqn")
    return override(chosen, {**SMALL, **own, "learners": 2, **changes})


@pytest.mark.parametrize("name", ["impala", "apex"])
def test_learners_on_two_nodes_go_on_whoever_dies(cluster: str, tmp_path: Path, name: str) -> None:
    """A learner, the one that publishes, and one with the memory of its group."""
    killer = Killer("learner-1", "learner-0", "shard-1")
    summary, watcher = run(cluster, config_of(name, tmp_path), killer, replay_shards=2, learner_nodes=2)
    assert {role: count for role, count in summary["restarts"].items() if count} == {
        "learner": 1 + 1 + 1, "actor": 2, "shard": 1
    }  # fmt: skip
    assert "replay" not in summary["restarts"]  # each samples its own shards
    assert checkpoint.load_latest(tmp_path / "run" / "checkpoints") is not None
    assert not any("failed at the end" in text for text in watcher.texts)


def test_learners_begin_anew_together_when_their_record_is_lost(cluster: str, tmp_path: Path) -> None:
    killed: list[int] = []

    def act(watcher: Watcher, status: RunStatus) -> bool:
        if not killed and status.updates > 60:
            holder: Any = ray.get_actor("learners.0", watcher.namespace)
            os.kill(ray.get(holder.__ray_call__.remote(lambda self: os.getpid()), timeout=60.0), signal.SIGKILL)
            killed.append(status.updates)
        return bool(killed) and status.restarts["learner"] == 2 and status.updates > killed[0] + 60

    assert not ray.is_initialized()
    summary, watcher = run(cluster, config_of("impala", tmp_path), act, replay_shards=2, learner_nodes=2)
    assert watcher.said("the record of the learners was lost: they begin anew")
    assert summary["restarts"]["learner"] == 2


def test_the_node_of_a_learner_is_lost_and_the_other_goes_on_until_it_is_back(nodes: Any, tmp_path: Path) -> None:
    """No other node has room for its group, until there is a new one."""
    lost: list[int] = []
    added: list[int] = []

    def at_work(status: RunStatus) -> int:
        return sum(worker.role == "learner" and worker.pid is not None for worker in status.workers)

    def act(watcher: Watcher, status: RunStatus) -> bool:
        if not lost:
            if at_work(status) == 2 and status.updates > 60:
                nodes.lose(watcher.where("shard-1"))
                lost.append(status.updates)
            return False
        if not added:
            if watcher.said("shard-1 was lost with") and status.updates > lost[0] + 60:
                assert at_work(status) == 1
                nodes.add()
                added.append(status.updates)
            return False
        return at_work(status) == 2 and status.updates > added[0] + 60

    sizes = {"actor_cpus": 0.5, "shard_cpus": 0.25, "learner_cpus": 0.75, "replay_shards": 2, "learner_nodes": 2}
    summary, _ = run(nodes.address, config_of("impala", tmp_path), act, **sizes)
    assert summary["restarts"]["shard"] == 1
    assert summary["restarts"]["evaluator"] == 0
