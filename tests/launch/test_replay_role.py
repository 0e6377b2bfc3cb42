"""Ape-X whose replay is a role of its own: the learner takes served batches."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from recording_observer import Watcher, small

from apexrl.config import Config, StopConfig
from apexrl.launch import launch, local_run
from apexrl.roles import ReplayServer
from apexrl.run.status import RunStatus
from apexrl.topologies import Probe, Program
from apexrl.topologies.apex import apex


def served_apex(config: Config, probe: Probe) -> Program:
    program = apex(config, probe)
    learner = program.nodes[0]
    settings = {"batch_size": config.learner.batch_size, "beta": config.replay.beta}
    batches = program.batches(learner.ports["replay"], learners=learner.count, **settings)
    program.nodes[0] = replace(learner, ports={**learner.ports, "replay": batches})
    program.role(ReplayServer, name="replay", config=config, batches=batches, restarts=3)
    return program


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_run, "topology", lambda name: served_apex)


def test_a_run_learns_from_served_batches(tmp_path: Path) -> None:
    watcher = Watcher()
    summary = launch(small(tmp_path), [watcher])
    assert summary["stopped_by"] == "env_steps"
    assert summary["updates"] > 100
    assert summary["restarts"] == {"actor": 0, "learner": 0, "evaluator": 0, "replay": 0}
    workers = [worker for status in watcher.statuses for worker in status.workers if worker.role == "replay"]
    assert any(worker.rate > 0 for worker in workers)


@pytest.mark.long  # as several learners, and the replay, are killed in test_apex_learners
@pytest.mark.parametrize("role", ["replay", "learner"])
def test_a_killed_role_is_replaced_and_learning_goes_on(tmp_path: Path, role: str) -> None:
    killed: list[int] = []

    def act(status: RunStatus) -> bool:
        worker = next(worker for worker in status.workers if worker.role == role)
        if not killed and status.updates > 20 and worker.pid:
            killed.extend((worker.pid, status.updates))
            os.kill(worker.pid, signal.SIGKILL)
        return bool(killed) and worker.restarts > 0 and status.updates > killed[1] + 100

    summary = launch(small(tmp_path, stop=StopConfig(minutes=5.0)), [Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"][role] == 1


def test_roles_may_take_turns(tmp_path: Path) -> None:
    config = replace(small(tmp_path), serial=True)
    assert launch(config, [Watcher()])["updates"] > 100
