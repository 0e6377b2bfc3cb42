"""Whole runs of GA3C's topology: faults, resume, lock-step, and threads that an auto-tuner changes."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, all_gone, small

from apexrl.agents import with_agent
from apexrl.config import Config, StopConfig
from apexrl.config.convert import override
from apexrl.errors import NonFiniteError, WorkerError
from apexrl.launch import launch, local_run
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus


def ga3c(tmp_path: Path, stop: StopConfig | None = None, env: str = "CartPole-v1", **changes: Any) -> Config:
    known = {name: changes.pop(name) for name in ("at_step", "once") if name in changes}
    config = with_agent(small(tmp_path, env=env, stop=stop, **known), "a2c")
    return override(config, {"topology": "ga3c", "unroll_length": 8, "batch_size": 8, **changes})


def pids_of(status: RunStatus, role: str) -> list[int]:
    return [worker.pid for worker in status.workers if worker.role == role and worker.pid]


def test_a_run_leaves_a_complete_folder_and_resumes(tmp_path: Path) -> None:
    config = ga3c(tmp_path, StopConfig(env_steps=2000))
    summary = launch(config, [watcher := Watcher()])
    assert summary["stopped_by"] == "env_steps"
    assert summary["env_steps"] >= 2000
    assert summary["samples_per_insert"] == pytest.approx(1.0, abs=0.2)  # every unroll is learned from once
    assert set(summary["restarts"].values()) == {0}
    assert set(summary["restarts"]) >= {"model_server", "env_worker", "evaluator"}
    lag = summary["policy_lag"]
    assert 0 <= lag["mean"] <= lag["max"] < summary["updates"]
    assert 0.5 < lag["steps"] / summary["env_steps"] <= 1.0
    assert summary["final_eval_episodes"] == 4
    served = [status.inference for status in watcher.statuses if status.inference]
    assert served
    assert all(1 <= values["batch"] <= 8 for values in served)
    sizes = [said["values"].get("training_batch", 1.0) for said in watcher.said("metrics")]
    assert all(1 <= size <= 8 for size in sizes)
    found = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.metadata["updates"] == summary["updates"]
    assert all_gone(worker.pid for status in watcher.statuses for worker in status.workers if worker.pid)

    more = replace(config, stop=StopConfig(env_steps=summary["env_steps"] + 500))
    again = launch(more, [watcher := Watcher()], resume=tmp_path / "run")
    assert again["updates"] > summary["updates"]
    assert any(f"model_server-0 restored {found.path.name}" in text for text in watcher.texts)
    assert min(status.weights_version for status in watcher.statuses if status.weights_version) > summary["updates"]


@pytest.mark.parametrize("role", ["model_server", "env_worker"])
def test_whoever_is_killed_is_replaced_and_the_run_goes_on(tmp_path: Path, role: str) -> None:
    killed: list[int] = []
    updates: list[int] = []

    def act(status: RunStatus) -> bool:
        pids = [pid for pid in pids_of(status, role) if pid not in killed]
        if len(killed) < 2 and pids and status.updates > (updates[-1] if updates else 0) + 40:
            killed.append(pids[0])
            updates.append(status.updates)
            os.kill(pids[0], signal.SIGKILL)
        return len(killed) == 2 and status.restarts[role] == 2 and status.updates > updates[1] + 60

    summary = launch(ga3c(tmp_path, StopConfig(minutes=5.0)), [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"][role] == 2
    assert sum(summary["restarts"].values()) == 2
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)
    assert summary["policy_lag"]["mean"] >= 0.0


def test_an_error_in_a_thread_ends_the_run_and_says_what_it_was(tmp_path: Path) -> None:
    config = ga3c(tmp_path, learning_rate=1e30, gradient_clip=0.0, optimizer="sgd")
    with pytest.raises(NonFiniteError, match=r"model_server-0: update \d+ \(batch of \d items.* is NaN or infinite"):
        launch(config)


def test_environments_that_always_raise_end_the_run_with_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run, "try_first_steps", lambda *_: None)
    with pytest.raises(WorkerError, match="RuntimeError: the simulator broke at step 1"):
        launch(ga3c(tmp_path, env="apexrl.envs.faulty:Raises-v0", at_step=1))


def test_live_threads_and_workers_are_tuned(tmp_path: Path) -> None:
    """From one of each: windows of other numbers are run, and the threads follow."""

    def act(status: RunStatus) -> bool:
        tried = [said["setting"] for said in watcher.said("tuning")]
        return all(max((one[name] for one in tried), default=0) > 1 for name in ("env_worker", "predictor", "trainer"))

    changes = {"autotune": True, "autotune_seconds": 0.2, "actors": 1, "predictors": 1, "trainers": 1, "seed": 3}
    watcher = Watcher(act)
    summary = launch(ga3c(tmp_path, StopConfig(minutes=5.0), actor_slots=3, **changes), [watcher])
    assert summary["stopped_by"] == "callback"
    assert set(summary["autotune"]["best"]) == {"env_worker", "predictor", "trainer"}
    assert set(summary["restarts"].values()) == {0}


# In lock-step


def serial(tmp_path: Path, name: str, **changes: Any) -> tuple[Watcher, dict[str, Any], checkpoint.Checkpoint]:
    settings = {"serial": True, "name": name, "eval_period_seconds": 0.1, "checkpoint_seconds": 0.05}
    summary = launch(ga3c(tmp_path, StopConfig(env_steps=1100), **settings, **changes), [watcher := Watcher()])
    found = checkpoint.load_latest(watcher.folder / "checkpoints")
    assert found is not None
    return watcher, summary, found


def test_two_serial_runs_are_equal_to_the_last_bit_and_another_seed_is_not(tmp_path: Path) -> None:
    (one, first, found), (two, second, again) = serial(tmp_path, "first"), serial(tmp_path, "second")
    assert first["updates"] == second["updates"]
    assert first["env_steps"] == second["env_steps"]
    assert first["updates"] == found.metadata["updates"]
    assert first["updates"] > 10
    assert found.metadata == again.metadata
    assert found.arrays.keys() == again.arrays.keys()
    assert all(np.array_equal(value, again.arrays[name]) for name, value in found.arrays.items())
    for kind in ("evaluation", "episodes", "inference", "metrics"):
        assert one.said(kind)
        assert repr(one.said(kind)) == repr(two.said(kind))  # repr: NaN is not equal to itself
    _, _, other = serial(tmp_path, "other", seed=2)
    assert not all(np.array_equal(value, other.arrays[name]) for name, value in found.arrays.items())
