from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from apexrl.config import EnvConfig
from apexrl.envs import make_env, make_vector
from apexrl.envs.native_rows import NativeRows
from apexrl.envs.threaded import ThreadRows
from apexrl.envs.toy import Corridor
from corridor_values import q_star

# SlowCartPole is Gymnasium's own, only slower
IDS = ["Catch-v0", "Corridor-v0", "Endless-v0", "Signals-v0", "PositionCartPole-v0"]


@pytest.mark.parametrize("name", IDS)
def test_every_toy_keeps_gymnasiums_rules(name: str) -> None:
    check_env(gym.make(f"apexrl.envs.toy:{name}", disable_env_checker=True).unwrapped, skip_render_check=True)


def test_catch_is_won_by_following_the_ball() -> None:
    env = make_env(EnvConfig(env="apexrl.envs.toy:Catch-v0"))
    for seed in range(10):
        image, _ = env.reset(seed=seed)
        assert image.shape == (84, 84)
        assert image.dtype == np.uint8
        length, reward, ended = 0, 0.0, False
        while not ended:
            ball = image[:-9].any(axis=0).nonzero()[0]
            paddle = image[-8:].any(axis=0).nonzero()[0]
            image, reward, ended, _, _ = env.step(1 + int(np.sign(ball.mean() - paddle.mean())))
            length += 1
        assert (reward, length) == (1.0, 9)


def test_catch_is_lost_by_running_away() -> None:
    env = make_env(EnvConfig(env="apexrl.envs.toy:Catch-v0"))
    rewards = set()
    for seed in range(40):
        env.reset(seed=seed)
        rewards.add([env.step(0)[1] for _ in range(9)][-1])
    assert rewards == {-1.0, 1.0}


def test_corridors_q_star_satisfies_bellmans_equation() -> None:
    length, gamma = 7, 0.8
    q = q_star(length, gamma)
    env = Corridor(length)
    for state in range(length):
        for action in (0, 1):
            env.reset(seed=0)
            env._state = state
            later, reward, terminated, _, _ = env.step(np.int64(action))
            expected = reward + (0.0 if terminated else gamma * q[later].max())
            assert q[state, action] == pytest.approx(expected)


def test_slow_cartpole_waits_and_is_cartpole() -> None:
    slow = make_env(EnvConfig(env="apexrl.envs.toy:SlowCartPole-v0", env_kwargs={"seconds": 0.01}))
    fast = make_env(EnvConfig(env="CartPole-v1"))
    first, _ = slow.reset(seed=1)
    np.testing.assert_array_equal(first, fast.reset(seed=1)[0])
    begin = time.perf_counter()
    for _ in range(5):
        np.testing.assert_array_equal(slow.step(1)[0], fast.step(1)[0])
    assert time.perf_counter() - begin >= 0.05  # sleep never wakes early: a lower bound cannot flake


def test_signals_pay_for_the_combination_only() -> None:
    env = make_vector(EnvConfig(env="apexrl.envs.toy:Signals-v0"), 4, 0)
    observation = env.reset()
    total = np.zeros(4)
    for _ in range(8):
        right = observation["observation/image"][:, 0, -1] > 0
        positive = observation["observation/body/sign"][:, 0] > 0
        stepped = env.step((right == positive).astype(np.int64))
        total += stepped.reward
        observation = stepped.observation
    assert total.tolist() == [8.0] * 4
    assert len(stepped.episodes) == 4


def test_a_fault_happens_once_when_asked(tmp_path: Path) -> None:
    kwargs = {"at_step": 1, "once": str(tmp_path / "failed")}
    config = EnvConfig(env="apexrl.envs.faulty:Raises-v0", env_kwargs=kwargs)
    for expected in (True, False):
        env = make_env(config)
        env.reset(seed=0)
        try:
            env.step(0)
            failed = False
        except RuntimeError:
            failed = True
        assert failed is expected


def test_the_spawned_child_dies_with_close(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    env = make_env(EnvConfig(env="apexrl.envs.faulty:SpawnsChild-v0", env_kwargs={"pid_file": str(pid_file)}))
    (pid,) = (int(line) for line in pid_file.read_text().split())
    os.kill(pid, 0)  # it lives
    env.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_position_cartpole_is_cartpole_without_its_velocities(vector: Literal["sync", "threads"]) -> None:
    """In its vectorised form, which lock-step uses, and one by one."""
    ids = ("CartPole-v1", "apexrl.envs.toy:PositionCartPole-v0")
    whole, shown = (make_vector(EnvConfig(env=name), 3, 5, vector) for name in ids)
    assert isinstance(shown._backend, NativeRows if vector == "sync" else ThreadRows)
    assert shown.spec.observation["observation"].shape == (2,)
    np.testing.assert_array_equal(shown.reset()["observation"], whole.reset()["observation"][:, [0, 2]])
    rng, episodes = np.random.default_rng(0), 0
    for _ in range(80):
        actions = rng.integers(2, size=3)
        one, other = shown.step(actions), whole.step(actions)
        np.testing.assert_array_equal(one.observation["observation"], other.observation["observation"][:, [0, 2]])
        np.testing.assert_array_equal(one.terminated, other.terminated)
        episodes += len(one.episodes)
    assert episodes > 3
    shown.close()
    whole.close()


def test_position_cartpole_is_cut_after_500_steps() -> None:
    env = make_vector(EnvConfig(env="apexrl.envs.toy:PositionCartPole-v0"), 1, 0)
    assert env._backend._env.max_episode_steps == 500  # type: ignore[attr-defined]
    env.close()
