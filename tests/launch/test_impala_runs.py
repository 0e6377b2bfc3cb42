"""Whole runs of IMPALA: in lock-step, in processes, with deaths, with a limit to the policy lag."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, arrays_of

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch
from apexrl.presets import with_topology
from apexrl.run.status import RunStatus

T, BATCH = 5, 8
SMALL: dict[str, Any] = {
    "hidden": (16,),
    "unroll_length": T,
    "batch_size": BATCH,
    "actors": 2,
    "envs_per_actor": 4,
    "env_timeout": 30.0,
    "checkpoint_seconds": 0.05,
    "eval_episodes": 4,
    "eval_envs": 2,
    "eval_period_seconds": 0.5,
    "env_steps": 6000,
}


def config_for(tmp_path: Path, name: str = "run", **changes: Any) -> Config:
    chosen = with_topology(override(Config(), {"out": str(tmp_path), "name": name}), "impala")
    return override(chosen, {**SMALL, **changes})


def pids_of(status: RunStatus, role: str) -> list[int]:
    return [worker.pid for worker in status.workers if worker.role == role and worker.pid]


def test_lock_step_runs_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    lock_step: dict[str, Any] = {"serial": True, "eval_period_seconds": 0.1, "env_steps": 2400}
    configs = [config_for(tmp_path, name, **lock_step) for name in ("one", "two")]
    one, two = (launch(config) for config in configs)
    assert one["updates"] > 40
    for name in ("env_steps", "updates", "episodes", "policy_lag", "final_eval_return"):
        assert one[name] == two[name]
    first, second = (arrays_of(config) for config in configs)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    other = config_for(tmp_path, "other", **lock_step, seed=2)
    launch(other)
    assert not all(np.array_equal(first[name], value) for name, value in arrays_of(other).items())


def test_every_step_is_learned_from_once_and_nearly_at_once(tmp_path: Path) -> None:
    """Taking turns, the learner takes what there is: only what is too little for a batch waits."""
    summary = launch(config_for(tmp_path, serial=True, env_steps=3000))
    learned = summary["policy_lag"]["steps"]
    waiting = T * (8 + BATCH) + 8 * (T + 1)  # unrolls that are not enough, and those that are not complete
    assert summary["env_steps"] - waiting <= learned <= summary["env_steps"]
    assert summary["policy_lag"]["max"] <= 2
    assert summary["samples_per_insert"] == pytest.approx(1.0, abs=0.05)
    assert set(summary["dropped"].values()) == {0}


def test_it_runs_in_processes(tmp_path: Path) -> None:
    summary = launch(config_for(tmp_path, env_steps=3000), [watcher := Watcher()])
    assert (summary["topology"], summary["agent"], summary["stopped_by"]) == ("impala", "impala", "env_steps")
    assert summary["updates"] >= 0.8 * summary["policy_lag"]["steps"] / (T * BATCH)
    assert 0.5 * summary["env_steps"] < summary["policy_lag"]["steps"] <= summary["env_steps"]
    assert summary["policy_lag"]["mean"] < 10  # two batches wait, and an actor has the newest weights
    assert summary["restarts"] == {"actor": 0, "learner": 0, "evaluator": 0}
    assert max(status.replay_capacity for status in watcher.statuses) == 2 * BATCH
    assert max(status.replay_size for status in watcher.statuses) <= 2 * BATCH + 8


def test_killed_actors_and_a_killed_learner_do_not_end_it(tmp_path: Path) -> None:
    killed: list[str] = []

    def act(status: RunStatus) -> bool | None:
        if not killed and status.updates > 20 and (pids := pids_of(status, "learner")):
            os.kill(pids[0], signal.SIGKILL)
            killed.append("learner")
        if killed == ["learner"] and status.restarts.get("learner") and status.updates > 60:
            for pid in pids_of(status, "actor"):
                os.kill(pid, signal.SIGKILL)
            killed.append("actors")
            return None
        again = status.restarts.get("actor") == 2 and status.updates > 120
        return again if len(killed) == 2 else None

    summary = launch(config_for(tmp_path, env_steps=0, minutes=5.0), [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"] == {"actor": 2, "learner": 1, "evaluator": 0}
    assert summary["dropped"]["lost_items"] == BATCH  # what the learner had taken last
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)


def test_what_is_older_than_the_limit_is_counted_and_not_learned_from(tmp_path: Path) -> None:
    """An actor that looks for weights every 50 steps comes to be 10 updates behind, if its two batches are one update
    each."""
    config = config_for(tmp_path, serial=True, pull_period=50, max_policy_lag=3, env_steps=3000)
    free = launch(override(config, {"name": "free", "max_policy_lag": 0}))
    assert free["policy_lag"]["max"] > 6
    assert free["dropped"]["aged_steps"] == 0
    summary = launch(config)
    assert summary["policy_lag"]["max"] == 3
    assert summary["dropped"]["aged_steps"] > 0.3 * summary["env_steps"]
    seen = summary["policy_lag"]["steps"] + summary["dropped"]["aged_steps"]
    assert seen == pytest.approx(free["policy_lag"]["steps"], rel=0.02)


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    config = config_for(tmp_path, serial=True, env_steps=1000)
    before = launch(config)
    after = launch(override(config, {"env_steps": 2000}), resume=tmp_path / "run")
    assert after["env_steps"] >= 2000
    assert after["updates"] > before["updates"] + 20


def test_several_learners_taking_turns_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"serial": True, "learners": 2, "eval_period_seconds": 0.1, "env_steps": 3000}
    configs = [config_for(tmp_path, name, **settings) for name in ("one", "two")]
    one, two = (launch(config) for config in configs)
    assert one["updates"] > 25
    assert one["policy_lag"]["steps"] > 0.8 * one["env_steps"]  # both learn from all of theirs
    assert one["policy_lag"] == two["policy_lag"]
    first, second = (arrays_of(config) for config in configs)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_several_learners_go_on_whoever_of_them_dies(tmp_path: Path) -> None:
    killed: list[int] = []

    def act(status: RunStatus) -> bool | None:
        """Kill the first learner, then the second, each well after the other came back."""
        learners = [worker for worker in status.workers if worker.role == "learner"]
        settled = sum(worker.restarts for worker in learners) == len(killed)
        if len(killed) < 2 and settled and status.updates > 20 * (1 + len(killed)):
            pid = learners[len(killed)].pid
            if pid:
                os.kill(pid, signal.SIGKILL)
                killed.append(status.updates)
        return len(killed) == 2 and settled and status.updates > killed[1] + 20

    config = config_for(tmp_path, env_steps=0, minutes=5.0, learners=2)
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback", watcher.texts
    assert summary["restarts"] == {"actor": 0, "learner": 2, "evaluator": 0}
    assert summary["dropped"]["lost_items"] == 2 * BATCH
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)
    assert max(status.replay_capacity for status in watcher.statuses) == 2 * 2 * BATCH
