"""A run with a real agent on a cluster, stopped and resumed there by the command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

import apexrl
from apexrl.cli import main
from apexrl.config.placement import Ray
from apexrl.launch.ray.resources import resumed
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def where(folder: Path) -> str:
    """The namespace of a run's newest generation on a cluster."""
    return str(json.loads((folder / "ray.json").read_text())["namespace"])


def test_a_run_goes_on_on_the_cluster_where_it_was(cluster: str, tmp_path: Path) -> None:
    placement = Ray(cluster, actor_cpus=0.5, shard_cpus=0.5, replay_shards=1, wait_seconds=60.0)
    run = apexrl.train(
        "cartpole",
        ray=placement,
        show=False,
        out=str(tmp_path),
        name="run",
        actors=1,
        env_steps=3000,
        min_size=64,
        updates_per_step=0.0625,
        batch_size=16,
        capacity=2000,
        eval_episodes=2,
        eval_period_seconds=600.0,
    )
    before, namespace = run.summary, where(run.path)
    assert before["stopped_by"] == "env_steps"
    assert before["updates"] > 0
    assert not ray.is_initialized()

    assert resumed(run.path, "") == placement
    assert main.main(["resume", str(run.path), "--env-steps", str(before["env_steps"] + 3000)]) == main.OK
    after = RunFolder.open(run.path).summary()
    assert where(run.path) != namespace
    assert resumed(run.path, "") == placement
    assert after["stopped_by"] == "env_steps"
    assert after["env_steps"] >= before["env_steps"] + 3000
    assert after["updates"] > before["updates"]
    assert after["wall_seconds"] > before["wall_seconds"]
    log = (run.path / "metrics.jsonl").read_text()
    assert f"-update-{before['updates']:09d}" in log


def test_the_command_of_a_killed_driver_goes_on_when_it_is_repeated(cluster: str, tmp_path: Path) -> None:
    """The cluster has no room for both: actors of the killed one end without it."""
    words = "train cartpole --resume-or-start --name run --actors 2 --actor-cpus 1 --replay-shards 2 --min-size 64"
    words += " --batch-size 16 --capacity 2000 --eval-episodes 2 --checkpoint-seconds 0.5 --updates-per-step 0.0625"
    command = [sys.executable, "-m", "apexrl.cli", *words.split(), "--ray", cluster, "--out", str(tmp_path)]
    folder = RunFolder(tmp_path / "run")
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen([*command, "--env-steps", "100000000"], stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 240.0
            while (path := checkpoint.latest(folder.checkpoints)) is None or "update-000000000." in path.name:
                assert first.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.2)
        finally:
            first.kill()
            first.wait()
    namespace, generation = where(folder.path), checkpoint.newest_generation(folder.checkpoints)
    reached = checkpoint.load_latest(folder.checkpoints)
    assert reached is not None
    steps = reached.metadata["env_steps"] + 20000
    for _ in range(2):
        again = subprocess.run([*command, "--env-steps", str(steps)], check=False, capture_output=True, timeout=240)
        assert again.returncode == main.OK, again.stdout.decode() + again.stderr.decode()
    assert b"is done: env_steps was reached" in again.stdout + again.stderr
    summary = folder.summary()
    assert summary["env_steps"] >= steps
    newest = checkpoint.newest_generation(folder.checkpoints)
    assert newest > summary["generation"] > generation
    assert "restored generation-" in folder.metrics_path.read_text()
    ray.init(address=cluster, log_to_driver=False, logging_level="ERROR")
    try:
        left = [one for one in ray.util.list_named_actors(all_namespaces=True) if one["namespace"] == namespace]
    finally:
        ray.shutdown()
    assert left == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]
