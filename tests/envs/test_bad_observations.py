"""Observations that break their space's promise are refused by name, not stretched or learned from."""

from __future__ import annotations

import re
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from apexrl.config import EnvConfig
from apexrl.envs import make_vector
from apexrl.errors import EnvError

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
BYTES = gym.spaces.Box(0, 255, (2, 2, 3), np.uint8)
GLYPHS = gym.spaces.Box(-1, 1000, (5, 5), np.int16)


class Odd(gym.Env):
    """Keeps its promise at reset and breaks it at the first step."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, answer, space=VECTOR, ends=False, info=()):
        self._answer, self.observation_space, self._ends, self._info = answer, space, ends, info

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self._answer, 0.0, self._ends, False, self._info


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


@pytest.mark.parametrize(
    ("space", "answer", "words"),
    [
        (VECTOR, [0.0, [1.0], 0.0], "no array of float32"),
        (VECTOR, torch.zeros(3, requires_grad=True), "no array of float32: Can't call numpy()"),
        (
            gym.spaces.Box(-1, 1, (), np.float32),
            "0.5",
            "returned 'observation' of <U3 values; its observation space says float32",
        ),
        (
            VECTOR,
            np.zeros(3, np.complex64),
            "returned 'observation' of complex64 values; its observation space says float32",
        ),
        (VECTOR, np.zeros(3, "datetime64[s]"), "returned 'observation' of datetime64.s. values; its"),
        (VECTOR, np.zeros(3, [("x", "f4")]), "returned 'observation' of .*x.* values; its observation space says"),
        (BYTES, np.full((2, 2, 3), 0.5), "of float64 values that uint8 does not hold"),
        (BYTES, np.full((2, 2, 3), 256), "of int64 values that uint8 does not hold"),
        (gym.spaces.Box(0, 1, (2,), np.bool_), np.array([1.0, 0.5]), "of float64 values that bool does not hold"),
        (gym.spaces.Box(0, 1, (2,), np.bool_), np.array([1.0, np.nan]), "of float64 values that bool does not hold"),
        pytest.param(
            gym.spaces.Box(-1, 1, (2,), np.float64),
            np.array([0.0, 1e39]),
            "too large for float32",
            marks=pytest.mark.filterwarnings("ignore:overflow encountered in cast"),
        ),
        (gym.spaces.Discrete(4, start=3), 7, "returned 7 in 'observation'; its observation space has 3 to 6"),
        (gym.spaces.Discrete(4, start=3), 2, "returned 2 in"),
        (gym.spaces.MultiDiscrete([3, 2]), [0, 3], "returned 3 in 'observation'; its observation space has 0 to 2"),
        (GLYPHS, np.full((5, 5), 1001), "returned 1001 in 'observation'; its observation space has -1 to 1000"),
    ],
)
def test_values_that_the_space_does_not_have_are_refused(space, answer, words):
    vector = make_vector(EnvConfig(env=lambda: Odd(answer, space)), 2, 0)
    vector.reset()
    with pytest.raises(EnvError, match=words):
        vector.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("answer", [np.full((2, 2, 3), 255.0), np.full((2, 2, 3), 255), np.full((2, 2, 3), True)])
def test_whole_numbers_of_another_type_are_taken(answer):
    vector = make_vector(EnvConfig(env=lambda: Odd(answer, BYTES)), 2, 0)
    vector.reset()
    assert (vector.step(np.zeros(2, np.int64)).observation["observation"] == answer).all()


class Answers(gym.Env):
    """Its reset and its step return what they are told to."""

    observation_space, action_space = VECTOR, gym.spaces.Discrete(2)

    def __init__(self, begin, later):
        self._begin, self._later = begin, later

    def reset(self, *, seed=None, options=None):
        return self._begin

    def step(self, action):
        return self._later


SEEN = np.zeros(3, np.float32)


@pytest.mark.parametrize("reward", [2, np.float32(2), np.array(2.0), np.array([2.0]), [2.0], torch.tensor([2.0])])
def test_a_reward_may_be_an_array_of_one(reward):
    vector = make_vector(EnvConfig(env=lambda: Answers((SEEN, {}), (SEEN, reward, False, False, {}))), 2, 0)
    vector.reset()
    assert vector.step(np.zeros(2, np.int64)).reward.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("reward", [[1.0, 2.0], np.zeros((2, 1)), torch.zeros(3)])
def test_several_rewards_of_a_step_are_refused(reward):
    vector = make_vector(EnvConfig(env=lambda: Answers((SEEN, {}), (SEEN, reward, False, False, {}))), 2, 0)
    vector.reset()
    shape = re.escape(str(tuple(np.shape(reward))))
    with pytest.raises(EnvError, match=rf"environment 0 returned a reward of shape {shape}; .* weight several"):
        vector.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("reward", [None, "much", {}, pytest.param(10**400, id="huge")])
def test_a_reward_that_is_no_number_is_refused(reward):
    vector = make_vector(EnvConfig(env=lambda: Answers((SEEN, {}), (SEEN, reward, False, False, {}))), 2, 0)
    vector.reset()
    with pytest.raises(EnvError, match=r"step\(\) of environment 0 returned the reward .*; it must be a number"):
        vector.step(np.zeros(2, np.int64))


def test_rewards_of_several_objectives_are_refused_with_advice():
    later = SEEN, np.array([0.0, -1.0]), False, False, {}
    vector = make_vector(EnvConfig(env=lambda: Answers((SEEN, {}), later)), 1, 0)
    vector.reset()
    with pytest.raises(EnvError, match="weight several objectives into one"):
        vector.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("begin", "later", "words"),
    [
        (SEEN, (), "Gymnasium's reset() returns two: observation, info"),
        ((SEEN, {}), (SEEN, 1.0, False, {}), "returns five: observation, reward, terminated, truncated, info"),
    ],
)
def test_what_gym_returned_is_told_apart(begin, later, words):
    vector = make_vector(EnvConfig(env=lambda: Answers(begin, later)), 2, 0)
    with pytest.raises(EnvError, match=re.escape(words)):
        vector.reset()
        vector.step(np.zeros(2, np.int64))


def test_a_reset_without_a_seed_is_told_what_gymnasium_gives():
    class Old(Answers):
        def reset(self):
            return SEEN, {}

    vector = make_vector(EnvConfig(env=lambda: Old(None, None)), 2, 0)
    with pytest.raises(EnvError, match=r"takes seed= and options="):
        vector.reset()


def test_an_info_that_is_no_dict_is_refused():
    vector = make_vector(EnvConfig(env=lambda: Odd(np.zeros(3, np.float32), ends=True, info=None)), 2, 0)
    vector.reset()
    with pytest.raises(EnvError, match=r"step\(\) of environment 0 returned the info None; it must be a dict"):
        vector.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("ends", [None, "False", [], (), np.array([True, False])])
def test_an_end_that_is_neither_true_nor_false_is_refused(ends):
    vector = make_vector(EnvConfig(env=lambda: Odd(np.zeros(3, np.float32), ends=ends, info={})), 2, 0)
    vector.reset()
    words = f"step() of environment 0 returned terminated = {ends!r}; it must be True or False"
    with pytest.raises(EnvError, match=re.escape(words)):
        vector.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("ends", [True, 1, np.True_, np.array(True), np.array([1.0]), torch.tensor(True)])
def test_an_end_may_be_a_number_or_an_array(ends):
    vector = make_vector(EnvConfig(env=lambda: Odd(np.zeros(3, np.float32), ends=ends, info={})), 2, 0)
    vector.reset()
    assert vector.step(np.zeros(2, np.int64)).terminated.all()


def test_an_error_without_words_is_told_all_the_same():
    class Wordless(Exception):
        def __str__(self):
            raise RuntimeError

    class Fails(Answers):
        def step(self, action):
            raise Wordless

    vector = make_vector(EnvConfig(env=lambda: Fails((SEEN, {}), None)), 2, 0)
    vector.reset()
    with pytest.raises(EnvError, match=r"raised Wordless: its text cannot be told \(RuntimeError\)"):
        vector.step(np.zeros(2, np.int64))


def test_a_constructor_that_ends_the_program_is_an_error():
    def licensed():
        sys.exit("no licence")

    with pytest.raises(EnvError, match="cannot be made: SystemExit: no licence"):
        make_vector(EnvConfig(env=licensed), 1, 0)
