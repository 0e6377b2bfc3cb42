"""What an agent's name stands for, over any configuration."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from apexrl import agents, presets
from apexrl.agents import AGENTS, check_evaluation, check_identity, check_in_use
from apexrl.config import AgentConfig, Config, convert
from apexrl.config.convert import flat, override
from apexrl.errors import ConfigError
from apexrl.presets import PRESETS, with_agent

# Names over configurations


@pytest.mark.parametrize("preset", [*PRESETS, ""])
def test_nothing_of_the_agent_before_is_left(preset: str) -> None:
    """Whatever was chosen before: the same configuration."""
    start = PRESETS[preset].config if preset else Config()
    straight = {name: with_agent(start, name) for name in AGENTS}
    for before, after in product(AGENTS, AGENTS):
        assert with_agent(straight[before], after) == straight[after]
    assert straight[start.agent.agent] == start


@pytest.mark.parametrize("preset", PRESETS)
def test_a_name_sets_what_it_stands_for_and_keeps_the_rest_of_the_preset(preset: str) -> None:
    known = PRESETS[preset]
    for name, agent in AGENTS.items():
        config = with_agent(known.config, name)
        stood = {**agent.settings, **known.agents.get(name, {})}
        assert flat(config) == {**flat(known.ground), **stood, "agent": name}
        convert.check_values(config)
        check_identity(config.agent)


def test_counts_of_sequences_are_not_taken_for_transitions() -> None:
    config = with_agent(PRESETS["position-cartpole"].config, "dqn")
    assert (config.replay, config.learner, config.agent.hidden) == (
        PRESETS["cartpole"].config.replay,
        PRESETS["cartpole"].config.learner,
        (128, 128),
    )
    assert (config.agent.n_step, config.agent.optimizer_eps) == (3, 1e-8)


def test_an_agent_of_your_own_takes_a_preset_as_it_is() -> None:
    start = PRESETS["pendulum"].config
    assert flat(with_agent(start, "my.module:Agent")) == {**flat(start), "agent": "my.module:Agent"}


def test_what_a_person_has_changed_stays_unless_the_name_sets_it() -> None:
    start = override(PRESETS["pendulum"].config, {"gamma": 0.5, "env_steps": 7, "reward_clip": 3.0})
    config = with_agent(start, "td3")
    assert (config.agent.gamma, config.stop.env_steps, config.env.reward_clip) == (0.98, 7, 3.0)


# Identity


@pytest.mark.parametrize("name", AGENTS)
def test_a_bare_name_is_refused_where_defaults_make_another_agent(name: str) -> None:
    info, defaults = AGENTS[name], AgentConfig()
    bare = AgentConfig(agent=name)
    if any(info.settings[key] != getattr(defaults, key) for key in info.identity):
        with pytest.raises(ConfigError, match=f"^agent {name} stands for --.*--agent {name} or apexrl.train"):
            check_identity(bare)
    else:
        check_identity(bare)
    check_identity(agents.with_agent(Config(), name).agent)


@pytest.mark.parametrize(
    ("name", "change", "instead"),
    [
        ("dueling_dqn", {"dueling": False}, "double_dqn"),
        ("dueling_dqn", {"double": False}, "dqn, to which switches can be added"),
        ("c51", {"distribution": "quantile"}, "qr_dqn"),
        ("rainbow", {"distribution": "expected"}, "dqn, to which"),
        ("noisy_dqn", {"noisy": False}, "dqn"),
        ("munchausen_dqn", {"munchausen": False}, "dqn"),
        ("bires_ddpg", {"residual": 0.0}, "ddpg"),
        ("droq", {"critic_dropout": 0.0, "critic_layer_norm": False}, "redq"),
        ("impala", {"correction": "none"}, "a2c"),
        ("impala", {"surrogate": "clipped"}, "appo"),
        ("appo", {"correction": "none"}, "ppo"),
    ],
)
def test_a_switch_that_makes_another_agent_is_refused(name: str, change: dict[str, Any], instead: str) -> None:
    with pytest.raises(ConfigError, match=f": choose {instead}"):
        check_identity(override(agents.with_agent(Config(), name), change).agent)


@pytest.mark.parametrize("name", ["noisy_dqn", "rainbow"])
def test_noise_of_zero_is_none(name: str) -> None:
    silent = override(agents.with_agent(Config(), name), {"noisy_sigma": 0.0})
    with pytest.raises(ConfigError, match=f"^agent {name} explores by noise, and --noisy-sigma 0 leaves none: "):
        check_identity(silent.agent)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dqn", {"double": True, "noisy": True, "distribution": "quantile"}),
        ("munchausen_dqn", {"distribution": "implicit_quantile"}),
        ("bires_ddpg", {"residual": 0.3}),
        ("r2d2", {"double": False, "dueling": False}),
        ("ppo", {"memory": "lstm", "epochs": 1, "optimizer": "rmsprop"}),
        ("my.module:Agent", {"double": False}),
    ],
)
def test_what_a_name_leaves_open_may_be_set(name: str, change: dict[str, Any]) -> None:
    check_identity(override(agents.with_agent(Config(), name), change).agent)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("td3", {}, "--eval-actions sampled means nothing to agent td3, whose policy is deterministic"),
        ("dqn", {}, "agent dqn, whose actions are random by ε alone: say how often with --eval-epsilon"),
        ("r2d2", {}, "agent r2d2, whose actions are random by ε alone"),
        ("dqn", {"eval_epsilon": 0.05}, ""),
        ("dqn", {"noisy": True}, ""),
        ("rainbow", {}, ""),
        ("sac", {}, ""),
        ("ppo", {}, ""),
        ("my.module:Agent", {}, ""),
    ],
)
def test_only_a_random_policy_is_sampled_in_evaluations(name: str, change: dict[str, Any], told: str) -> None:
    config = override(agents.with_agent(Config(), name), {"eval_actions": "sampled", **change})
    if told:
        with pytest.raises(ConfigError, match=told):
            check_evaluation(config)
    else:
        check_evaluation(config)
    check_evaluation(override(config, {"eval_actions": "greedy"}))


def test_life_losses_are_the_atari_pipelines() -> None:
    off = override(Config(), {"life_loss_ends": False})
    with pytest.raises(ConfigError, match="--life-loss-ends means nothing with --no-atari"):
        check_in_use(off, ["life_loss_ends"])
    check_in_use(override(off, {"atari": True}), ["life_loss_ends"])


def test_in_python_the_same_is_refused() -> None:
    import apexrl

    with pytest.raises(ConfigError, match=r"^agent rainbow stands for --noisy"):
        apexrl.train(Config(agent=AgentConfig(agent="rainbow")))
    with pytest.raises(ConfigError, match=r"^--atoms means nothing with --distribution expected"):
        apexrl.train("cartpole", agent="dqn", atoms=5)
    with pytest.raises(ConfigError, match=r"^--beta means nothing with --alpha 0: leave it out, or change the other"):
        apexrl.train("cartpole", alpha=0.0, beta=0.5)
    with pytest.raises(ConfigError, match=r"^--v-min 3 must be less than --v-max 2"):
        apexrl.train("cartpole", agent="c51", v_min=3.0, v_max=2.0)
    assert presets.preset("cartpole").config.agent.agent == "dueling_dqn"
