"""Atari games in both of our forms, step by step against Gymnasium's preprocessing and against each other."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from apexrl.config import EnvConfig
from apexrl.envs import make_env, make_vector
from apexrl.envs.atari_game import MOST_NO_OPS, NoOps, emulator_seed
from apexrl.envs.atari_rows import AtariRows
from apexrl.envs.lockstep import LoopRows
from apexrl.envs.threaded import ThreadRows

BREAKOUT = "ALE/Breakout-v5"


class OurNoOps:
    """Stands for Gymnasium's generator, which draws 1 … 30."""

    def __init__(self, seed: int) -> None:
        self.draws = NoOps(MOST_NO_OPS, seed)

    def integers(self, low: int, high: int) -> int:
        assert (low, high) == (1, MOST_NO_OPS + 1)
        return self.draws.draw()


def gymnasium_game(env_id: str, seed: int, **kwargs: Any) -> gym.Env[Any, Any]:
    """Gymnasium's preprocessing whose seeds and no-ops are ours."""
    game: Any = gym.make(env_id, frameskip=1, disable_env_checker=True, **kwargs)

    def seed_game(_: int | None = None) -> tuple[int, int]:
        game.unwrapped.ale.setInt("random_seed", seed)
        game.unwrapped._np_random = OurNoOps(seed)
        return seed, seed

    game.unwrapped.seed_game = seed_game
    return gym.wrappers.AtariPreprocessing(game, noop_max=MOST_NO_OPS, frame_skip=4, screen_size=84)


@pytest.mark.parametrize(("env_id", "sticky", "steps"), [("ALE/Pong-v5", 0.0, 120), (BREAKOUT, 0.25, 250)])
def test_a_game_is_gymnasiums_step_by_step(env_id: str, sticky: float, steps: int) -> None:
    kwargs = {"repeat_action_probability": sticky}
    ours: Any = make_env(EnvConfig(env=env_id, env_kwargs=kwargs, atari=True, life_loss_ends=False))
    seed = 2**32 - 5
    theirs = gymnasium_game(env_id, emulator_seed(seed), **kwargs)
    np.testing.assert_array_equal(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
    actions = np.random.default_rng(0)
    games = 0
    for _ in range(steps):
        action = int(actions.integers(ours.action_space.n))
        (seen, *results, info), (expected, *wanted, about) = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(seen, expected)
        assert results == wanted
        assert info["lives"] == about["lives"]
        if results[1]:
            games += 1
            np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])
    assert games or env_id != BREAKOUT
    ours.close()


@pytest.mark.parametrize(
    ("wanted", "alone", "ends", "cuts"),
    [
        (EnvConfig(env="ALE/Pong-v5", env_kwargs={"max_num_frames_per_episode": 170}), False, False, True),
        (EnvConfig(env=BREAKOUT, env_kwargs={"repeat_action_probability": 0.25}), True, True, False),
        (EnvConfig(env="BreakoutNoFrameskip-v4", max_episode_steps=31), True, True, True),
        (EnvConfig(env=BREAKOUT, life_loss_ends=False, env_kwargs={"full_action_space": True}), False, True, False),
    ],
    ids=["frame limit", "lives", "step limit", "whole games"],
)
def test_native_rows_are_those_of_single_games_step_by_step(
    wanted: EnvConfig, alone: bool, ends: bool, cuts: bool
) -> None:
    config = EnvConfig(**{**vars(wanted), "atari": True, "reward_clip": 1.0})
    single, native = make_vector(config, 2, 2**31 + 5), make_vector(config, 2, 2**31 + 5, cores=2)
    assert isinstance(native._backend, AtariRows)
    assert native._backend._alone == alone
    assert (native.spec.observation, native.spec.action) == (single.spec.observation, single.spec.action)
    actions = np.random.default_rng(1)
    episodes, ended, cut = 0, 0, 0
    for seed, steps in ((None, 40), (7, 230)):  # a second reset begins anew, also behind a lost life
        seen = native.reset(seed)["observation"]
        np.testing.assert_array_equal(seen, single.reset(seed)["observation"])
        for _ in range(steps):
            before = seen.copy()
            chosen = actions.integers(native.spec.action.n, size=2)
            row, expected = native.step(chosen), single.step(chosen)
            np.testing.assert_array_equal(seen, before)  # what was handed out stays as it was
            for name in ("reward", "terminated", "truncated", "starts"):
                np.testing.assert_array_equal(getattr(row, name), getattr(expected, name), name)
            seen = row.observation["observation"]
            np.testing.assert_array_equal(seen, expected.observation["observation"])
            assert row.episodes == expected.episodes
            episodes += len(row.episodes)
            ended, cut = ended + int(row.terminated.sum()), cut + int(row.truncated.sum())
    assert episodes
    assert (bool(ended), bool(cut)) == (ends, cuts)
    single.close()
    native.close()


def test_native_rows_where_several_cores_play_and_nothing_is_around_the_game() -> None:
    game = EnvConfig(env=BREAKOUT, atari=True)

    def backend(cores: int = 2, envs: int = 2, vector: Any = "sync", **changes: Any) -> type:
        made = make_vector(EnvConfig(**{**vars(game), **changes}), envs, 0, vector, cores=cores)
        made.close()
        return type(made._backend)

    assert backend() is AtariRows
    assert backend(cores=1) is LoopRows  # as fast, without threads
    assert backend(envs=1) is LoopRows
    assert backend(native_envs=False) is LoopRows
    assert backend(last_action_reward=True) is LoopRows
    assert backend(env_kwargs={"difficulty": 1}) is LoopRows
    assert backend(vector="threads") is ThreadRows
    assert backend(atari=False) is LoopRows  # ale-py's vector form shows other observations
