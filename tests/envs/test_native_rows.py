"""Environments that are vectorised by themselves, step by step against single ones, in every autoreset mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from row_streams import streams

from apexrl.config import EnvConfig
from apexrl.envs import VectorEnv, env_spec_and_limit, make_vector
from apexrl.envs.lockstep import LoopRows
from apexrl.envs.make import shrinks_images
from apexrl.envs.native_rows import NativeRows
from apexrl.errors import EnvError

ENVS = 3
OTHERS = [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


class Walk(gym.Env[Any, Any]):
    """A walk whose steps and ends are random, of which some are terminal and some time limits."""

    observation_space = gym.spaces.Dict(
        {
            "place": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "told": gym.spaces.Dict({"kind": gym.spaces.Discrete(3, start=4)}),
        }
    )
    action_space = gym.spaces.Discrete(3)

    def __init__(self, longest: int = 12) -> None:
        self.longest = longest

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=2), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = self.place + self.np_random.normal(size=2) + 0.1 * action
        self.steps += 1
        ended = bool(self.np_random.random() < 0.1)
        return self._seen(), float(self.place[0]) + action, ended, self.steps == self.longest and not ended, {}

    def _seen(self) -> Any:
        return {"place": self.place.copy(), "told": {"kind": np.int64(4 + self.steps % 3)}}


def walks(mode: AutoresetMode, vectorised: Callable[..., Any] = gym.vector.SyncVectorEnv) -> Callable[..., Any]:
    return lambda num_envs: vectorised([Walk] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_no_mode_changes_an_episode(mode: AutoresetMode) -> None:
    single = make_vector(EnvConfig(env=Walk), ENVS, 5)
    native = make_vector(EnvConfig(env=walks(mode)), ENVS, 5, partial=True)
    assert isinstance(native._backend, NativeRows)
    assert native.lockstep == (mode is AutoresetMode.NEXT_STEP)
    assert native.spec.observation == single.spec.observation
    expected = streams(single, 80)
    assert streams(native, 80) == expected
    ends = np.array([[row[2:4] for row in stream[1:]] for stream in expected]).sum(axis=(0, 1))
    assert (ends > 3).all()  # terminal ones and time limits
    assert streams(native, 10) == streams(single, 10)  # after a reset in the middle, of the same seeds
    single.close()
    native.close()


def test_environments_in_processes_and_their_time_limit() -> None:
    def build(num_envs: int, max_episode_steps: int) -> Any:
        return gym.make_vec(
            "Acrobot-v1",
            num_envs,
            "async",
            {"autoreset_mode": "SameStep"},
            max_episode_steps=max_episode_steps,
        )

    limited = EnvConfig(env=build, max_episode_steps=9)
    native = make_vector(limited, 2, 1, partial=True)
    single = make_vector(EnvConfig(env="Acrobot-v1", max_episode_steps=9), 2, 1)
    assert streams(native, 30) == streams(single, 30)
    assert env_spec_and_limit(limited) == (native.spec, 9)
    native.close()
    single.close()


def test_ale_py_in_both_of_its_modes() -> None:
    def pong(mode: AutoresetMode) -> VectorEnv:
        def build(num_envs: int) -> Any:
            limit = {"max_num_frames_per_episode": 60, "stack_num": 1}
            return AtariVectorEnv("pong", num_envs, autoreset_mode=mode, num_threads=1, **limit)

        return make_vector(EnvConfig(env=build), 2, 3, partial=True)

    native, expected = pong(AutoresetMode.SAME_STEP), pong(AutoresetMode.NEXT_STEP)
    assert streams(native, 40) == streams(expected, 40)  # its final_obs is one array of all


@pytest.mark.parametrize("mode", OTHERS)
def test_in_lock_step_the_first_step_of_an_episode_is_not_seen(mode: AutoresetMode) -> None:
    native = make_vector(EnvConfig(env=walks(mode)), ENVS, 5)
    assert native.lockstep
    found = streams(native, 80)
    for stream in found:
        ended = False
        for _, reward, terminated, truncated, starts, _ in stream[1:]:
            assert bool(starts) == ended
            if starts:
                assert (reward, terminated, truncated) == (0.0, 0.0, 0.0)
            ended = bool(terminated or truncated)
    whole = streams(make_vector(EnvConfig(env=Walk), ENVS, 5), 30)
    for stream, expected in zip(found, whole, strict=True):  # the first episodes are whole, final observations too
        last = next(n for n, row in enumerate(expected) if n and row[-1])
        assert stream[: last + 1] == expected[: last + 1]
    native.close()


def test_single_environments_are_preferred_where_a_step_would_be_lost() -> None:
    gym.register("Walk-v0", entry_point=Walk, vector_entry_point=walks(AutoresetMode.SAME_STEP))
    gym.register("WalkTogether-v0", vector_entry_point=walks(AutoresetMode.SAME_STEP), max_episode_steps=None)
    try:
        assert isinstance(make_vector(EnvConfig(env="Walk-v0"), 2, 0)._backend, LoopRows)
        assert isinstance(make_vector(EnvConfig(env="Walk-v0"), 2, 0, partial=True)._backend, NativeRows)
        off = EnvConfig(env="Walk-v0", native_envs=False)
        assert isinstance(make_vector(off, 2, 0, partial=True)._backend, LoopRows)
        together = EnvConfig(env="WalkTogether-v0", native_envs=False)
        assert isinstance(make_vector(together, 2, 0)._backend, NativeRows)
        assert env_spec_and_limit(together) == (make_vector(EnvConfig(env=Walk), 1, 0).spec, None)
        with pytest.raises(EnvError, match=r"vectorised form only.*leave out last_action_reward"):
            make_vector(EnvConfig(env="WalkTogether-v0", last_action_reward=True), 2, 0)
        with pytest.raises(EnvError, match=r"vectorised form only.*leave out image_size"):
            make_vector(EnvConfig(env="WalkTogether-v0", image_size=84), 2, 0)
        assert not shrinks_images(together)
    finally:
        del gym.registry["Walk-v0"], gym.registry["WalkTogether-v0"]


class Forgets(gym.vector.VectorEnv[Any, Any, Any]):
    """Resets in the same step and tells no final observation; the second environment ends with every step."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs: int, truncates: bool = False, value: float = 1.0) -> None:
        self.num_envs, self.truncates, self.value = num_envs, truncates, value

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        ended, not_ended = np.arange(self.num_envs) == 1, np.zeros(self.num_envs, bool)
        ends = (not_ended, ended) if self.truncates else (ended, not_ended)
        return np.full((self.num_envs, 1), self.value, np.float32), np.ones(self.num_envs), *ends, {}


