"""What a sweep searches, and between which values."""

from __future__ import annotations

import dataclasses

import pytest

from apexrl import presets
from apexrl.agents import AGENTS, with_agent
from apexrl.config import Config
from apexrl.config.convert import flat, override
from apexrl.errors import ConfigError
from apexrl.presets.unseen import assumed_start
from apexrl.sweep.search_space import Dimension, search_space

CARTPOLE = presets.preset("cartpole").config


def one(config: Config, word: str) -> Dimension:
    (found,) = search_space(config, [word])
    return found


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_has_a_space_whose_own_values_lie_inside_and_whose_ends_are_allowed(agent: str) -> None:
    config = assumed_start(agent, "", "default")
    space = search_space(config)
    values = flat(config)
    assert "learning_rate" in {dimension.setting for dimension in space}
    for dimension in space:
        searched = dimension.to_searched(values[dimension.setting])
        assert searched is not None, dimension
        assert dimension.to_setting(searched) == pytest.approx(values[dimension.setting], rel=1e-3)
        for end in dimension.ends:
            override(config, {dimension.setting: dimension.to_setting(end)})
    # whatever is off, or not read, is left out
    assert all(values[dimension.setting] for dimension in space)


def test_agents_that_follow_a_target_softly_have_no_period_to_search() -> None:
    soft = {dimension.setting for dimension in search_space(with_agent(Config(), "sac"))}
    assert "polyak" in soft
    assert "target_period_updates" not in soft
    assert "target_period_updates" in {dimension.setting for dimension in search_space(CARTPOLE)}


def test_step_sizes_are_searched_by_decades_and_discounts_by_their_distance_from_one() -> None:
    step = one(CARTPOLE, "learning_rate")
    assert (step.low, step.high, step.log) == pytest.approx((2.3e-4, 2.3e-2, True))
    gamma = one(CARTPOLE, "gamma")
    assert (gamma.label, gamma.log, gamma.from_one) == ("1 - gamma", True, True)
    assert (gamma.low, gamma.high) == pytest.approx((0.9, 0.999))
    assert gamma.ends == pytest.approx((0.001, 0.1))
    assert gamma.to_setting(0.012345) == pytest.approx(0.98765, abs=1e-5)


def test_ranges_and_choices_of_ones_own() -> None:
    assert one(CARTPOLE, "batch-size=32..256") == Dimension("batch_size", "int", 32, 256, False)
    assert one(CARTPOLE, "batch_size=16..256").log
    hidden = one(CARTPOLE, "hidden=64 64,256 256")
    assert hidden.choices == ("64 64", "256 256")
    assert hidden.to_setting("256 256") == (256, 256)
    assert one(CARTPOLE, "hidden").choices == ("64 64", "128 128", "256 256")
    assert one(CARTPOLE, "double").choices == (False, True)
    assert one(CARTPOLE, "double=yes,no").choices == (True, False)
    assert one(CARTPOLE, "optimizer=adam,sgd").choices == ("adam", "sgd")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("learning_rat", "did you mean 'learning_rate'"),
        ("learning_rate=1..0.1", "not less"),
        ("learning_rate=a..b", "no range of numbers"),
        ("learning_rate=-1..1", "must be positive"),
        ("batch_size=1.5..4", "whole number"),
        ("clip_ratio", "means nothing to agent"),
        ("polyak", "no range around --polyak 0"),
        ("hidden=5", "LOW..HIGH"),
        ("optimizer=adam,best", "cannot be 'best'"),
        ("env_steps=1..9", "choose settings of"),
        ("v_min", "means nothing"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_the_reason(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        search_space(CARTPOLE, [word])


def test_a_setting_is_searched_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        search_space(CARTPOLE, ["gamma", "gamma=0.9..0.99"])


def test_a_space_is_whatever_a_file_holds() -> None:
    import msgspec

    space = search_space(CARTPOLE, ["gamma", "hidden", "batch_size", "double"])
    assert msgspec.json.decode(msgspec.json.encode(space), type=tuple[Dimension, ...]) == space
    assert dataclasses.replace(space[0], low=0.5) != space[0]
