"""Whole runs whose learner is slow: actors wait, so nothing is learned from too late, and nothing is dropped."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from recording_observer import Watcher

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch
from apexrl.presets import with_topology
from apexrl.run.status import RunStatus

LIMIT = 4  # with 8 environments and batches of 8 unrolls: the least that can be held
SLOW: dict[str, Any] = {
    "agent": "impala",
    "hidden": (16,),
    "unroll_length": 5,
    "batch_size": 8,
    "actors": 2,
    "envs_per_actor": 4,
    "env_timeout": 30.0,
    "publish_period_updates": 1,
    "prefetch": 0,
    "queue_batches": 8,
    "updates_per_second": 8.0,
    "eval_episodes": 1,
    "eval_envs": 1,
    "eval_period_seconds": 60.0,
    "env_steps": 800,
    "max_policy_lag": LIMIT,
}


def config_for(tmp_path: Path, topology: str, **changes: Any) -> Config:
    chosen = with_topology(override(Config(), {"out": str(tmp_path), "name": "run"}), topology)
    return override(chosen, {**SLOW, **changes})


@pytest.mark.parametrize(
    "topology", ["impala", *[pytest.param(name, marks=pytest.mark.long) for name in ("seed", "sample_factory")]]
)
def test_nothing_is_learned_from_too_late_and_nothing_is_dropped(tmp_path: Path, topology: str) -> None:
    summary = launch(config_for(tmp_path, topology, wait_at_policy_lag=LIMIT), [watcher := Watcher()])
    assert summary["stopped_by"] == "env_steps"
    assert summary["dropped"]["aged_steps"] == 0  # of which lag has no statistics
    assert summary["policy_lag"]["max"] > 0
    assert summary["policy_lag"]["steps"] > 0.6 * summary["env_steps"]  # the rest waits, or is not complete
    assert summary["lag_wait_seconds"] > 0
    assert max(status.replay_size for status in watcher.statuses) <= 8 + 8  # of the 64 that there is room for


@pytest.mark.long
@pytest.mark.parametrize("topology", ["impala", "seed", "sample_factory"])
def test_without_it_the_queue_fills_and_steps_are_dropped(tmp_path: Path, topology: str) -> None:
    summary = launch(config_for(tmp_path, topology, updates_per_second=40.0, env_steps=3000))
    assert summary["dropped"]["aged_steps"] > 0.1 * summary["env_steps"]
    assert summary["lag_wait_seconds"] == 0.0


@pytest.mark.long
def test_killed_actors_and_a_killed_learner_leave_nobody_waiting(tmp_path: Path) -> None:
    killed: list[str] = []

    def act(status: RunStatus) -> bool | None:
        for role, after in (("learner", 15), ("actor", 40)):
            pids = [worker.pid for worker in status.workers if worker.role == role and worker.pid]
            if role not in killed and status.updates > after and pids:
                os.kill(pids[0], signal.SIGKILL)
                killed.append(role)
        return status.updates > 150 or None

    config = config_for(tmp_path, "impala", wait_at_policy_lag=LIMIT, env_steps=0, minutes=2.0, updates_per_second=40.0)
    summary = launch(config, [Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"] == {"actor": 1, "learner": 1, "evaluator": 0}
