"""Against a pool of earlier policies an agent learns what it does not learn against random play, wherever it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.evaluation.loaded_agent import load_agent
from apexrl.launch import launch
from apexrl.roles.pool_players import RANDOM, PoolPlayers
from apexrl.run.folder import RunFolder
from apexrl.run.opponent_pool import OpponentPool
from dare_game import SIGNS, played

VALUES: dict[str, Any] = {
    "updates_per_step": 0.25, "min_size": 200, "batch_size": 32, "learning_rate": 3e-3, "n_step": 1, "alpha": 0.0,
    "capacity": 1_000, "env_steps": 6_000,
}  # fmt: skip
LADDER: dict[str, Any] = {**VALUES, "epsilon": 0.3, "epsilon_alpha": 0.0, "target_period_updates": 50}
UNROLLS: dict[str, Any] = {"unroll_length": 16, "batch_size": 8, "learning_rate": 5e-3, "epochs": 4, "minibatches": 2}
CELLS: dict[tuple[str, str], dict[str, Any]] = {
    ("apex", "dueling_dqn"): LADDER,
    ("seed", "dueling_dqn"): LADDER,
    ("apex", "discrete_sac"): {**VALUES, "target_entropy": 0.1},
    ("seed", "discrete_sac"): {**VALUES, "target_entropy": 0.1},
    ("impala", "ppo"): UNROLLS,
    ("seed", "ppo"): UNROLLS,
    ("sample_factory", "appo"): UNROLLS,
}
QUICK = ("impala", "ppo")


BOARD: dict[str, Any] = {
    "env": "apexrl.envs.board_games:env", "hidden": (64,), "envs_per_actor": 32, "pool_period_steps": 2_000,
    "match_games": 20, "match_period_seconds": 0.03, "elo_k": 8.0, "newest_share": 0.5, "capacity": 4_000,
    "gamma": 0.99,
}  # fmt: skip
VALUES_RISE: dict[str, Any] = {"env_steps": 6_000, "learning_rate": 1e-3, "target_period_updates": 100}
SOFT_RISES: dict[str, Any] = {
    "env_steps": 10_000, "learning_rate": 1e-3, "updates_per_step": 0.5, "temperature": 0.05,
}  # fmt: skip
UNROLLS_RISE: dict[str, Any] = {
    "env_steps": 15_000, "learning_rate": 3e-3, "entropy_coefficient": 0.03, "batch_size": 16,
}  # fmt: skip
RISES: dict[tuple[str, str], dict[str, Any]] = {
    ("apex", "dueling_dqn"): VALUES_RISE,
    ("seed", "dueling_dqn"): VALUES_RISE,
    ("apex", "discrete_sac"): SOFT_RISES,
    ("seed", "discrete_sac"): SOFT_RISES,
    ("impala", "ppo"): UNROLLS_RISE,
    ("seed", "ppo"): UNROLLS_RISE,
    ("sample_factory", "appo"): UNROLLS_RISE,
}


def ran(topology: str, agent: str, out: Path, **changes: Any) -> Config:
    settings = {
        "env": "dare_game:env", "serial": True, "out": str(out), "name": "run", "hidden": (32,), "actors": 1,
        "envs_per_actor": 16, "env_steps": 4_000, "eval_episodes": 2, "eval_period_seconds": 1e6, "gamma": 0.9,
        "learner_threads": 1, "pool_period_steps": 500, "pool_size": 5, "match_games": 10, "match_period_seconds": 0.1,
        "newest_share": 0.0, "seed": 1,
    }  # fmt: skip
    config = override(with_agent(Config(topology=topology), agent), {**settings, **CELLS[topology, agent], **changes})
    launch(config, [])
    return config


def learned(topology: str, agent: str, out: Path, **changes: Any) -> tuple[int, int]:
    """How many of three signs it holds at, and how many it answers rightly."""
    config = ran(topology, agent, out, **changes)
    last = load_agent(RunFolder.open(out / "run"), "latest", "cpu", config=config)
    return played(lambda seen: int(last.act(seen)))


def elo(topology: str, agent: str, out: Path, **changes: Any) -> float:
    """Of the newest policy at tic-tac-toe; the first of the pool, which has learned nothing, has 0."""
    settings = {**BOARD, **RISES[topology, agent], **changes}
    ran(topology, agent, out, **settings)
    ratings = OpponentPool(out / "run").ratings()
    assert ratings is not None
    return ratings.elo


@pytest.mark.parametrize(
    ("topology", "agent"), [pytest.param(*cell, marks=[] if cell == QUICK else [pytest.mark.long]) for cell in CELLS]
)
def test_who_plays_those_who_answer_rightly_dares_no_more(
    topology: str, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexrl.roles.pool_players._LOOK_SECONDS", 0.0)
    assert learned(topology, agent, tmp_path / "pool") == (SIGNS, SIGNS)


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), [("apex", "dueling_dqn"), QUICK])
def test_who_plays_random_answers_dares(
    topology: str, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PoolPlayers, "_drawn", lambda self, run: RANDOM)
    assert learned(topology, agent, tmp_path / "random") == (0, SIGNS)


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), CELLS)
def test_two_policies_learned_in_runs_of_their_own(
    topology: str, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run learns the first player against the policy of the other run, which answers rightly."""
    monkeypatch.setattr("apexrl.roles.pool_players._LOOK_SECONDS", 0.0)
    assert learned(topology, agent, tmp_path / "second", learned_agents=("second",))[1] == SIGNS
    other = {"played_by": (f"second={tmp_path / 'second' / 'run'}",), "newest_share": 1.0}
    assert learned(topology, agent, tmp_path / "first", learned_agents=("first",), **other)[0] == SIGNS


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), RISES)
def test_elo_rises_with_what_is_learned(
    topology: str, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexrl.roles.pool_players._LOOK_SECONDS", 0.0)
    assert elo(topology, agent, tmp_path / "learns") > 100.0
    assert abs(elo(topology, agent, tmp_path / "learns nothing", learning_rate=1e-9)) < 70.0
