"""A team on Ray: actors in groups write the steps of all agents into the shards of a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.config.placement import Ray
from apexrl.launch import launch


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_team_learns_on_ray(cluster: str, tmp_path: Path) -> None:
    """QMIX in the two-step game, with random actions throughout, as in its paper."""
    settings = {
        "env": "apexrl.envs.team_games:parallel_env", "out": str(tmp_path), "name": "run", "hidden": (64,), "actors": 2,
        "envs_per_actor": 4, "epsilon": 1.0, "env_steps": 4_000, "min_size": 200, "capacity": 5_000, "batch_size": 32,
        "updates_per_step": 0.25, "learning_rate": 4e-3, "gradient_clip": 10.0, "target_period_updates": 50,
        "eval_episodes": 2, "eval_envs": 2, "eval_period_seconds": 1e6, "show_state": True, "seed": 1, "minutes": 8.0,
    }  # fmt: skip
    placement = Ray(cluster, actor_cpus=0.25, shard_cpus=0.25, learner_cpus=0.5, wait_seconds=60.0)
    summary = launch(override(with_agent(Config(), "qmix"), settings), placement=placement)
    assert summary["last_weights_return"] == 8.0
    assert not any(summary["restarts"].values())
