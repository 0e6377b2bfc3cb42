"""A run with a real agent on a cluster, stopped and resumed there by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils", reason="needs the extra ray", exc_type=ImportError)

import ray

import apexrl
from apexrl import cli
from apexrl.launch.ray.wishes import Wishes, resumed
from apexrl.run_folder import RunFolder

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def where(folder: Path) -> str:
    """The namespace of a run's newest life on a cluster."""
    return str(json.loads((folder / "ray.json").read_text())["namespace"])


def test_a_run_goes_on_on_the_cluster_where_it_was(cluster: str, tmp_path: Path) -> None:
    wishes = Wishes(cluster, actor_cpus=0.5, shard_cpus=0.5, replay_shards=1, wait_seconds=60.0)
    run = apexrl.train(
        "cartpole",
        ray=wishes,
        show=False,
        out=str(tmp_path),
        name="run",
        actors=1,
        env_steps=3000,
        min_size=64,
        samples_per_insert=1.0,
        batch_size=16,
        capacity=2000,
        eval_episodes=2,
        eval_period_seconds=600.0,
    )
    before, namespace = run.summary, where(run.path)
    assert before["stopped_by"] == "env_steps"
    assert before["updates"] > 0
    assert not ray.is_initialized()

    assert resumed(run.path, "") == wishes
    assert cli.main(["resume", str(run.path), "--env-steps", str(before["env_steps"] + 3000)]) == cli.OK
    after = RunFolder.open(run.path).summary()
    assert where(run.path) != namespace
    assert resumed(run.path, "") == wishes
    assert after["stopped_by"] == "env_steps"
    assert after["env_steps"] >= before["env_steps"] + 3000
    assert after["updates"] > before["updates"]
    assert after["wall_seconds"] > before["wall_seconds"]
    log = (run.path / "metrics.jsonl").read_text()
    assert f"-update-{before['updates']:09d}" in log
