"""Whole runs of SEED's topology: faults (DESIGN §9), and lock-step."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, all_gone, small, with_actors, with_learner

from apexrl.config import Config, StopConfig
from apexrl.errors import EnvError, WorkerError
from apexrl.launch import launch, local_run
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus

FAULTY = "apexrl.envs.faulty"


def seed(tmp_path: Path, **changes: Any) -> Config:
    return replace(small(tmp_path, **changes), topology="seed")


def pids_of(status: RunStatus, role: str) -> list[int]:
    return [worker.pid for worker in status.workers if worker.role == role and worker.pid]


def test_a_run_leaves_a_complete_folder_and_nobody_alive(tmp_path: Path) -> None:
    watcher = Watcher()
    summary = launch(seed(tmp_path), [watcher])
    assert summary["stopped_by"] == "env_steps"
    assert summary["env_steps"] >= 1500
    assert summary["updates"] > 100
    assert summary["samples_per_insert"] == pytest.approx(4.0, rel=0.35)
    restarts = {"learner": 0, "inference_server": 0, "env_worker": 0, "evaluator": 0}
    assert summary["restarts"] == restarts
    assert summary["final_eval_return"] > 0
    assert 0 <= summary["policy_lag"]["mean"] <= summary["policy_lag"]["max"] < summary["updates"]
    served = [status.inference for status in watcher.statuses if status.inference]
    assert served
    assert all(1 <= values["batch"] <= 8 for values in served)
    assert all_gone(worker.pid for status in watcher.statuses for worker in status.workers if worker.pid)


@pytest.mark.parametrize("role", ["env_worker", "inference_server", pytest.param("learner", marks=pytest.mark.long)])
def test_whoever_is_killed_is_replaced_and_the_run_goes_on(tmp_path: Path, role: str) -> None:
    killed: list[int] = []
    steps: list[int] = []

    def act(status: RunStatus) -> bool:
        if len(killed) < 2 and status.updates > 50 * (1 + len(killed)):
            pids = [pid for pid in pids_of(status, role) if pid not in killed]
            if pids:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)
                steps.append(status.env_steps)
        return len(killed) == 2 and status.restarts[role] == 2 and status.env_steps > steps[1] + 500

    config = seed(tmp_path, stop=StopConfig(minutes=5.0))
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"][role] == 2
    assert sum(summary["restarts"].values()) == 2
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)


def test_a_hanging_environment_is_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    def act(status: RunStatus) -> bool:
        restarted = [worker for worker in status.workers if worker.restarts]
        return bool(restarted) and restarted[0].state in ("acting", "evaluating") and status.updates > 100

    config = seed(tmp_path, env=f"{FAULTY}:Hangs-v0", at_step=60, once=str(tmp_path / "hung"), stop=StopConfig())
    config = with_learner(with_actors(config, env_timeout=6.0), updates_per_second=50.0)
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["dropped"]["hung_env_calls"] == 1
    assert any("took longer than 6 s (--env-timeout)" in text for text in watcher.texts)


def test_environments_that_always_raise_end_the_run_with_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run, "try_first_steps", lambda *_: None)
    with pytest.raises(WorkerError) as caught:
        launch(seed(tmp_path, env=f"{FAULTY}:Raises-v0", at_step=1))
    text = str(caught.value)
    assert "RuntimeError: the simulator broke at step 1" in text
    assert "env_worker-" in text or "evaluator-" in text


def serial(tmp_path: Path, name: str, agent: str) -> Config:
    config = seed(tmp_path, stop=StopConfig(env_steps=1200))
    evaluator = replace(config.evaluator, eval_period_seconds=0.1)
    if agent == "r2d2":
        recurrent = {"agent": agent, "recurrent_units": 8, "sequence_length": 6, "sequence_stride": 3, "burn_in": 2}
        config = replace(config, agent=replace(config.agent, **recurrent))
        config = replace(config, replay=replace(config.replay, capacity=500, min_size=20))
    return replace(config, evaluator=evaluator, serial=True, name=name)


def run(config: Config) -> tuple[Watcher, dict[str, Any], checkpoint.Checkpoint]:
    summary = launch(config, [watcher := Watcher()])
    found = checkpoint.load_latest(watcher.folder / "checkpoints")
    assert found is not None
    return watcher, summary, found


@pytest.mark.parametrize("agent", ["dueling_dqn", pytest.param("r2d2", marks=pytest.mark.long)])
def test_two_serial_runs_are_equal_to_the_last_bit(tmp_path: Path, agent: str) -> None:
    one, first, found = run(serial(tmp_path, "one", agent))
    two, second, again = run(serial(tmp_path, "two", agent))
    assert first["updates"] == second["updates"] > 100
    assert first["env_steps"] == second["env_steps"] >= 1200
    assert found.metadata == again.metadata
    assert found.arrays.keys() == again.arrays.keys()
    for name, value in found.arrays.items():
        np.testing.assert_array_equal(value, again.arrays[name])
    for kind in ("evaluation", "episodes", "inference", "metrics"):
        assert one.said(kind)
        assert repr(one.said(kind)) == repr(two.said(kind))  # repr: NaN is not equal to itself


def test_an_environment_error_reaches_the_caller_of_a_serial_run(tmp_path: Path) -> None:
    config = replace(serial(tmp_path, "faulty", "dueling_dqn"), env=seed(tmp_path, env=f"{FAULTY}:Raises-v0").env)
    with pytest.raises(EnvError, match="simulator broke"):
        launch(config)
