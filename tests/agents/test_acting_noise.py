"""Noise that explores: what each number is, and how those of one environment follow each other."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from signal_runs import Asked, Game, act

from apexrl.agents import recorded
from apexrl.agents.acting_noise import LEVELS, TIMES, ActingNoise
from apexrl.agents.sequence_batch import C, H
from apexrl.networks.distributions import Categorical
from apexrl.protocols import State

STEPS, ENVS = 1500, 64


def series(noise: ActingNoise) -> NDArray[np.float32]:
    """Noise of one action, [STEPS, ENVS]."""
    rng, state, found = np.random.default_rng(3), None, []
    for _ in range(STEPS):
        step, state = noise.normal(ENVS, state, rng)
        found.append(step[:, 0])
    return np.stack(found)


def correlation(found: NDArray[np.float32], lag: int) -> float:
    return float((found[lag:] * found[:-lag]).mean() / found.var())


def test_pink_noise_is_normal_and_correlated_as_its_parts_are() -> None:
    found = series(ActingNoise(1, pink=True))
    assert found.dtype == np.float32
    assert abs(found.mean()) < 0.1
    assert found.std() == pytest.approx(1.0, abs=0.05)
    for lag in (1, 4, 32):
        assert correlation(found, lag) == pytest.approx(np.exp(-lag / np.array(TIMES)).mean(), abs=0.05)


def test_a_share_of_it_may_be_white() -> None:
    found = series(ActingNoise(1, pink=True, white=0.5))
    assert found.std() == pytest.approx(1.0, abs=0.05)
    for lag in (1, 32):
        assert correlation(found, lag) == pytest.approx(0.5 * np.exp(-lag / np.array(TIMES)).mean(), abs=0.05)


def test_white_noise_is_independent() -> None:
    found = series(ActingNoise(1, pink=False))
    assert abs(correlation(found, 1)) < 0.02
    assert found.std() == pytest.approx(1.0, abs=0.02)


def test_every_octave_of_pink_noise_has_as_much_power() -> None:
    power = (np.abs(np.fft.rfft(series(ActingNoise(1, pink=True)), axis=0)) ** 2).mean(axis=1)
    frequency = np.arange(len(power)) / STEPS
    octaves = [power[(low <= frequency) & (frequency < 2 * low)].sum() for low in 2.0 ** np.arange(-8.0, -2.0)]
    assert max(octaves) / min(octaves) < 1.6


def test_an_episode_begins_with_noise_of_its_own() -> None:
    noise, rng = ActingNoise(2, pink=True), np.random.default_rng(0)
    state: State = {LEVELS: np.full((2, len(TIMES), 2), 50.0, np.float32)}
    assert state is not None
    state[LEVELS][1] = 0.0  # the second environment begins
    found, _ = noise.normal(2, state, rng)
    assert found[0].min() > 40.0
    assert np.abs(found[1]).max() < 6.0


@pytest.mark.parametrize("pink", [False, True])
def test_uniform_noise_draws_each_alternative_as_often_as_its_probability_says(pink: bool) -> None:
    noise, rng, state, found = ActingNoise(1, pink), np.random.default_rng(3), None, []
    logits = np.tile(np.log(np.array([0.5, 0.3, 0.2], np.float32)), (ENVS, 1))
    for _ in range(STEPS):
        uniform, state = noise.uniform(ENVS, state, rng)
        found.append(Categorical((3,), vector=False).drawn(logits, uniform).action)
    chosen = np.stack(found)
    np.testing.assert_allclose(np.bincount(chosen.ravel()) / chosen.size, [0.5, 0.3, 0.2], atol=0.03)
    repeated = float((chosen[1:] == chosen[:-1]).mean())
    assert repeated > 0.6 if pink else repeated == pytest.approx(0.38, abs=0.01)


def test_uniform_noise_is_below_1_however_great_the_normal_number() -> None:
    state: State = {LEVELS: np.full((1, len(TIMES), 1), 50.0, np.float32)}
    uniform, _ = ActingNoise(1, pink=True).uniform(1, state, np.random.default_rng(0))
    assert 0.999 < uniform[0, 0] < 1.0


@pytest.mark.parametrize("pink", [False, True])
def test_random_actions_are_uniform(pink: bool) -> None:
    noise, rng = ActingNoise(1, pink), np.random.default_rng(1)
    exploration = np.full(20_000, np.inf, np.float32)
    found, _ = noise.explored(np.zeros((20_000, 1), np.float32), exploration, None, rng)
    counts, _ = np.histogram(found, bins=10, range=(-1, 1))
    assert counts.min() > 1800
    assert counts.max() < 2200


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        *((name, "box") for name in ("sac", "crossq", "td3", "ddpg", "d4pg", "ppo")),
        ("ppo", "discrete"),
        ("discrete_sac", "discrete"),
    ],
)
def test_agents_carry_it_from_step_to_step(name: str, asked: Asked) -> None:
    game = Game(name, "vector", asked, pink_noise=True)
    try:
        agent = game.agent()
        first = act(agent, game.seen(3), 0.3)
        assert first.state[LEVELS].shape == (3, len(TIMES), *(game.spec.action.shape or (1,)))
        second = act(agent, game.seen(3), 0.3, state=first.state)
        kept = first.state[LEVELS][:, -1] * np.exp(-1 / TIMES[-1])
        assert np.abs(second.state[LEVELS][:, -1] - kept).max() < 0.5  # the slowest part has hardly moved
        assert act(agent, game.seen(3), 0.3, greedy=True).state is None
    finally:
        game.close()


def test_a_policy_with_memory_carries_both() -> None:
    game = Game("impala", "vector", "box", pink_noise=True, memory="lstm")
    try:
        agent = game.agent()
        first = act(agent, game.seen(3))
        second = act(agent, game.seen(3), state=first.state)
        assert first.state.keys() == second.state.keys() == {H, C, LEVELS}
        assert np.array_equal(second.extras[LEVELS], first.state[LEVELS])  # recorded as it was before the step
        assert second.extras.keys() == recorded(agent).keys()
    finally:
        game.close()


def test_noise_begins_where_a_state_holds_none_of_it() -> None:
    noise = ActingNoise(2, pink=True)
    begun, _ = noise.normal(3, None, np.random.default_rng(0))
    found, after = noise.normal(3, {"lstm_h": np.ones((3, 4), np.float32)}, np.random.default_rng(0))
    assert np.array_equal(found, begun)
    assert after is not None
    assert set(after) == {LEVELS}
