"""Rewards for goals in hindsight: the environment's own, one by one or many at once; clear errors without."""

from __future__ import annotations

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest

from apexrl.config import EnvConfig
from apexrl.envs.goal_rewards import GoalRewards
from apexrl.envs.goal_tasks import BitFlip, PointGoal
from apexrl.errors import EnvError


class Single(PointGoal):
    """Its ``compute_reward`` takes one pair of goals; with many it would answer for all together."""

    calls = 0

    @classmethod
    def compute_reward(cls, achieved_goal, desired_goal, info):
        Single.calls += 1
        return 0.0 if np.linalg.norm(achieved_goal - desired_goal) < cls.REACHED else -1.0


class NeedsInfo(PointGoal):
    @classmethod
    def compute_reward(cls, achieved_goal, desired_goal, info):
        return float(info["is_success"])

    def step(self, action):
        return self._shown(), 0.0, False, False, {"is_success": False}


class Halved(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 2


class Unlike(gym.Wrapper):
    """Goals of two shapes."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Dict(
            {**env.observation_space.spaces, "achieved_goal": gym.spaces.Box(-1, 1, (3,))}
        )


def halved():
    return Halved(PointGoal())


def unlike():
    return Unlike(PointGoal())


def rewards(env, **kwargs):
    return closing(GoalRewards(EnvConfig(env=env, **kwargs)))


def pairs(count):
    rng = np.random.default_rng(0)
    achieved = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    desired = np.where(rng.random((count, 1)) < 0.5, achieved, -achieved).astype(np.float32)
    return achieved, desired


@pytest.mark.parametrize("env", [PointGoal, Single])
def test_rewards_are_the_environments(env):
    achieved, desired = pairs(100)
    with rewards(env) as made:
        made.check(3)
        Single.calls = 0
        found = made.rewards(achieved, desired)
        assert found.dtype == np.float32
        one_by_one = [PointGoal.compute_reward(a, d, {}) for a, d in zip(achieved, desired, strict=True)]
        assert found.tolist() == one_by_one
        assert 20 < (found == 0).sum() < 80
        assert made.terminated(achieved, desired) is None
    assert Single.calls == (0 if env is PointGoal else 100 + 2 * 16 + 1)


def test_terminations_are_the_environments():
    bits = np.random.default_rng(0).integers(2, size=(50, 3)).astype(np.int8)
    with rewards(BitFlip, env_kwargs={"bits": 3}) as made:
        made.check(0)
        ended = made.terminated(bits[:25], bits[25:])
        assert ended.tolist() == (bits[:25] == bits[25:]).all(axis=1).tolist()
        assert 0 < ended.sum() < 25


class ForwardBits(BitFlip):
    """No bit is flipped back."""

    def reset(self, **kwargs):
        self.last = -1
        return super().reset(**kwargs)

    def step(self, action):
        assert action != self.last
        self.last = action
        return super().step(action)

    def action_masks(self):
        return np.arange(len(self._now)) != self.last


def test_masks_are_kept_to_when_it_is_tried():
    with rewards(ForwardBits, env_kwargs={"bits": 3}) as made:
        made.check(0)


def test_rewards_are_clipped_as_actors_clip_them():
    with rewards(PointGoal, reward_clip=0.5) as made:
        achieved, _ = pairs(2)
        assert made.rewards(achieved, achieved + 1).tolist() == [-0.5, -0.5]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("CartPole-v1", "achieved_goal and a desired_goal"),
        (unlike, "same shape"),
        (halved, "gave the reward -0.5, and compute_reward .* gives -1"),
        (NeedsInfo, "KeyError: 'is_success'.*without the info"),
    ],
)
def test_what_cannot_be_rewarded_is_refused(env, words):
    with pytest.raises(EnvError, match=words), rewards(env) as made:
        made.check(0)


def test_an_environment_without_compute_reward_is_refused():
    class Plain(gym.Env):
        observation_space, action_space = PointGoal.observation_space, PointGoal.action_space

    with pytest.raises(EnvError, match=r"no compute_reward\(achieved_goal, desired_goal, info\)"):
        GoalRewards(EnvConfig(env=Plain))
