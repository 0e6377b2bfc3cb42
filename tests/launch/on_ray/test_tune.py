"""Ray Tune searches settings of apexrl's runs, whose trials survive kill -9."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import ray

import apexrl
from apexrl.run.folder import RunFolder
from apexrl.tune import trainable

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # Ray Tune's own, of many libraries
]

SMALL = {"actors": 1, "envs_per_actor": 4, "eval_episodes": 2, "eval_envs": 2, "eval_period_seconds": 0.5,
         "hidden": (16,), "min_size": 100, "capacity": 5000, "batch_size": 16, "checkpoint_seconds": 0.5}  # fmt: skip


def kill_once(results: Path, killed: list[int]) -> None:
    """Kill the process of a trial, with all that it started, when Tune knows of several checkpoints of it."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        for trial in results.glob("*/checkpoint_000003"):
            for lock in Path("/tmp/ray").glob(f"session_*/artifacts/*/*/runs/{trial.parent.name}-*/run/lock"):
                if text := lock.read_text():
                    os.kill(pid := int(json.loads(text)["pid"]), signal.SIGKILL)
                    killed.append(pid)
                    return
        time.sleep(0.1)


def test_tune_searches_settings_and_goes_on_after_a_kill(cluster: str, tmp_path: Path) -> None:
    tune = pytest.importorskip("ray.tune", exc_type=ImportError)  # it takes half a second
    ray.init(address=cluster, ignore_reinit_error=True)
    killed: list[int] = []
    results = tmp_path / f"search-{os.getpid()}"
    killer = threading.Thread(target=kill_once, args=(results, killed), daemon=True)
    killer.start()
    try:
        found = tune.Tuner(
            tune.with_resources(trainable("cartpole", env_steps=6000, **SMALL), {"cpu": 2}),
            param_space={"learning_rate": tune.grid_search([1e-3, 3e-3])},
            tune_config=tune.TuneConfig(metric="return", mode="max"),
            run_config=tune.RunConfig(
                name=results.name,
                storage_path=str(tmp_path),
                failure_config=tune.FailureConfig(max_failures=3),
                verbose=0,
            ),
        ).fit()
    finally:
        ray.shutdown()
    killer.join(timeout=60)
    assert killed
    assert not found.errors
    assert len(found) == 2
    for result in found:
        assert result.metrics["env_steps"] >= 5000
        assert result.metrics["final_return"] > 0
        with result.checkpoint.as_directory() as folder:
            assert RunFolder.open(folder).config().agent.learning_rate == result.config["learning_rate"]
            assert apexrl.load(folder).act is not None
    restored = [
        row["text"]
        for result in found
        for row in map(json.loads, (Path(result.checkpoint.path) / "metrics.jsonl").read_text().splitlines())
        if row.get("kind") == "message" and "restored generation-" in row["text"]
    ]
    assert restored
