"""The rows of pools: of one written in Python, and with the marker ``envpool`` of real ones (make test-envpool)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pool_twin
import pytest
from row_streams import streams

from apexrl.config import EnvConfig
from apexrl.envs import VectorEnv, env_spec_and_limit, make_env, make_vector
from apexrl.envs.atari_game import emulator_seed
from apexrl.envs.envpool_rows import EnvPoolRows
from apexrl.envs.lockstep import LoopRows
from apexrl.errors import EnvError

ACROBOT = EnvConfig(env="envpool:Acrobot-v1", max_episode_steps=9)
ENVS = 4


def real() -> Any:
    import envpool

    return envpool


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(__import__("sys").modules, "envpool", pool_twin)
    pool_twin.pools.clear()
    return pool_twin


def pooled(config: EnvConfig, partial: bool = True, envs: int = ENVS, **kwargs: Any) -> VectorEnv:
    return make_vector(EnvConfig(**{**vars(config), "env_kwargs": kwargs}), envs, 5, partial=partial)


def single_acrobots() -> VectorEnv:
    """With the seeds that a pool gives."""

    class Masked(LoopRows):
        def reset(self, seeds: Any) -> Any:
            return super().reset([emulator_seed(seed) for seed in seeds])

    envs = [gym.make("Acrobot-v1", max_episode_steps=9) for _ in range(ENVS)]
    return VectorEnv(Masked(envs, "Acrobot"), "Acrobot", seed=5)


@pytest.mark.parametrize("batch", [0, 4, 2, 1])
def test_a_pools_episodes_are_those_of_single_environments(batch: int, twin: Any) -> None:
    env = pooled(ACROBOT, batch_size=batch, num_threads=3)
    assert isinstance(env._backend, EnvPoolRows)
    assert env.lockstep == (batch in (0, ENVS))
    expected = streams(single_acrobots(), 40)
    assert streams(env, 40) == expected
    assert streams(env, 10) == [stream[:11] for stream in expected]  # a reset: a pool with the same seeds
    assert [pool.closed for pool in twin.pools] == [True, False]
    assert {pool.num_threads for pool in twin.pools} == {3}
    env.close()
    assert twin.pools[-1].closed


def test_in_lock_step_a_pool_answers_with_all(twin: Any) -> None:
    env = pooled(ACROBOT, partial=False, batch_size=2)
    assert env.lockstep
    assert streams(env, 20) == streams(single_acrobots(), 20)


def test_what_is_asked_of_a_pool_is_checked(twin: Any) -> None:
    with pytest.raises(EnvError, match="batch_size is 3, which does not divide the 4 environments"):
        pooled(ACROBOT, batch_size=3)
    with pytest.raises(EnvError, match="EnvPool has no task Nothing-v0"):
        pooled(EnvConfig(env="envpool:Nothing-v0"))
    with pytest.raises(EnvError, match="leave out atari and last_action_reward"):
        pooled(EnvConfig(env="envpool:Acrobot-v1", atari=True, last_action_reward=True))
    with pytest.raises(EnvError, match="leave out --vector threads"):
        make_vector(ACROBOT, 2, 0, "threads")
    with pytest.raises(EnvError, match="no single environment to make"):
        make_env(ACROBOT)
    spec, limit = env_spec_and_limit(EnvConfig(env="envpool:Acrobot-v1", env_kwargs={"batch_size": 2}))
    assert (spec.action.n, limit) == (3, 500)


def test_without_envpool_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "envpool", None)
    with pytest.raises(EnvError, match=r"no module 'envpool'.*pip install 'apexrl\[envpool\]'"):
        pooled(ACROBOT)


TASKS = {
    "CartPole-v1": {},
    "Pendulum-v1": {},
    "HalfCheetah-v5": {},
    "CheetahRun-v1": {},  # an observation of several arrays
    "FrozenLake-v1": {},  # a discrete one
    "Pong-v5": {"stack_num": 1, "use_fire_reset": False},
}


@pytest.mark.envpool
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize("task", TASKS)
def test_a_real_pools_episodes_do_not_depend_on_how_many_answer_at_a_time(task: str) -> None:
    config = EnvConfig(env=f"envpool:{task}", max_episode_steps=11)
    expected = streams(pooled(config, **TASKS[task]), 40)
    ends = sum(bool(row[2] or row[3]) for stream in expected for row in stream[1:])
    assert ends >= 3 * ENVS
    for batch in (1, 2):
        assert streams(pooled(config, batch_size=batch, **TASKS[task]), 40) == expected
    seed = emulator_seed(int(np.random.SeedSequence(5).generate_state(ENVS, np.uint32)[2]))
    lone = real().make_gymnasium(task, num_envs=1, seed=[seed], max_episode_steps=11, **TASKS[task])
    np.testing.assert_array_equal(first_leaf(lone.reset()[0]), np.array(expected[2][0][0], np.float32))


def first_leaf(observation: Any) -> Any:
    while isinstance(observation, dict):
        observation = next(iter(observation.values()))
    return np.asarray(observation[0], np.float32)


@pytest.mark.envpool
def test_a_real_pools_cartpole_obeys_gymnasiums_dynamics() -> None:
    """Every step, final observation, end and time limit, from the states that it shows in single precision."""
    env = pooled(EnvConfig(env="envpool:CartPole-v1", max_episode_steps=30), batch_size=2)
    single: Any = gym.make("CartPole-v1", max_episode_steps=None).unwrapped
    single.reset()
    cuts = ends = 0
    for environment, stream in enumerate(streams(env, 200)):
        steps, seen = 0, stream[0][0]
        for number, ((shown,), reward, terminated, truncated, starts, _) in enumerate(stream[1:], 1):
            if starts:
                steps = 0
                assert np.abs(shown).max() <= 0.05
            else:
                single.state, single.steps_beyond_terminated = tuple(seen), None
                expected, _, ended, _, _ = single.step((number * (environment + 1) + 1) % 2)
                steps += 1
                np.testing.assert_allclose(shown, expected, rtol=1e-4, atol=1e-5)
                assert (reward, bool(terminated), bool(truncated)) == (1.0, ended, steps == 30 and not ended)
                ends, cuts = ends + bool(terminated), cuts + bool(truncated)
            seen = shown
    assert ends
    assert cuts
    env.close()
