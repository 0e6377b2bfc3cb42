from __future__ import annotations

import pytest

from apexrl import presets
from apexrl.errors import ConfigError


def test_the_names_that_are_promised() -> None:
    assert presets.names() == [
        "cartpole",
        "slow-cartpole",
        "position-cartpole",
        "catch",
        "lunarlander",
        "minatar-breakout",
        "pong",
        "pendulum",
        "lunarlander-continuous",
        "halfcheetah",
        "hopper",
    ]


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_knows_its_name_and_ends(name: str) -> None:
    preset = presets.preset(name)
    assert preset.config.preset == name
    assert preset.config.stop.stop_at_return is not None or preset.config.stop.env_steps
    assert preset.summary
    assert bool(preset.extra) == bool(preset.modules)


def test_pong_has_the_numbers_of_ape_x() -> None:
    config = presets.preset("pong").config
    assert config.env.atari
    assert (config.env.stack, config.env.reward_clip) == (4, 1.0)
    assert (config.agent.n_step, config.agent.gamma, config.agent.double, config.agent.dueling) == (3, 0.99, True, True)
    assert config.agent.optimizer == "rmsprop"
    assert config.agent.learning_rate == pytest.approx(6.25e-5)
    assert (config.agent.optimizer_eps, config.agent.rmsprop_decay, config.agent.gradient_clip) == (1.5e-7, 0.95, 40.0)
    assert (config.agent.target_period_updates, config.agent.image_units) == (2500, 512)
    assert (config.replay.alpha, config.replay.beta, config.replay.min_size) == (0.6, 0.4, 50_000)
    assert (config.learner.batch_size, config.actor.epsilon, config.actor.epsilon_alpha) == (512, 0.4, 7.0)


def test_unknown_presets_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'cartpol' \(did you mean 'cartpole'\?\)"):
        presets.preset("cartpol")


def test_a_missing_extra_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.presets.known.find_spec", lambda name: None)
    assert presets.preset("lunarlander").missing
    assert not presets.preset("cartpole").missing
