"""A3C through parameter servers in whole runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, small

from apexrl.agents import with_agent
from apexrl.config import Config, StopConfig
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.run import checkpoint
from apexrl.run.status import RunStatus


def a3c(tmp_path: Path, stop: StopConfig, **changes: Any) -> Config:
    config = with_agent(small(tmp_path, stop=stop), "a2c")
    servers = {"topology": "a3c", "hogwild": False, "parameter_servers": 2}
    return override(config, {**servers, "unroll_length": 8, "learning_rate": 1e-2, **changes})


@pytest.mark.parametrize("role", [pytest.param("worker", marks=pytest.mark.long), "parameter_server"])
def test_a_killed_process_is_replaced_and_the_run_goes_on(tmp_path: Path, role: str) -> None:
    killed: list[int] = []

    def act(status: RunStatus) -> bool:
        worker = [worker for worker in status.workers if worker.role == role][-1]
        if not killed and status.updates > 50 and worker.pid:
            killed.extend((worker.pid, status.updates))
            os.kill(worker.pid, signal.SIGKILL)
        return bool(killed) and worker.restarts > 0 and status.updates > killed[1] + 100

    summary = launch(a3c(tmp_path, StopConfig(minutes=5.0)), [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["restarts"][role] == 1
    versions = [status.weights_version for status in watcher.statuses]
    assert versions == sorted(versions)
    found = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.metadata["updates"] == summary["updates"]


def test_turns_in_one_process_repeat_to_the_last_bit(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        config = a3c(tmp_path, StopConfig(env_steps=1000), serial=True, name=name)
        summary = launch(config, [Watcher()])
        assert summary["updates"] > 25
        found.append(checkpoint.load(checkpoint.numbered(tmp_path / name / "checkpoints")[-1]).arrays)
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name], err_msg=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shared_statistics": False}, "--no-shared-statistics means nothing with --no-hogwild"),
        ({"hogwild": True}, "--parameter-servers 2 means nothing with --hogwild"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch(a3c(tmp_path, StopConfig(env_steps=100), **changes))
