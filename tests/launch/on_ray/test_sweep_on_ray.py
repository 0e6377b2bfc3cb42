"""Trials of a sweep as tasks of a Ray cluster."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import ray
from optuna.trial import TrialState

from apexrl import presets
from apexrl.config.convert import override
from apexrl.sweep import ray_runs
from apexrl.sweep.plan import Plan
from apexrl.sweep.search_space import search_space
from apexrl.sweep.study import Study
from apexrl.sweep.sweeper import open_plan, sweep

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SMALL = {"actors": 1, "envs_per_actor": 4, "eval_episodes": 2, "eval_envs": 2, "eval_period_seconds": 0.5,
         "hidden": (16,), "min_size": 100, "capacity": 5000, "batch_size": 16, "checkpoint_seconds": 0.2,
         "env_steps": 6000, "stop_at_return": None}  # fmt: skip


def kill_once(run: Path, killed: list[int]) -> None:
    """Kill the process that trains a run, once it has a checkpoint."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if list((run / "checkpoints").glob("generation-*.safetensors")):
            pid = int(json.loads((run / "lock").read_text())["pid"])
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            return
        time.sleep(0.05)


def test_trials_run_as_tasks_and_one_that_is_killed_is_resumed(cluster: str, tmp_path: Path) -> None:
    config = override(presets.preset("cartpole").config, SMALL)
    plan = Plan((config,), search_space(config, ["learning_rate"]), trials=2, pruner="none")
    open_plan(tmp_path, plan)
    killed: list[int] = []
    killer = threading.Thread(target=kill_once, args=(tmp_path / "trial-1", killed), daemon=True)
    killer.start()
    ray_runs.connect(cluster)
    try:
        outcome = sweep(Study(tmp_path, plan), 2, print, ray_runs.RayRun)
    finally:
        ray.shutdown()
    killer.join(timeout=60)
    assert killed
    assert outcome.best is not None
    assert [trial.state for trial in Study(tmp_path, plan).trials] == [TrialState.COMPLETE] * 2
    assert "learner-0 restored generation-" in (tmp_path / "logs" / "trial-1.log").read_text()
    for number in range(2):
        summary = json.loads((tmp_path / f"trial-{number}" / "summary.json").read_text())
        assert summary["env_steps"] >= 6000
