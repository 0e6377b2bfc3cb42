"""Gorila in whole runs: real processes that are killed, turns in one, and goals that are reached."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, all_gone, small

from apexrl import agents
from apexrl.config import Config, StopConfig
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus

ELSEWHERE = ("parameter_server", "actor", "evaluator")
"""Roles that are killed in shorter runs: the servers in turn, below; the others as of other topologies."""


def gorila(tmp_path: Path, stop: StopConfig | None = None, **changes: Any) -> Config:
    config = replace(small(tmp_path, stop=stop), topology="gorila")
    wiring = {"learners": 2, "parameter_servers": 2, "actors": 1}
    return override(agents.with_agent(config, "dqn"), {**wiring, **changes})


def test_a_run_of_learners_and_servers_learns_and_leaves_nobody(tmp_path: Path) -> None:
    watcher = Watcher()
    summary = launch(gorila(tmp_path), [watcher])
    assert summary["stopped_by"] == "env_steps"
    assert summary["updates"] > 100
    roles = ("replay", "gradient_learner", "parameter_server", "actor", "evaluator")
    assert summary["restarts"] == dict.fromkeys(roles, 0)
    assert summary["final_eval_episodes"] == 4
    assert list((tmp_path / "run" / "checkpoints").glob(f"generation-*-update-{summary['updates']:09d}.safetensors"))
    assert 0 <= summary["policy_lag"]["mean"] < summary["updates"]
    assert {"stale_gradients", "outlier_batches"} <= summary["dropped"].keys()
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)
    assert versions[-1] > 100
    for role in ("gradient_learner", "parameter_server"):
        rates = [w.rate for status in watcher.statuses for w in status.workers if w.role == role]
        assert any(rate > 0 for rate in rates)
    assert all_gone(worker.pid for status in watcher.statuses for worker in status.workers if worker.pid)


@pytest.mark.parametrize(
    "role",
    ["gradient_learner", "replay", *(pytest.param(name, marks=pytest.mark.long) for name in ELSEWHERE)],
)
def test_a_killed_role_is_replaced_and_learning_goes_on(tmp_path: Path, role: str) -> None:
    killed: list[int] = []

    def act(status: RunStatus) -> bool:
        worker = [worker for worker in status.workers if worker.role == role][-1]
        if not killed and status.updates > 50 and worker.pid:
            killed.extend((worker.pid, status.updates))
            os.kill(worker.pid, signal.SIGKILL)
        alive = worker.restarts > 0 and worker.state != "starting"
        return bool(killed) and alive and status.updates > killed[1] + 100

    summary = launch(gorila(tmp_path, StopConfig(minutes=5.0)), [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"][role] == 1
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)
    for weights in checkpoint.load(checkpoint.numbered(tmp_path / "run" / "checkpoints")[-1]).arrays.values():
        assert np.isfinite(weights).all()


def test_every_server_killed_in_turn_loses_no_parameters(tmp_path: Path) -> None:
    killed: dict[int, int] = {}

    def act(status: RunStatus) -> bool:
        servers = [worker for worker in status.workers if worker.role == "parameter_server"]
        for worker in servers:
            if worker.index not in killed and worker.pid and status.updates > 50 + 50 * worker.index:
                killed[worker.index] = status.updates
                os.kill(worker.pid, signal.SIGKILL)
                break
        return len(killed) == 3 and status.updates > max(killed.values()) + 100

    config = gorila(tmp_path, StopConfig(minutes=5.0), parameter_servers=3, hidden=(32,))
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"]["parameter_server"] == 3
    assert not any("restored" in text or "best" in text for text in watcher.texts)  # memory was all they needed


def test_turns_in_one_process_repeat_to_the_last_bit(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        config = replace(gorila(tmp_path, StopConfig(env_steps=800)), serial=True, name=name)
        summary = launch(config, [Watcher()])
        assert summary["updates"] > 50
        state = checkpoint.load(checkpoint.numbered(tmp_path / name / "checkpoints")[-1]).arrays
        found.append((summary["updates"], summary["episodes"], summary["final_eval_return"], state))
    assert found[0][:3] == found[1][:3]
    assert found[0][3].keys() == found[1][3].keys()
    for name, value in found[0][3].items():
        np.testing.assert_array_equal(value, found[1][3][name], err_msg=name)


def test_learners_with_replays_of_their_own_learn_and_outlive_one_of_them(tmp_path: Path) -> None:
    killed: list[int] = []

    def act(status: RunStatus) -> bool:
        worker = next(worker for worker in status.workers if worker.role == "gradient_learner")
        if not killed and status.updates > 50 and worker.pid:
            killed.extend((worker.pid, status.updates))
            os.kill(worker.pid, signal.SIGKILL)
        return bool(killed) and worker.restarts > 0 and status.updates > killed[1] + 100

    config = gorila(tmp_path, StopConfig(minutes=5.0), actors=2, replay="local")
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"] | {"gradient_learner": 1} == summary["restarts"]
    assert watcher.statuses[-1].replay_size > 400


def test_a_run_resumes_with_other_counts_of_servers_and_learners(tmp_path: Path) -> None:
    first = launch(gorila(tmp_path, StopConfig(env_steps=1000), save_replay=True))
    more = gorila(tmp_path, StopConfig(env_steps=first["env_steps"] + 500), save_replay=True)
    second = launch(override(more, {"parameter_servers": 1, "learners": 1}), [watcher := Watcher()], tmp_path / "run")
    assert second["updates"] > first["updates"]
    assert watcher.statuses[0].replay_size > 500
    assert any("restored" in text and f"update-{first['updates']:09d}" in text for text in watcher.texts)
    assert min(status.weights_version for status in watcher.statuses if status.weights_version) > first["updates"]


def test_sequences_are_learned_from_as_well(tmp_path: Path) -> None:
    config = agents.with_agent(gorila(tmp_path, StopConfig(env_steps=1500)), "r2d2")
    lengths = {"sequence_length": 10, "sequence_stride": 5, "burn_in": 5, "recurrent_units": 8, "hidden": (8,)}
    counts = {"min_size": 20, "capacity": 1000, "updates_per_step": 0.05, "batch_size": 8}
    assert launch(override(config, {**lengths, **counts}), [Watcher()])["updates"] > 25


def test_what_gradients_alone_do_not_make_is_refused(tmp_path: Path) -> None:
    config = agents.with_agent(small(tmp_path, env="Pendulum-v1"), "crossq")
    config = override(replace(config, topology="gorila"), {"hidden": (8,), "critic_hidden": (8,)})
    with pytest.raises(ConfigError, match="gorila cannot run agent crossq"):
        launch(config)


def test_more_servers_than_slices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--parameter-servers 5000"):
        launch(gorila(tmp_path, parameter_servers=5000))
    assert not (tmp_path / "run").exists()
