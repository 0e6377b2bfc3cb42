"""Whole runs with several learners on a real Ray of several nodes: they learn, and outlive each other."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from killing_runs import MORE, SMALL, Killer, run

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch.ray import shard_clients
from apexrl.presets import with_topology
from apexrl.run import checkpoint

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.mark.cluster
def test_learners_of_impala_make_every_update_together_and_go_on_whoever_dies(cluster: str, tmp_path: Path) -> None:
    chosen = with_topology(override(Config(), {"out": str(tmp_path), "name": "run"}), "impala")
    config = override(chosen, {**SMALL, "unroll_length": 5, "learners": 2})
    killer = Killer("learner-0", "learner-1")
    summary, watcher = run(cluster, config, killer, replay_shards=4)
    assert killer.killed == ["learner-0", "learner-1"]
    assert summary["restarts"]["learner"] == 2
    assert {summary["restarts"][role] for role in ("actor", "shard")} == {0}
    # Both learned from their own: an update takes a batch of each.
    assert summary["policy_lag"]["steps"] > 1.5 * 5 * 8 * MORE
    assert summary["env_steps"] > 2 * 5 * 8 * 2 * MORE
    assert all(killer.workers[f"actor-{slot}"].rate > 0 for slot in range(4))  # no queue is left to fill up
    assert checkpoint.load_latest(tmp_path / "run" / "checkpoints") is not None
    assert not any("failed at the end" in text for text in watcher.texts)


@pytest.mark.cluster
def test_learners_of_apex_are_served_from_shards_and_go_on_whoever_dies(cluster: str, tmp_path: Path) -> None:
    config = with_agent(Config(topology="apex", name="run", out=str(tmp_path)), "dqn")
    sizes = {"capacity": 4000, "min_size": 200, "updates_per_step": 0.25, "learners": 2}
    killer = Killer("learner-0", "learner-1", "replay-0")
    summary, watcher = run(cluster, override(config, {**SMALL, **sizes}), killer, replay_shards=2)
    assert summary["restarts"] == {"learner": 2, "replay": 1, "actor": 0, "evaluator": 0, "shard": 0}
    assert 0 < summary["samples_per_insert"] < 20
    assert summary["policy_lag"]["mean"] < summary["updates"] / 2  # actors got what they learned
    assert watcher.status.replay_capacity == 4000
    assert checkpoint.load_latest(tmp_path / "run" / "checkpoints") is not None


def gorila(tmp_path: Path, **changes: Any) -> Config:
    config = with_agent(Config(topology="gorila", name="run", out=str(tmp_path)), "dqn")
    sizes = {"capacity": 4000, "min_size": 200, "updates_per_step": 0.5, "publish_period_updates": 5}
    return override(config, {**SMALL, **sizes, "learners": 2, **changes})


@pytest.mark.cluster
def test_learners_of_gorila_are_served_from_shards_and_replaced_as_servers_are(cluster: str, tmp_path: Path) -> None:
    killer = Killer("gradient_learner-1", "replay-0", "parameter_server-0")
    summary, _ = run(cluster, gorila(tmp_path, parameter_servers=2), killer, replay_shards=2)
    expected = {"replay": 1, "gradient_learner": 1, "parameter_server": 1, "actor": 0, "evaluator": 0, "shard": 0}
    assert summary["restarts"] == expected
    assert summary["env_steps"] > 200
    assert 0 < summary["samples_per_insert"] < 20
    numbered = checkpoint.numbered(tmp_path / "run" / "checkpoints")
    assert numbered[-1].name.endswith(f"update-{summary['updates']:09d}.safetensors")
    # Actors got weights that servers had made, and not only the first ones.
    assert summary["policy_lag"]["mean"] < summary["updates"] / 2


@pytest.mark.cluster
def test_learners_of_gorila_may_have_shards_of_their_own(cluster: str, tmp_path: Path) -> None:
    killer = Killer("gradient_learner-0")
    summary, watcher = run(cluster, gorila(tmp_path, replay="local"), killer, replay_shards=2)
    assert summary["restarts"] | {"gradient_learner": 1, "shard": 0, "actor": 0} == summary["restarts"]
    assert watcher.status.replay_size > 200
    assert watcher.status.replay_capacity == 4000


def test_all_ends_of_a_process_share_one_look_at_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many groups that have yet to come, each would ask the head of the cluster twice a second."""
    looks: list[bool] = []

    def listed(all_namespaces: bool) -> list[dict[str, str]]:
        looks.append(all_namespaces)
        return [{"name": f"shard-{k}.{generation}", "namespace": "mine"} for k in (0, 1) for generation in range(k + 1)]

    monkeypatch.setattr(shard_clients, "_SEARCH_SECONDS", 1e6)
    monkeypatch.setattr(shard_clients, "list_named_actors", listed)
    monkeypatch.setattr(shard_clients.ray, "get_actor", lambda name, namespace: f"{namespace}/{name}")
    (own, _) = shard_clients.samplers(100, "mine", [{"capacity": 10}, {"capacity": 10}])
    replay: Any = pickle.loads(pickle.dumps(own))
    replay = replay._replay  # which loads are taken of
    assert [end._name for end in replay._clients] == [f"shard-{k}" for k in range(0, 100, 2)]
    assert [end._find() for end in replay._clients] == [True] + [False] * 49
    assert replay._clients[0]._handle == "mine/shard-0.0"
    assert len(looks) == 1
