"""Whole runs on a dataset: in lock-step, and in processes of which the learner dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher

import apexrl
from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.datasets.minari_files import Dataset
from apexrl.errors import ConfigError, DatasetError
from apexrl.evaluation.loaded_agent import load_agent
from apexrl.launch import launch
from apexrl.presets import unseen
from apexrl.presets.choice import AUTO, choose
from apexrl.roles.batch_source import DirectBatches
from apexrl.roles.evaluator import Evaluator
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows
from apexrl.run.status import RunStatus
from apexrl.topologies.validation import validate
from corridor_values import q_star

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))
from corridor_data import CORRIDOR, corridor_episodes, write_corridor

pytest.importorskip("minari")

SMALL: dict[str, Any] = {
    "env": CORRIDOR,
    "topology": "offline",
    "hidden": (32,),
    "learning_rate": 3e-3,
    "batch_size": 64,
    "target_period_updates": 50,
    "eval_episodes": 4,
    "eval_envs": 2,
    "eval_period_seconds": 0.5,
    "checkpoint_seconds": 0.5,
    "gamma": 0.9,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a policy that goes left two times in three, which is seldom right."""
    where = tmp_path_factory.mktemp("datasets") / "corridor"
    return str(write_corridor(where, corridor_episodes(150, right=1 / 3)))


def config_for(tmp_path: Path, dataset: str, agent: str = "discrete_cql", name: str = "run", **changes: Any) -> Config:
    settings = {**SMALL, "dataset": dataset, **changes}
    return override(with_agent(Config(out=str(tmp_path), name=name), agent), settings)


def test_conservative_values_find_the_exit_that_the_dataset_seldom_took(tmp_path: Path, dataset: str) -> None:
    """Seed 1; 400 updates. Going right is best in all but the first state, where the exit on the left is as far."""
    config = config_for(tmp_path, dataset, updates=400, serial=True, conservative_weight=0.05)
    summary = launch(config)
    assert summary["stopped_by"] == "updates"
    assert summary["updates"] == 400
    assert summary["env_steps"] == 0
    agent = load_agent(RunFolder.open(tmp_path / "run"), "latest", "cpu", config=config)
    chosen = [int(agent.act(np.int64(state))) for state in range(6)]
    assert chosen == q_star(6, 0.9).argmax(axis=1).tolist()
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    evaluations = [row for row in rows if row["kind"] == "evaluation" and not row.get("final")]
    assert evaluations
    assert all(0 <= row["updates"] <= 400 for row in evaluations)
    assert [row["policy_lag_mean"] for row in rows if row["kind"] == "status"][-1] is None  # nobody of the run acted


def test_two_lock_step_runs_are_equal_to_the_last_bit(tmp_path: Path, dataset: str) -> None:
    from apexrl.run import checkpoint

    for name in ("one", "two"):
        launch(config_for(tmp_path, dataset, "bc", name, updates=60, serial=True))
    one, two = (checkpoint.load_latest(tmp_path / name / "checkpoints") for name in ("one", "two"))
    assert one is not None
    assert two is not None
    assert all(np.array_equal(one.arrays[name], two.arrays[name]) for name in one.arrays)


def test_a_resumed_run_meets_no_batch_and_no_seed_of_before(
    tmp_path: Path, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[int, ...]] = []
    seeds: list[int] = []
    batch_of, seed_of = DirectBatches.next, Evaluator._seed

    def batch_noted(self: DirectBatches, wait: bool = True) -> Any:
        found = batch_of(self, wait)
        if found is not None:
            batches.append(tuple(found.batch.keys.tolist()))
        return found

    def seed_noted(self: Evaluator, final: bool = False) -> int:
        seeds.append(seed_of(self, final))
        return seeds[-1]

    monkeypatch.setattr(DirectBatches, "next", batch_noted)
    monkeypatch.setattr(Evaluator, "_seed", seed_noted)
    config = config_for(tmp_path, dataset, updates=20, serial=True, eval_period_seconds=0.01)
    launch(config)
    before = len(seeds)
    launch(override(config, {"updates": 40}), resume=tmp_path / "run")
    assert len(set(batches)) == len(batches) >= 40
    assert before > 2
    assert not set(seeds[:before]) & set(seeds[before:])


def test_a_killed_learner_goes_on_with_the_same_replay(tmp_path: Path, dataset: str) -> None:
    seen = {"killed": 0, "size": 0}

    def act(status: RunStatus) -> bool:
        learner = next((one for one in status.workers if one.role == "learner"), None)
        if status.updates >= 100 and not seen["killed"] and learner is not None and learner.pid:
            os.kill(learner.pid, signal.SIGKILL)
            seen["killed"] = status.updates
        if seen["killed"] and status.restarts.get("learner"):
            seen["size"] = status.replay_size
        return bool(seen["size"] and status.updates > seen["killed"] + 50)

    config = config_for(tmp_path, dataset, updates_per_second=200.0, alpha=0.6, minutes=3.0)
    summary = launch(config, [Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"]["learner"] == 1
    assert seen["size"] == Dataset(dataset).steps


def test_a_run_goes_on_with_actors_where_the_dataset_ends(tmp_path: Path, dataset: str) -> None:
    launch(config_for(tmp_path, dataset, updates=100, serial=True))
    online = {"topology": "apex", "actors": 1, "envs_per_actor": 2, "min_size": 50, "updates_per_step": 0.5}
    again = apexrl.resume(tmp_path / "run", show=False, updates=0, env_steps=300, trust=("apexrl.envs.toy",), **online)
    assert again.summary["env_steps"] >= 300
    assert again.summary["updates"] > 150  # those of the dataset among them
    assert again.summary["best_eval_return"] is not None


def test_an_agent_for_datasets_runs_offline_unless_a_topology_is_named() -> None:
    for name in ("bc", "cql", "discrete_cql", "iql", "td3_bc"):
        assert unseen.default_topology(name) == "offline"
        facts = unseen.assumed_facts(name)
        assert choose(facts, 4, name, "apex", ()).topology == "apex"
    assert choose(unseen.assumed_facts("sac"), 4, AUTO, "offline", ()).agent == "iql"
    assert choose(unseen.assumed_facts("dqn"), 4, AUTO, "offline", ()).agent == "discrete_cql"
    assert unseen.default_topology("sac") == "apex"


def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path: Path, dataset: str) -> None:
    with pytest.raises(ConfigError, match="topology offline learns from a dataset alone: name one with --dataset"):
        validate(config_for(tmp_path, ""))
    with pytest.raises(ConfigError, match="--dataset means nothing to agent ppo"):
        validate(override(with_agent(Config(topology="impala"), "ppo"), {"dataset": dataset}), ["dataset"])
    with pytest.raises(ConfigError, match="--actors means nothing to topology offline"):
        validate(config_for(tmp_path, dataset), ["actors"])
    with pytest.raises(DatasetError, match="does not fit the environment"):
        launch(config_for(tmp_path, dataset, env="CartPole-v1", serial=True))
    with pytest.raises(DatasetError, match="there is no dataset"):
        launch(config_for(tmp_path, str(tmp_path / "none"), serial=True))
    assert not list(tmp_path.iterdir())
