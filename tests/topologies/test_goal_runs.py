"""Hindsight experience replay in whole runs: learners put goals into batches, and solve what is not solved without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config, EnvConfig
from apexrl.config.convert import override
from apexrl.errors import ConfigError, EnvError
from apexrl.launch import launch

BITS: dict[str, Any] = {
    "env": "apexrl.envs.goal_tasks:BitFlip-v0", "env_kwargs": {"bits": 8}, "hidden": (128,), "epsilon": 0.2,
    "epsilon_alpha": 0.0, "target_period_updates": 50, "env_steps": 4_000,
}  # fmt: skip
EXPLORES = ("epsilon", "epsilon_alpha", "target_period_updates")
POINT: dict[str, Any] = {"env": "apexrl.envs.goal_tasks:PointGoal-v0", "hidden": (64, 64), "env_steps": 6_000}
SMALL_CRITICS: dict[str, Any] = {**POINT, "critic_hidden": (64, 64)}
CELLS: dict[tuple[str, str], dict[str, Any]] = {
    ("apex", "dqn"): BITS,
    ("gorila", "dqn"): {**BITS, "env_steps": 6_000},
    ("seed", "dqn"): BITS,
    ("apex", "c51"): {**BITS, "v_min": -10.0, "v_max": 0.0, "atoms": 21},
    ("apex", "discrete_sac"): {name: value for name, value in BITS.items() if name not in EXPLORES},
    ("apex", "sac"): POINT,
    ("seed", "sac"): POINT,
    ("apex", "td3"): {**POINT, "sigma": 0.2},
    ("seed", "td3"): {**POINT, "sigma": 0.2, "env_steps": 4_000},
    ("apex", "ddpg"): {**POINT, "sigma": 0.2},
    ("apex", "tqc"): {**SMALL_CRITICS, "critics": 2, "quantiles": 8, "dropped_quantiles": 1, "env_steps": 4_000},
    ("apex", "crossq"): {**SMALL_CRITICS, "critic_hidden": (64,)},
    ("apex", "d4pg"): {**SMALL_CRITICS, "remover": "fifo", "v_min": -20.0, "v_max": 0.0, "sigma": 0.2},
}
SOLVED = {BITS["env"]: -5.0, POINT["env"]: -17.0}
"""Of 10 steps with 8 bits, four of which differ on average; and of 30 steps, of which the way takes seven."""
NOT_SOLVED = {BITS["env"]: -8.0, POINT["env"]: -22.0}


def config_of(topology: str, agent: str, out: Path, **changes: Any) -> Config:
    small = {
        "serial": True, "out": str(out), "name": "run", "actors": 1, "envs_per_actor": 4, "eval_episodes": 50,
        "eval_period_seconds": 1e6, "min_size": 300, "updates_per_step": 1.0, "batch_size": 128, "capacity": 20_000,
        "n_step": 1, "gamma": 0.95, "alpha": 0.0, "learning_rate": 1e-3, "publish_period_updates": 10, "pull_period": 5,
        "random_start": True, "normalize_observations": False, "normalize_returns": False, "learner_threads": 1,
        "hindsight": "future", "seed": 1,
    }  # fmt: skip
    made = with_agent(Config(topology=topology, env=EnvConfig()), agent)
    return override(made, {**small, **CELLS.get((topology, agent), BITS), **changes})


@pytest.mark.parametrize(("topology", "agent"), [("apex", "dqn"), ("gorila", "dqn"), ("seed", "sac")])
def test_learners_take_goals_in_hindsight(topology: str, agent: str, tmp_path: Path) -> None:
    """With priorities, several steps and normalised observations."""
    more = {"alpha": 0.6, "n_step": 3, "env_steps": 300, "min_size": 100, "eval_episodes": 4}
    more |= {} if topology == "gorila" else {"normalize_observations": True}
    summary = launch(config_of(topology, agent, tmp_path, **more), [])
    assert summary["updates"] > 50


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), CELLS)
def test_hindsight_solves_what_is_not_solved_without(topology: str, agent: str, tmp_path: Path) -> None:
    config = config_of(topology, agent, tmp_path / "with")
    summary = launch(config, [])
    assert summary["final_eval_return"] > SOLVED[str(config.env.env)]
    summary = launch(config_of(topology, agent, tmp_path / "without", hindsight="none"), [])
    assert summary["final_eval_return"] < NOT_SOLVED[str(config.env.env)]


@pytest.mark.parametrize(
    ("topology", "agent", "changes", "error", "words"),
    [
        ("apex", "dqn", {"remover": "proportional", "alpha": 0.6}, ConfigError, "--remover proportional keeps"),
        (
            "apex",
            "d4pg",
            {"remover": "proportional", "alpha": 0.6},
            ConfigError,
            r"proportional \(agent d4pg's own\).*--remover fifo",
        ),
        ("apex", "dqn", {"env": "CartPole-v1", "env_kwargs": {}}, EnvError, "achieved_goal and a desired_goal"),
        ("apex", "r2d2", {}, ConfigError, "learns from sequences: set --hindsight none"),
        ("apex", "dqn", {"last_action_reward": True}, ConfigError, "--last-action-reward shows agents those of before"),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_starts(
    topology: str, agent: str, changes: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        launch(config_of(topology, agent, tmp_path, **changes), [])
