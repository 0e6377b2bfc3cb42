from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from apexrl.agents.box_actions import ActionBox
from apexrl.envs.players import random_actions
from apexrl.errors import AgentError
from apexrl.spec import ActionSpec, EnvSpec, Field


def test_the_advice_for_an_open_box_works() -> None:
    class Open(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1.0, 1.0, (3,))
        action_space = gym.spaces.Box(-np.inf, np.inf, (2,))

    space = Open.action_space
    with pytest.raises(AgentError, match="as of -2 … 2: ") as caught:
        ActionBox(ActionSpec((2,), "float32", low=space.low, high=space.high), "sac")
    wrapped = eval(str(caught.value).partition("as of -2 … 2: ")[2], {"gymnasium": gym, "env": Open()}).action_space
    box = ActionBox(ActionSpec((2,), str(wrapped.dtype), low=wrapped.low, high=wrapped.high), "sac")
    np.testing.assert_array_equal(box.to_env(np.array([[-1.0, 0.5]], np.float32)), [[-2.0, 1.0]])


def test_random_actions_lie_within_the_bounds_that_there_are() -> None:
    low, high = np.array([-np.inf, -np.inf, 2.0, -1.0], np.float32), np.array([np.inf, 5.0, 3.4e38, 3.0], np.float32)
    spec = EnvSpec({"observation": Field((1,), "float32")}, ActionSpec((4,), "float32", low=low, high=high))
    drawn = random_actions(np.random.default_rng(0), spec, {}, 20_000)
    assert (drawn >= low).all()
    assert (drawn <= high).all()
    np.testing.assert_allclose(drawn.mean(axis=0), [0.0, 4.0, 3.0, 1.0], atol=0.05)  # as Gymnasium's Box.sample
    np.testing.assert_allclose(drawn.std(axis=0), [1.0, 1.0, 1.0, 4 / 12**0.5], atol=0.05)