def test_an_unknown_final_observation_is_refused_only_where_it_is_worth_something() -> None:
    env = make_vector(EnvConfig(env=Forgets), 2, 0)
    env.reset()
    assert env.step(np.zeros(2, np.int64)).terminated.tolist() == [False, True]
    env = make_vector(EnvConfig(env=Forgets, env_kwargs={"truncates": True}), 2, 0)
    env.reset()
    with pytest.raises(EnvError, match="its infos have no 'final_obs'"):
        env.step(np.zeros(2, np.int64))


def test_values_that_are_not_finite_are_refused() -> None:
    env = make_vector(EnvConfig(env=Forgets, env_kwargs={"value": float("nan")}), 2, 0)
    env.reset()
    with pytest.raises(EnvError, match=r"number 0 of this actor\) returned NaN"):
        env.step(np.zeros(2, np.int64))


class Bright(Forgets):
    """Promises bytes."""

    single_observation_space = gym.spaces.Box(0, 255, (1,), np.uint8)


@pytest.mark.parametrize("value", [0.5, 300.0, -1.0, float("nan")])
def test_values_that_their_dtype_does_not_hold_are_refused(value: float) -> None:
    env = make_vector(EnvConfig(env=Bright, env_kwargs={"value": value}), 2, 0)
    env.reset()
    with pytest.raises(EnvError, match="'observation' of float32 values that uint8 does not hold"):
        env.step(np.zeros(2, np.int64))


def test_whole_numbers_of_another_dtype_are_taken() -> None:
    env = make_vector(EnvConfig(env=Bright, env_kwargs={"value": 255.0}), 2, 0)
    env.reset()
    assert env.step(np.zeros(2, np.int64)).observation["observation"].tolist() == [[255], [255]]


def test_an_environment_must_say_how_it_resets() -> None:
    class Silent(Forgets):
        metadata = {}  # noqa: RUF012

    with pytest.raises(EnvError, match="metadata must have 'autoreset_mode'"):
        make_vector(EnvConfig(env=Silent), 2, 0)
