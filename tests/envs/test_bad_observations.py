"""Observations that break their space's promise are refused by name, not stretched or learned from."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from apexrl.config import EnvConfig
from apexrl.envs import make_vector
from apexrl.errors import EnvError


class Odd(gym.Env):
    """Keeps its promise at reset and breaks it at the first step."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, answer):
        self._answer = answer

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return self._answer, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (np.float32(0.5), r"shape \[\].*\[3\]"),
        (np.zeros(1, np.float32), r"shape \[1\].*\[3\]"),
        (np.zeros(2, np.float32), r"shape \[2\].*\[3\]"),
        (np.array([0, np.nan, 0], np.float32), "NaN or infinity"),
        (np.array([0, 0, np.inf], np.float32), "NaN or infinity"),
        (None, "shape"),
    ],
)
def test_bad_observations_are_refused(answer, words):
    vector = make_vector(EnvConfig(env=lambda: Odd(answer)), 2, 0)
    vector.reset()
    with pytest.raises(EnvError, match=words) as error:
        vector.step(np.zeros(2, np.int64))
    assert "'observation'" in str(error.value)
