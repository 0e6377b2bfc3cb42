"""Facts of an environment before a run, and that one which hangs or crashes harms nobody."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import EnvError, SpecError
from apexrl.launch import env_look
from apexrl.launch.env_look import env_facts
from apexrl.shared.thread_seconds import ThreadSeconds


def config(env: Any, **settings: Any) -> Config:
    return override(Config(), {"env": env, **settings})


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_look, "MEASURED_SECONDS", 0.05)


class Sleeps(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(3, start=1)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert 1 <= action <= 3
        time.sleep(self.seconds)
        return np.zeros(2, np.float32), 0.0, False, True, {}


class Huge(Sleeps):
    action_space = gym.spaces.Discrete(2_000_000)  # type: ignore[assignment]


def test_more_actions_than_a_run_takes_are_refused_in_words() -> None:
    with pytest.raises(SpecError, match=r"Huge is larger than a run can be: 2000000 choices .* at most 1048576 may be"):
        env_facts(config(Huge, env_kwargs={"seconds": 0.0}), measure=False)


class Codes(Sleeps):
    """Codes of 0 … ``most`` in an image of ``side``, or in a vector where that is 0; fails after ``steps`` steps."""

    def __init__(self, most: int, side: int, steps: int = 1_000_000) -> None:
        super().__init__(0.0)
        self._shape = (side, side, 3) if side else (5,)
        board = gym.spaces.Box(0, 255, self._shape, np.uint8)
        self.observation_space = gym.spaces.Dict(board=board, row=gym.spaces.Discrete(200))  # type: ignore[assignment]
        self._most, self._steps = most, steps

    def _board(self, largest: int) -> Any:
        board = np.zeros(self._shape, np.uint8)
        board[..., 2] = largest
        return {"board": board, "row": np.int64(150)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._board(0), {}

    def step(self, action: Any) -> Any:
        self._steps -= 1
        if self._steps < 0:
            raise RuntimeError("stepped too often")
        return self._board(self._most), 0.0, False, False, {}


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize(
    ("most", "side", "steps", "largest", "bound"),
    [
        (10, 7, 10**6, 10, 16),
        (8, 7, 10**6, 8, 8),
        (1, 7, 10**6, 1, 1),
        (64, 7, 10**6, 64, 64),
        (65, 7, 10**6, 65, 0),
        (0, 7, 10**6, 0, 0),
        (10, 0, 10**6, 10, 16),
        (10, 64, 10**6, 0, 0),  # not looked at
        (10, 7, 20, 0, 0),  # it fails
    ],
)
def test_codes_are_told_by_random_steps(
    most: int, side: int, steps: int, largest: int, bound: int, serial: bool
) -> None:
    kwargs = {"most": most, "side": side, "steps": steps}
    facts = env_facts(config(Codes, env_kwargs=kwargs, serial=serial), measure=False)
    assert (facts.largest_byte, facts.codes_bound, facts.step_seconds) == (largest, bound, None)


class Lists(Codes):
    """Shows int64 in place of bytes, as runs allow, beside a text, whose bytes are no codes. One code comes late."""

    def __init__(self, late: int) -> None:
        super().__init__(5, 7)
        self.observation_space["say"] = gym.spaces.Text(9)  # type: ignore[index]
        self._late, self._made = late, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._shown(super().reset()[0]), {}

    def step(self, action: Any) -> Any:
        self._made += 1
        self._most = 20 if self._made == self._late else 5
        seen, *others = super().step(action)
        return self._shown(seen), *others

    def _shown(self, seen: Any) -> Any:
        return {"board": seen["board"].astype(np.int64), "say": "zzz"}


@pytest.mark.parametrize(("late", "largest"), [(500, 20), (501, 5)])
def test_codes_are_looked_at_in_500_steps_whatever_array_shows_them(
    late: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_look, "MEASURED_SECONDS", 60.0)
    facts = env_facts(config(Lists, env_kwargs={"late": late}, serial=True), measure=False)
    assert facts.largest_byte == largest


class Ends(Sleeps):
    def step(self, action: Any) -> Any:
        os._exit(3)


@pytest.mark.parametrize("serial", [True, False])
def test_facts_of_an_environment(serial: bool) -> None:
    facts = env_facts(config("CartPole-v1", serial=serial), measure=False)
    assert (facts.spec.action.n, facts.time_limit, facts.step_seconds, facts.image_side) == (2, 500, None, 0)
    facts = env_facts(config(Sleeps, env_kwargs={"seconds": 0.02}, max_episode_steps=7, serial=serial), measure=True)
    assert (facts.spec.action.n, facts.spec.action.start, facts.time_limit) == (3, 1, 7)
    assert facts.step_seconds is not None
    assert facts.step_seconds >= 0.02


def test_an_environment_that_fails_at_its_first_steps_has_a_speed_that_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(env_look, "_SLOWEST_SECONDS", 0.3)
    for env, settings in (
        ("apexrl.envs.faulty:Hangs-v0", {"env_kwargs": {"at_step": 1}}),
        ("apexrl.envs.faulty:Raises-v0", {"env_kwargs": {"at_step": 1}}),
        (Ends, {"env_kwargs": {"seconds": 0.0}}),
    ):
        facts = env_facts(config(env, **settings), measure=True)
        assert facts.step_seconds is None
        assert facts.spec.action.n in (2, 3)


def test_an_environment_that_cannot_be_made_is_told() -> None:
    with pytest.raises(EnvError, match="no licence"):
        env_facts(config("apexrl.envs.faulty:RaisesOnMake-v0"), measure=True)
    with pytest.raises(EnvError, match=r"longer than 0\.2 s"):
        env_facts(config(_never, env_timeout=0.2), measure=False)
    with pytest.raises(SpecError, match="OneOf"):
        env_facts(config(_one_of), measure=False)


def _never() -> Any:
    time.sleep(3600.0)


def _one_of() -> Any:
    env = Sleeps(0.0)
    env.observation_space = gym.spaces.OneOf((gym.spaces.Discrete(2),))  # type: ignore[assignment]
    return env


def test_time_in_which_other_work_had_the_core_makes_no_step_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = config(Sleeps, env_kwargs={"seconds": 0.01}, serial=True)
    alone = env_facts(sleeps, measure=True).step_seconds
    waited = lambda: ThreadSeconds(0.0, time.perf_counter())  # noqa: E731  # for a core, all the time
    monkeypatch.setattr("apexrl.shared.thread_seconds.thread_seconds", waited)
    beside = env_facts(sleeps, measure=True).step_seconds
    assert alone is not None
    assert beside is not None
    assert beside < 0.005 < alone
