"""Whole runs of Sample Factory's topology: in lock-step, in processes, with deaths of everybody."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, all_gone, arrays_of

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
    "publish_period_updates": 2,
    "checkpoint_seconds": 0.5,
    "eval_episodes": 4,
    "eval_envs": 2,
    "eval_period_seconds": 0.5,
    "env_steps": 3000,
}


def config_for(tmp_path: Path, name: str = "run", **changes: Any) -> Config:
    chosen = with_topology(override(Config(), {"out": str(tmp_path), "name": name}), "sample_factory")
    return override(chosen, {**SMALL, **changes})


def test_lock_step_runs_with_a_memory_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"serial": True, "eval_period_seconds": 0.1, "memory": "lstm", "recurrent_units": 8}
    changes |= {"env_steps": 1500}
    configs = [config_for(tmp_path, name, policy_workers=2, **changes) for name in ("one", "two")]
    one, two = (launch(config) for config in configs)
    assert one["updates"] > 25
    for name in ("env_steps", "updates", "episodes", "policy_lag", "final_eval_return"):
        assert one[name] == two[name]
    first, second = (arrays_of(config) for config in configs)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    waiting = T * (8 + BATCH) + 8 * (T + 1)  # unrolls that are not enough, and those that are not complete
    assert one["env_steps"] - waiting <= one["policy_lag"]["steps"] <= one["env_steps"]
    assert set(one["dropped"].values()) == {0}


@pytest.mark.parametrize("memory", ["none", "transformer"])
def test_pink_noise_comes_with_requests_and_goes_back_with_answers(tmp_path: Path, memory: str) -> None:
    changes: dict[str, Any] = {"env": "Pendulum-v1", "pink_noise": True, "memory": memory, "recurrent_units": 4}
    summary = launch(config_for(tmp_path, serial=True, eval_episodes=1, env_steps=200, **changes))
    assert summary["updates"] > 0


def test_what_is_older_than_the_limit_is_counted_and_not_learned_from(tmp_path: Path) -> None:
    changes = {"publish_period_updates": 20, "max_policy_lag": 5, "serial": True}
    summary = launch(config_for(tmp_path, **changes))
    assert summary["policy_lag"]["max"] == 5
    assert summary["dropped"]["aged_steps"] > summary["policy_lag"]["steps"] > 500


def test_whoever_is_killed_is_replaced_and_the_run_ends_as_it_should(tmp_path: Path) -> None:
    """Each kind of role in turn; then the run is resumed."""
    order = ["policy_worker", "rollout_worker", "learner", "evaluator"]
    killed: list[str] = []
    resume_at = [20]

    def act(status: RunStatus) -> bool:
        back = not killed or status.restarts.get(killed[-1]) == 1
        if not back or status.updates < resume_at[0]:
            return False
        if len(killed) == len(order):
            return True
        pids = [worker.pid for worker in status.workers if worker.role == order[len(killed)] and worker.pid]
        if pids:
            killed.append(order[len(killed)])
            os.kill(pids[0], signal.SIGKILL)
            resume_at[0] = status.updates + 20  # which nobody reaches without the others
        return False

    config = config_for(tmp_path, env_steps=0, minutes=5.0, policy_workers=2)
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"] == dict.fromkeys(("learner", "policy_worker", "rollout_worker", "evaluator"), 1)
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)
    assert all(1 <= status.inference["batch"] <= 8 for status in watcher.statuses if status.inference)
    assert max(status.replay_size for status in watcher.statuses) <= 2 * BATCH + 8
    assert 0 <= summary["policy_lag"]["mean"] <= summary["policy_lag"]["max"]
    assert all_gone(worker.pid for status in watcher.statuses for worker in status.workers if worker.pid)
    again = override(config, {"env_steps": summary["env_steps"] + 500, "minutes": 0.0})
    resumed = launch(again, resume=Path(config.out) / config.name)
    assert resumed["updates"] > summary["updates"]
    assert resumed["env_steps"] >= summary["env_steps"] + 500
