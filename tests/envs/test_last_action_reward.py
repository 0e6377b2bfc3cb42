from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from apexrl.config import EnvConfig
from apexrl.envs import LastActionReward, make_env, make_vector
from apexrl.envs.lockstep import LoopRows
from apexrl.errors import EnvError
from apexrl.spec import Field


class Echo(gym.Env[Any, Any]):
    """Shows the number of its steps, pays three times that, and ends after three."""

    def __init__(self, actions: gym.Space[Any], observations: gym.Space[Any] | None = None) -> None:
        self.action_space = actions
        self.observation_space = observations or gym.spaces.Box(0.0, 9.0, (1,), np.float32)
        self.taken: list[Any] = []

    def _seen(self) -> Any:
        step = np.array([len(self.taken)], np.float32)
        return {"step": step} if isinstance(self.observation_space, gym.spaces.Dict) else step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = []
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        return self._seen(), 3.0 * len(self.taken), len(self.taken) == 3, False, {}


CHOICES: list[tuple[gym.Space[Any], Any, list[float]]] = [
    (gym.spaces.Discrete(3), 2, [0, 0, 1]),
    (gym.spaces.Discrete(3, start=5), 5, [1, 0, 0]),
    (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 1]), [0, 1, 0, 1, 0]),
    (gym.spaces.MultiDiscrete([2, 3], start=[4, -1]), np.array([4, 1]), [1, 0, 0, 0, 1]),
    (gym.spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    (gym.spaces.Box(1.0, 2.0, (2,), np.float32), np.array([1.5, 1.25], np.float32), [1.5, 1.25]),
]


@pytest.mark.parametrize(("space", "action", "shown"), CHOICES, ids=str)
def test_the_previous_action_and_reward_are_seen_and_are_zero_at_first(
    space: gym.Space[Any], action: Any, shown: list[float]
) -> None:
    env = LastActionReward(Echo(space))
    for _ in range(2):  # also after an episode
        seen, _ = env.reset(seed=1)
        assert seen in env.observation_space
        assert not seen["last_action"].any()
        assert seen["last_reward"].tolist() == [0.0]
        for step in (1, 2, 3):
            seen, *_ = env.step(action)
            assert seen in env.observation_space
            assert seen["last_action"].tolist() == shown
            assert seen["last_reward"].tolist() == [3.0 * step]
            assert seen["obs"].tolist() == [step]


class Scales(Echo):
    """Changes its actions in place, as ``np.clip(action, low, high, out=action)`` does."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action *= 0
        return super().step(action)


@pytest.mark.parametrize(
    "space", [gym.spaces.Box(1.0, 2.0, (2,), np.float32), gym.spaces.MultiDiscrete([2, 3])], ids=str
)
def test_an_environment_may_change_its_actions_in_place(space: gym.Space[Any]) -> None:
    vector = make_vector(EnvConfig(env=lambda: Scales(space), last_action_reward=True), 2, 0)
    vector.reset()
    chosen = np.ones((2, 2), vector.spec.action.dtype)
    seen = vector.step(chosen).observation["observation/last_action"]
    assert (chosen == 1).all(), "its caller records them"
    assert (seen != 0).any(axis=1).all()


@pytest.mark.parametrize("reward", [np.array([2.0]), [2.0], np.float32(2)])
def test_a_reward_may_be_an_array_of_one(reward: Any) -> None:
    env = LastActionReward(Echo(gym.spaces.Discrete(2)))
    env.reset()
    step = env.env.step
    env.env.step = lambda action: (step(action)[0], reward, False, False, {})  # type: ignore[method-assign]
    assert env.step(0)[0]["last_reward"].tolist() == [2.0]
    reward = np.array([np.nan])
    assert env.step(0)[0]["last_reward"].tolist() == [0.0], "it is refused by name where rewards are looked at"


def test_a_dict_keeps_its_keys_and_the_reward_is_shown_clipped() -> None:
    inner = gym.spaces.Dict(step=gym.spaces.Box(0.0, 9.0, (1,), np.float32))
    env = LastActionReward(Echo(gym.spaces.Discrete(2), inner), reward_clip=1.0)
    env.reset()
    seen, reward, *_ = env.step(0)
    assert set(seen) == {"step", "last_action", "last_reward"}
    assert seen in env.observation_space
    assert (seen["last_reward"].tolist(), reward) == ([1.0], 3.0)


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(EnvError, match=r"MultiBinary\(\(2, 3\)\) is not Discrete.*; leave last_action_reward out, or "):
        LastActionReward(Echo(gym.spaces.MultiBinary((2, 3))))
    with pytest.raises(EnvError, match="last_action, last_reward already"):
        LastActionReward(LastActionReward(Echo(gym.spaces.Discrete(2))))


@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_it_is_wired_for_every_kind_of_vector(vector: Any) -> None:
    config = EnvConfig(env="CartPole-v1", last_action_reward=True)
    env = make_vector(config, 3, 0, vector)
    assert vector != "sync" or isinstance(env._backend, LoopRows)  # the native form has no such observation
    assert env.spec.observation == {
        "observation/obs": Field((4,), "float32"),
        "observation/last_action": Field((2,), "int8"),
        "observation/last_reward": Field((1,), "float32"),
    }
    assert not env.reset()["observation/last_reward"].any()
    rng, ended = np.random.default_rng(0), 0
    for _ in range(60):
        actions = rng.integers(2, size=3)
        stepped = env.step(actions)
        going = ~stepped.starts
        one_hot = np.eye(2, dtype=np.int8)[actions] * going[:, None]
        np.testing.assert_array_equal(stepped.observation["observation/last_action"], one_hot)
        np.testing.assert_array_equal(stepped.observation["observation/last_reward"][:, 0], stepped.reward * going)
        ended += int(stepped.starts.sum())
    assert ended > 0
    env.close()
    single = make_env(config)
    assert isinstance(single, LastActionReward)
    single.close()


def test_without_the_setting_observations_are_the_environments_own() -> None:
    assert not isinstance(make_env(EnvConfig(env="CartPole-v1")), LastActionReward)
