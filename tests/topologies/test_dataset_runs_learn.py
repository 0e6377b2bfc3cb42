"""A dataset shows what random actions do not find: agents learn it beside live actors, and from the dataset alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch
from lock_env import write_episodes

pytest.importorskip("minari")

COMMON: dict[str, Any] = {"learning_rate": 3e-3, "gamma": 0.9, "hidden": (32,), "capacity": 4_000}
LIVE: dict[str, Any] = {
    **COMMON, "env_steps": 1_500, "updates_per_step": 1.0, "min_size": 100, "batch_size": 32, "n_step": 3, "alpha": 0.0,
    "dataset_share": 0.5, "actors": 1, "envs_per_actor": 4,
}  # fmt: skip
DQN: dict[str, Any] = {**LIVE, "epsilon": 0.1, "epsilon_alpha": 0.0, "target_period_updates": 50}
SAC: dict[str, Any] = {**LIVE, "initial_temperature": 0.02, "normalize_observations": False, "polyak": 0.02}
ALONE: dict[str, Any] = {**COMMON, "updates": 600, "batch_size": 64}
CELLS: dict[tuple[str, str], dict[str, Any]] = {
    ("apex", "dueling_dqn"): DQN,
    ("seed", "dueling_dqn"): DQN,
    ("gorila", "dqn"): DQN,
    ("apex", "sac"): SAC,
    ("seed", "sac"): SAC,
    ("apex", "discrete_sac"): SAC,
    ("seed", "discrete_sac"): SAC,
    ("offline", "bc"): ALONE,
    ("offline", "discrete_cql"): ALONE,
    ("offline", "cql"): {**ALONE, "policy_learning_rate": 3e-3, "polyak": 0.02, "conservative_actions": 4},
    ("offline", "iql"): {**ALONE, "polyak": 0.05},
    ("offline", "td3_bc"): {**ALONE, "cloned_value_weight": 0.5, "polyak": 0.02, "policy_period_updates": 1},
}
QUICK = [("apex", "dueling_dqn"), ("offline", "iql")]
CHOICES = ("dueling_dqn", "dqn", "discrete_cql", "discrete_sac")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Of who turns one time in ten to any number; with a box and without."""
    where = tmp_path_factory.mktemp("datasets")
    return {box: write_episodes(where / f"lock-{box}", 40, box) for box in (False, True)}


def opened(topology: str, agent: str, out: Path, dataset: str, **changes: Any) -> float:
    """Share of games in which the last weights open the lock."""
    settings = {
        "env": "lock_env:Lock-v0", "env_kwargs": {"box": agent not in CHOICES}, "serial": True, "out": str(out),
        "name": "run", "eval_episodes": 10, "eval_period_seconds": 1e6, "learner_threads": 1, "seed": 1,
        "dataset": dataset,
    }  # fmt: skip
    made = with_agent(Config(topology=topology), agent)
    found: float = launch(override(made, {**settings, **CELLS[topology, agent], **changes}), [])["last_weights_return"]
    return found


@pytest.mark.parametrize(
    ("topology", "agent"), [pytest.param(*cell, marks=[] if cell in QUICK else [pytest.mark.long]) for cell in CELLS]
)
def test_what_a_dataset_shows_is_learned(topology: str, agent: str, datasets: dict[bool, str], tmp_path: Path) -> None:
    assert opened(topology, agent, tmp_path, datasets[agent not in CHOICES]) == 1.0


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), [cell for cell in CELLS if cell[0] != "offline"])
def test_live_actors_alone_do_not_find_it(topology: str, agent: str, tmp_path: Path) -> None:
    assert opened(topology, agent, tmp_path, "") == 0.0
