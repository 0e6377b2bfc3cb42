"""A3C in whole runs: in processes, in lock-step, resumed, and with any of its processes killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, all_gone, small

from apexrl.agents import with_agent
from apexrl.config import Config, StopConfig
from apexrl.config.convert import override
from apexrl.errors import ConfigError, NonFiniteError
from apexrl.launch import launch
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus


def a3c(tmp_path: Path, stop: StopConfig | None = None, **changes: Any) -> Config:
    config = with_agent(small(tmp_path, stop=stop), "a2c")
    return override(config, {"topology": "a3c", "unroll_length": 8, "learning_rate": 1e-2, **changes})


def pids_of(status: RunStatus, role: str) -> list[int]:
    return [worker.pid for worker in status.workers if worker.role == role and worker.pid]


def kill_once(role: str, when: Callable[[RunStatus], bool]) -> tuple[list[int], Callable[[RunStatus], bool]]:
    """Kill one of a role, and end the run when its successor has worked on for a while."""
    killed: list[int] = []
    updates = [0]

    def act(status: RunStatus) -> bool:
        if not killed and when(status) and (pids := pids_of(status, role)):
            killed.append(pids[0])
            updates[0] = status.updates
            os.kill(killed[0], signal.SIGKILL)
        back = [worker for worker in status.workers if worker.role == role and worker.restarts and worker.pid]
        generations = any(worker.state not in ("starting", "restarting") for worker in back)
        return bool(killed) and generations and status.updates > updates[0] + 60

    return killed, act


def test_a_run_leaves_a_complete_folder_and_nobody_alive(tmp_path: Path) -> None:
    summary = launch(a3c(tmp_path, StopConfig(env_steps=2000)), [watcher := Watcher()])
    assert summary["stopped_by"] == "env_steps"
    assert summary["env_steps"] >= 2000
    assert 0.8 < summary["updates"] * 8 * 4 / summary["env_steps"] < 1.2  # every step is learned from once
    assert summary["restarts"] == {"worker": 0, "parameter_server": 0, "evaluator": 0}
    assert summary["final_eval_episodes"] == 4
    lag = summary["policy_lag"]
    assert 0 <= lag["mean"] < 10  # of two workers, of which either may be held up for a while
    assert lag["mean"] <= lag["max"] < summary["updates"]
    found = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert summary["updates"] - 2 <= found.metadata["updates"] <= summary["updates"]  # each worker may finish one more
    assert (tmp_path / "run" / "checkpoints" / "best.safetensors").exists()
    assert watcher.said("metrics")[-1]["values"]["loss"]
    assert all_gone(worker.pid for status in watcher.statuses for worker in status.workers if worker.pid)


@pytest.mark.parametrize("role", ["worker", "parameter_server", pytest.param("evaluator", marks=pytest.mark.long)])
def test_any_process_may_be_killed_and_the_run_goes_on(tmp_path: Path, role: str) -> None:
    killed, act = kill_once(role, lambda status: status.updates > 60)
    summary = launch(a3c(tmp_path, StopConfig(minutes=5.0)), [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"][role] == 1
    assert killed
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)
    assert any("was killed by signal 9; starting it again" in text for text in watcher.texts)
    if role == "parameter_server":
        assert any("took up the shared parameters" in text for text in watcher.texts)
        assert not any("restored" in text for text in watcher.texts)


def test_a_run_resumes_with_counters_parameters_and_statistics(tmp_path: Path) -> None:
    config = a3c(tmp_path, StopConfig(env_steps=2000))
    first = launch(config)
    found = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert any((value != 1.0).any() for name, value in found.arrays.items() if "square_average" in name)
    more = replace(config, stop=StopConfig(env_steps=first["env_steps"] + 1000))
    second = launch(more, [watcher := Watcher()], resume=tmp_path / "run")
    assert second["env_steps"] >= first["env_steps"] + 1000
    assert second["updates"] > first["updates"]
    assert any(f"parameter_server-0 restored {found.path.name}" in text for text in watcher.texts)
    assert min(status.weights_version for status in watcher.statuses if status.weights_version) > first["updates"]


def test_a_loss_that_is_not_finite_ends_the_run_with_its_worker_named(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"worker-\d: an unroll of version \d+: .* is NaN or infinite"):
        launch(a3c(tmp_path, learning_rate=1e30, gradient_clip=0.0, optimizer="sgd"))
    for path in checkpoint.numbered(tmp_path / "run" / "checkpoints"):
        assert all(np.isfinite(array).all() for array in checkpoint.load(path).arrays.values()), path


def test_a_rule_that_goes_over_its_batch_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="topology a3c runs agents with --epochs 1 --minibatches 1 alone"):
        launch(override(with_agent(small(tmp_path), "ppo"), {"topology": "a3c"}))
    assert not (tmp_path / "run").exists()


# In lock-step


def serial(tmp_path: Path, name: str, **changes: Any) -> tuple[Watcher, dict[str, Any], checkpoint.Checkpoint]:
    settings = {"serial": True, "name": name, "eval_period_seconds": 0.1, "checkpoint_seconds": 0.05}
    summary = launch(a3c(tmp_path, StopConfig(env_steps=1100), **settings, **changes), [watcher := Watcher()])
    found = checkpoint.load_latest(watcher.folder / "checkpoints")
    assert found is not None
    return watcher, summary, found


def test_two_serial_runs_are_equal_to_the_last_bit_and_another_seed_is_not(tmp_path: Path) -> None:
    (one, first, found), (two, second, again) = serial(tmp_path, "first"), serial(tmp_path, "second")
    assert found.arrays.keys() == again.arrays.keys()
    assert all(np.array_equal(value, again.arrays[name]) for name, value in found.arrays.items())
    assert found.metadata == again.metadata
    assert found.metadata["updates"] == first["updates"]
    for kind in ("evaluation", "episodes", "metrics"):
        assert one.said(kind)
        assert repr(one.said(kind)) == repr(two.said(kind))
    for name in ("env_steps", "updates", "episodes", "policy_lag", "final_eval_return"):
        assert first[name] == second[name]
    assert 0 < first["policy_lag"]["mean"] <= 1  # of two workers in turn
    _, _, other = serial(tmp_path, "other", seed=2)
    assert not all(np.array_equal(value, other.arrays[name]) for name, value in found.arrays.items())


def test_workers_with_statistics_of_their_own_run_too(tmp_path: Path) -> None:
    _, summary, found = serial(tmp_path, "own", shared_statistics=False)
    assert summary["updates"] > 25
    assert all((value == 1.0).all() for name, value in found.arrays.items() if "square_average" in name)
