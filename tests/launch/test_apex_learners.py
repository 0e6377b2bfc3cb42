"""Whole runs of Ape-X with several learners: in lock-step, and in processes of which each dies in turn."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import AgentError
from apexrl.launch import launch
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus

SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "hidden": (16,),
    "batch_size": 16,
    "learners": 2,
    "actors": 2,
    "envs_per_actor": 4,
    "pull_period": 10,
    "capacity": 4000,
    "min_size": 100,
    "updates_per_step": 0.25,
    "env_timeout": 30.0,
    "checkpoint_seconds": 0.5,
    "eval_episodes": 4,
    "eval_envs": 2,
    "eval_period_seconds": 0.5,
    "env_steps": 1500,
}


def config_for(tmp_path: Path, name: str = "run", agent: str = "dqn", **changes: Any) -> Config:
    return override(with_agent(Config(out=str(tmp_path), name=name), agent), {**SMALL, **changes})


def test_two_lock_step_runs_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    lock_step: dict[str, Any] = {"serial": True, "env_steps": 800, "eval_period_seconds": 0.05}
    configs = [config_for(tmp_path, name, **lock_step) for name in ("one", "two")]
    one, two = (launch(config) for config in configs)
    assert one["updates"] > 100
    assert one["samples_per_insert"] == pytest.approx(8.0, rel=0.2)  # an update takes a batch of each
    # and not the summary's rate, which a run may be too short for: it counts from the first look behind an update
    assert one["updates"] == pytest.approx(0.25 * (one["env_steps"] - 100), rel=0.1)
    found = [checkpoint.load_latest(tmp_path / name / "checkpoints") for name in ("one", "two")]
    first, second = (dict(kept.arrays) for kept in found if kept is not None)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert two["final_eval_return"] == one["final_eval_return"]


def test_whoever_of_them_or_the_replay_dies_they_go_on(tmp_path: Path) -> None:
    left = [("learner", 0), ("learner", 1), ("replay", 0)]
    killed: list[int] = []
    stored: list[int] = []

    def act(status: RunStatus) -> bool | None:
        """Kill one after the other, each well after the one before came back."""
        settled = sum(status.restarts.values()) == len(killed)
        if settled and status.updates > 30 + (killed[-1] if killed else 0):
            if not left:
                return True
            role, index = left[0]
            pid = [worker.pid for worker in status.workers if worker.role == role][index]
            if pid:
                os.kill(pid, signal.SIGKILL)
                killed.append(status.updates)
                stored.append(status.replay_size)
                left.pop(0)
        return None

    summary = launch(config_for(tmp_path, env_steps=0, minutes=5.0), [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback", watcher.texts
    assert summary["restarts"] == {"actor": 0, "learner": 2, "replay": 1, "evaluator": 0}
    assert watcher.statuses[-2].replay_size >= 0.9 * stored[-1] > 0  # what there was outlived the replay's role
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)


def test_an_agent_that_is_more_than_gradients_is_refused(tmp_path: Path) -> None:
    config = override(config_for(tmp_path, agent="crossq"), {"env": "Pendulum-v1"})
    with pytest.raises(AgentError, match=r"agent crossq is made of more than these .*--learners 1"):
        launch(config)
    assert not (tmp_path / "run").exists()
