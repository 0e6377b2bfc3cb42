"""A central value in whole runs of several agents: it learns what a value of own observations does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch

RUNS = [("impala", "ppo"), ("seed", "ppo"), ("sample_factory", "appo")]


def config_of(topology: str, agent: str, out: Path, **changes: Any) -> Config:
    return override(
        with_agent(Config(topology=topology), agent),
        {
            "env": "cooperative_toys:parallel_env", "serial": True, "out": str(out), "name": "run", "hidden": (32,),
            "unroll_length": 16, "actors": 1, "envs_per_actor": 8, "learning_rate": 3e-3, "eval_episodes": 40,
            "eval_period_seconds": 1e6, "batch_size": 8, "learner_threads": 1, "seed": 1, "env_steps": 12_000,
            "gamma": 0.9, "epochs": 4, "minibatches": 4, "clip_ratio": 0.2, **changes,
        },
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), RUNS)
def test_luck_that_the_value_sees_does_not_hide_what_is_right(topology: str, agent: str, tmp_path: Path) -> None:
    """The best return is 8, a random policy's 1.6."""
    central = launch(config_of(topology, agent, tmp_path / "central", show_state=True, central_value=True), [])
    own = launch(config_of(topology, agent, tmp_path / "own"), [])
    assert central["final_eval_return"] > 7.6
    assert own["final_eval_return"] < 5.6


@pytest.mark.parametrize(
    ("topology", "agent"),
    [("impala", "impala"), ("a3c", "a2c"), ("ga3c", "a2c"), ("seed", "ppo"), ("sample_factory", "appo")],
)
def test_it_runs_wherever_unrolls_do(topology: str, agent: str, tmp_path: Path) -> None:
    small = {"epochs": 1, "minibatches": 1, "env_steps": 600, "eval_episodes": 2, "memory": "gru", "recurrent_units": 8}
    small["normalize_observations"] = True
    summary = launch(config_of(topology, agent, tmp_path, show_state=True, central_value=True, **small), [])
    assert summary["updates"] > 0
    assert summary["env_steps"] >= 600
