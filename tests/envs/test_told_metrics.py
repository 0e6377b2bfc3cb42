"""What environments tell of their episodes arrives alike from single, threaded and vectorised ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from apexrl.config import EnvConfig
from apexrl.envs import make_vector
from apexrl.envs.told_metrics import row_metrics, told_metrics
from apexrl.run.episode_metrics import MOST_NAMES
from telling_envs import Telling


def same_step(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Telling] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def next_step(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Telling] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize(("env", "vector"), [(Telling, "sync"), (Telling, "threads"), (next_step, ""), (same_step, "")])
def test_numbers_of_an_episodes_last_info(env: Any, vector: Any) -> None:
    made = make_vector(EnvConfig(env=env, info_metrics=("won", "missing", "metrics")), 2, 0, vector or "sync")
    made.reset()
    told = []
    for _ in range(8):
        told += [dict(one.metrics) for one in made.step(np.zeros(2, np.int64)).episodes]
    made.close()
    assert told == [{"steps": 3.0, "level": 1.0, "won": 1.0}] * 4


def test_what_is_no_number_is_left_out_and_names_are_bounded() -> None:
    info = {"metrics": {"a b": 1, "array": np.ones(2), "one": np.ones(()), "inf": np.inf, "big": 10**400}, "none": None}
    assert told_metrics(info, ["none"]) == {"a_b": 1.0, "one": 1.0}
    many = told_metrics({"metrics": {f"{'x' * 200}{n}": n for n in range(200)}}, [])
    assert all(len(name) <= 100 for name in many)
    assert len(told_metrics({"metrics": {str(n): n for n in range(200)}}, [])) == MOST_NAMES


def test_rows_of_vector_environments_that_tell_in_other_ways() -> None:
    objects = np.array([{"speed": 1.0}, {"speed": 2.0}], object)
    assert row_metrics({"metrics": objects}, [], [1]) == {1: {"speed": 2.0}}
    assert row_metrics({"speed": np.array([1.0, 2.0]), "_speed": np.array([True, False])}, ["speed"], [0, 1]) == {
        0: {"speed": 1.0},
        1: {},
    }
    assert row_metrics({"speed": 3.0}, ["speed"], [0]) == {0: {}}  # of all: of none
