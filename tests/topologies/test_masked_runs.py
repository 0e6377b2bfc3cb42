"""Agents under action masks in whole runs: no impossible action anywhere, and they learn what needs masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config, EnvConfig
from apexrl.config.convert import override
from apexrl.launch import launch
from apexrl.run.metrics import read_rows

OFF_POLICY: dict[str, Any] = {"min_size": 500, "updates_per_step": 0.5, "batch_size": 64, "capacity": 10_000}
CELLS: dict[tuple[str, str], dict[str, Any]] = {
    ("apex", "double_dqn"): {**OFF_POLICY, "env_steps": 8_000},
    ("apex", "discrete_sac"): {**OFF_POLICY, "env_steps": 8_000},
    ("apex", "r2d2"): {"min_size": 64, "batch_size": 16, "capacity": 2_000, "updates_per_step": 0.1},
    ("gorila", "dueling_dqn"): {**OFF_POLICY, "parameter_servers": 2},
    ("seed", "double_dqn"): {**OFF_POLICY, "env_steps": 8_000},
    ("seed", "discrete_sac"): {**OFF_POLICY, "env_steps": 8_000},
    ("seed", "ppo"): {"env_steps": 24_000},
    ("impala", "ppo"): {"env_steps": 24_000},
    ("impala", "pqn"): {},
    ("a3c", "a2c"): {},
    ("ga3c", "a2c"): {},
    ("sample_factory", "appo"): {"env_steps": 24_000},
}
LEARN = [cell for cell, changes in CELLS.items() if "env_steps" in changes]
QUICK = [("apex", "double_dqn"), ("seed", "discrete_sac"), ("sample_factory", "appo")]


def config_of(topology: str, agent: str, out: Path, **changes: Any) -> Config:
    env = EnvConfig("apexrl.envs.toy:Doors-v0", {"strict": True})
    small = {
        "serial": True, "out": str(out), "name": "run", "hidden": (64,), "unroll_length": 16, "actors": 2,
        "envs_per_actor": 8, "learning_rate": 2e-3, "eval_episodes": 50, "eval_period_seconds": 1e6,
        "sequence_length": 8,
        "sequence_stride": 4, "burn_in": 2, "recurrent_units": 16, "publish_period_updates": 1, "pull_period": 4,
        "batch_size": 16, "learner_threads": 1, "seed": 1,
    }  # fmt: skip
    made = with_agent(Config(topology=topology, env=env), agent)
    return override(made, {**small, **CELLS[topology, agent], **changes})


@pytest.mark.parametrize(
    ("topology", "agent"), [pytest.param(*cell, marks=[] if cell in QUICK else [pytest.mark.long]) for cell in CELLS]
)
def test_no_impossible_action_reaches_an_environment(topology: str, agent: str, tmp_path: Path) -> None:
    """Doors raises an error at the first one; so does its evaluation, with random actions, repeated ones and no-ops."""
    acts = {"eval_epsilon": 0.2, "eval_sticky": 0.2, "eval_noops": 2, "eval_episodes": 8}
    changes = {"min_size": 50, "env_steps": 600, "env_kwargs": {"strict": True, "told": "info"}, "mask_in_info": True}
    summary = launch(config_of(topology, agent, tmp_path, **changes, **acts), [])
    assert summary["env_steps"] >= 600
    assert summary["updates"] > 0
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    told = [row["episode/invalid_actions_max"] for row in rows if "episode/invalid_actions_max" in row]
    assert told
    assert not any(told)


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), LEARN)
def test_what_needs_masks_is_learned(topology: str, agent: str, tmp_path: Path) -> None:
    """Random possible actions return 2.7 of 8; without masks no policy returns more than 0."""
    summary = launch(config_of(topology, agent, tmp_path), [])
    assert summary["final_eval_return"] > 6.0


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), LEARN)
def test_masks_of_several_choices_are_learned_with(topology: str, agent: str, tmp_path: Path) -> None:
    """Two doors of four are open in either row: random possible actions return 4 of 8."""
    several = {"strict": True, "rows": 2, "doors": 4, "opened": 2}
    summary = launch(config_of(topology, agent, tmp_path, env_kwargs=several), [])
    assert summary["final_eval_return"] > 5.5
