"""The tasks of ``benchmarks/generality``: their spaces, how they differ from installed environments, their numbers."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.generality.random_play import made, random_return
from benchmarks.generality.tasks import ENVS, TASKS

ACTIONS = {"discrete": gym.spaces.Discrete, "switches": gym.spaces.MultiDiscrete, "box": gym.spaces.Box}


def beside(name, base, steps=60):
    """Both environments with the same seed and actions: their observations, rewards and ends, pair by pair."""
    envs = made(f"{ENVS}{name}"), made(base)
    pairs = [tuple((env.reset(seed=3)[0], 0.0, False) for env in envs)]
    envs[1].action_space.seed(0)
    while len(pairs) < steps and not pairs[-1][1][2]:
        action = envs[1].action_space.sample()
        pairs.append(tuple((seen, reward, end) for seen, reward, end, _, _ in (env.step(action) for env in envs)))
    return pairs


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_task_shows_and_takes_what_its_spaces_say(task):
    env = made(task.env)
    assert isinstance(env.action_space, ACTIONS[task.actions])
    env.action_space.seed(0)
    seen, _ = env.reset(seed=0)
    assert env.observation_space.contains(seen)
    for _ in range(5):
        seen, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(seen)
        assert np.isfinite(reward)
        if terminated or truncated:
            env.reset()
    env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "CartPolePositions-v0", "FrozenLakeFirm-v0", "MinAtar/Breakout-v1"])
def test_the_recorded_random_return_is_what_the_command_measures(name):
    assert random_return(TASKS[name].env) == pytest.approx(TASKS[name].random, rel=1e-4)


def test_good_is_above_random_and_budgets_suit_two_cores():
    for task in TASKS.values():
        assert task.good > task.random, task.name
        assert 30_000 <= task.replay_steps <= 500_000, task.name
        assert 300_000 <= task.unroll_steps <= 1_500_000, task.name


def test_no_environment_that_is_reported_on_was_tuned_on_in_another_form():
    bases = {"tune": set(), "report": set()}
    for task in TASKS.values():
        base = made(task.env).unwrapped
        game = base.spec.id if base.spec.id.startswith("MinAtar/") else ""  # all are of one class
        bases[task.half].add((type(base).__name__, game))
    assert bases["tune"].isdisjoint(bases["report"])
    assert abs(2 * sum(task.half == "tune" for task in TASKS.values()) - len(TASKS)) <= 1


@pytest.mark.parametrize(
    ("name", "base", "factor"),
    [("AcrobotRewards1000-v0", "Acrobot-v1", 1e3), ("LunarLanderRewards0001-v0", "LunarLander-v3", 1e-3)],
)
def test_rewards_are_scaled_and_nothing_else(name, base, factor):
    pairs = beside(name, base)
    assert [ours[1] for ours, _ in pairs] == pytest.approx([factor * theirs[1] for _, theirs in pairs])
    assert all(np.array_equal(ours[0], theirs[0]) for ours, theirs in pairs)


def test_observations_are_scaled_shown_in_part_or_named():
    for ours, theirs in beside("CartPoleObservations10000-v0", "CartPole-v1"):
        np.testing.assert_allclose(ours[0], 1e4 * theirs[0], rtol=1e-6)
    for ours, theirs in beside("CartPolePositions-v0", "CartPole-v1"):
        np.testing.assert_array_equal(ours[0], theirs[0][[0, 2]])
    for ours, theirs in beside("AcrobotDict-v0", "Acrobot-v1"):
        np.testing.assert_array_equal(np.concatenate([ours[0]["angles"], ours[0]["speeds"]]), theirs[0])


def test_only_the_goal_is_rewarded():
    pairs = beside("AcrobotGoal-v0", "Acrobot-v1", steps=20)
    assert {(ours[1], theirs[1]) for ours, theirs in pairs[1:]} == {(0.0, -1.0)}
    env = made(f"{ENVS}AcrobotGoal-v0")
    env.reset(seed=0)
    env.unwrapped.state = np.array([np.pi, 0.0, 0.0, 0.0])  # upright
    assert env.step(1)[1:3] == (1.0, True)


def test_switches_are_engines():
    ours, theirs = made(f"{ENVS}LunarLanderSwitches-v0"), made("LunarLanderContinuous-v3")
    for switches, throttle in (
        ((0, 1), (-1.0, 0.0)),
        ((1, 1), (1.0, 0.0)),
        ((0, 0), (-1.0, -1.0)),
        ((1, 2), (1.0, 1.0)),
    ):
        for env in (ours, theirs):
            env.reset(seed=5)
        left = ours.step(np.array(switches))
        right = theirs.step(np.array(throttle, np.float32))
        np.testing.assert_array_equal(left[0], right[0])
