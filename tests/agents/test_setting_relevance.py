"""Which settings an agent reads: each changes something, and what it is said not to read changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from signal_runs import Game, act, asks

from apexrl import agents
from apexrl.agents import AGENTS, agent_class, check_in_use, check_read, unread
from apexrl.agents.setting_relevance import READS, SOME, idle
from apexrl.config import AgentConfig, Config
from apexrl.config.convert import override
from apexrl.config.settings import as_flag
from apexrl.errors import AgentError, ConfigError

KEPT = {  # of the replay, from which all but unrolls are drawn, and of the actor: no agent sees them
    *("n_step", "capacity", "alpha", "beta", "priority_eps", "remover", "remover_alpha", "trim_every"),
    *("recency_half_life", "lag_half_life", "dataset", "dataset_share", "hindsight", "hindsight_share"),
    *("min_size", "updates_per_step", "insert_band", "random_start", "compress_images"),
}
SIGMAS = {"sigma", "sigma_alpha", "sigma_least"}
OWN = {entry.name for entry in dataclasses.fields(AgentConfig)} | {"epsilon", "epsilon_alpha"} | SIGMAS


@pytest.mark.parametrize("name", AGENTS)
def test_a_name_sets_only_what_its_agent_reads(name: str) -> None:
    assert not AGENTS[name].settings.keys() & unread(name)
    assert not set(AGENTS[name].settings) & idle(agents.with_agent(Config(), name)).keys()


# Another value than the small game's, for everything that only some agents read.
OTHER: dict[str, Any] = {
    "noisy_sigma": 0.1,
    "noise_period": 3,
    "munchausen_alpha": 0.3,
    "munchausen_temperature": 0.5,
    "munchausen_clip": -1e-3,
    "quantiles": 5,
    "quantile_samples": 6,
    "cosines": 5,
    "atoms": 7,
    "v_min": -3.0,
    "v_max": 5.0,
    "critics": 4,
    "dropped_quantiles": 0,
    "target_critics": 1,
    "critic_dropout": 0.4,
    "critic_hidden": (7,),
    "policy_learning_rate": 0.05,
    "policy_period_updates": 4,
    "temperature": 0.5,
    "initial_temperature": 2.0,
    "temperature_learning_rate": 0.1,
    "target_entropy": -7.0,
    "huber": 1e-3,
    "reset_period_updates": 2,
    "reset_until_updates": 4,
    "shrink_factor": 0.9,
    "residual": 0.4,
    "target_noise": 0.9,
    "target_noise_clip": 1e-4,
    "sequence_length": 3,
    "sequence_stride": 1,
    "burn_in": 1,
    "memory": "gru",
    "recurrent_units": 5,
    "memory_layers": 2,
    "memory_heads": 2,
    "memory_context": 3,
    "rescaling_eps": 0.3,
    "priority_eta": 0.1,
    "multi_step": "retrace",
    "trace_lambda": 0.1,
    "polyak": 0.4,
    "target_period_updates": 1,
    "optimizer": "rmsprop",
    "optimizer_eps": 0.3,
    "learning_rate": 0.01,
    "gradient_clip": 1e-4,
    "first_moment_decay": 0.3,
    "second_moment_decay": 0.7,
    "weight_decay": 5.0,
    "rmsprop_decay": 0.3,
    "momentum": 0.9,
    "unroll_length": 3,
    "correction": "vtrace",
    "gae_lambda": 0.5,
    "rho_clip": 0.5,
    "c_clip": 0.4,
    "surrogate": "clipped",
    "clip_ratio": 0.01,
    "probability_floor": 0.3,
    "value_coefficient": 0.1,
    "value_clip": 1e-3,
    "entropy_coefficient": 0.3,
    "epochs": 2,
    "minibatches": 2,
    "cloned_value_weight": 0.7,
    "conservative_weight": 0.3,
    "conservative_actions": 2,
    "expectile": 0.9,
    "advantage_scale": 1.0,
    "advantage_clip": 0.01,
    "mixer": "monotonic",
    "mixing_units": 5,
    "policies": 2,
    "gamma_least": 0.5,
}
SECOND = {
    "optimizer": "adam",
    "epochs": 3,
    "minibatches": 3,
    "correction": "none",
    "surrogate": "log_prob",
    "mixer": "sum",
}  # where it has OTHER's already
FLIPPED = {
    *("double", "dueling", "target_acts", "noisy", "munchausen", "centered", "layer_norm"),
    *("critic_layer_norm", "eager_targets"),
    *("normalize_advantages", "summed_loss", "separate_values", "central_value", "popart"),
}
DRAWN = {"anneal_horizon", "n_step_start", "gamma_start", "horizon_updates"}  # what batches are drawn (test_resets)
EXPLORATION = {
    "epsilon",
    "epsilon_alpha",
    *SIGMAS,
}  # of the actor, which hands it over
IMAGES = {"encoder", "precision", "encoder_width"}  # means nothing to vectors: tests/networks/test_encoders.py
# change what acting adds, not what is learned (test_acting_noise, test_dqn_family)
ACTING = {"pink_noise", "noise_period"}
BOXES = {"initial_std", "least_std"}  # means nothing to choices: test_actor_critic
TOLD = {"anneal", "learning_rate_end", "exploration_steps", "beta_end"}  # roles say how far the run is

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in AGENTS if name not in ("double_dqn", "dueling_dqn", "rainbow", "bbf")),
    ("dqn", {"polyak": 0.1}),
    ("dqn", {"optimizer": "rmsprop", "rmsprop_decay": 0.5}),  # the mean square soon forgets that it began at 1
    ("dqn", {"optimizer": "adamw"}),
    ("dqn", {"reset_period_updates": 3}),
    ("dqn", {"double": True, "noisy": True, "distribution": "quantile"}),
    ("r2d2", {"polyak": 0.1}),
    ("r2d2", {"policies": 3}),
    ("td3", {"polyak": 0.0, "optimizer": "rmsprop", "rmsprop_decay": 0.5}),
    ("td3", {"target_noise": 0.0}),
    ("sac", {"temperature": 0.2, "polyak": 0.0}),
    ("crossq", {"optimizer": "rmsprop", "rmsprop_decay": 0.5}),
    ("discrete_sac", {"temperature": 0.2}),
    ("impala", {"memory": "lstm"}),
    ("dqn", {"memory": "transformer", "double": True}),
    ("sac", {"memory": "lstm"}),
    ("a2c", {"optimizer": "sgd", "momentum": 0.5}),
    ("ppo", {"optimizer": "adagrad"}),
]


def bits(agent: Any) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in agent.weights().items()}


def outcome(game: Game, batches: list[Any], config: AgentConfig) -> Iterator[Any]:
    """All that a run of the agent with these settings could tell of them, in time order: what it is made of, what each
    update makes of it, how it acts."""
    try:
        agent: Any = agent_class(game.name)(game.spec, config, "cpu", 1)
    except AgentError:
        yield "refused"
        return
    fields = {name: (field.shape, field.dtype) for name, field in agent.step_spec.items()}
    yield fields, getattr(agent, "item", None), bits(agent)
    for batch in batches:
        yield np.asarray(agent.update(agent.prepare(batch)).priorities).tolist(), bits(agent)
    yield act(agent, game.seen(3), 0.0).actions.tolist()


@pytest.mark.parametrize(
    ("name", "change"),
    [pytest.param(*one, marks=[pytest.mark.long] if one[1] else [], id="-".join(map(str, one))) for one in VARIANTS],
)
def test_what_is_offered_matters_and_what_is_not_does_not(name: str, change: dict[str, Any]) -> None:
    # a large step, so that online and target network soon disagree of the best action
    game = Game(name, "vector", asks(name)[0], n_step=1, learning_rate=0.02, **change)
    try:
        start, batches = game.config.agent, game.batches(8)
        means_nothing = unread(name) | idle(game.config).keys()
        whole = list(outcome(game, batches, start))
        others = {key: OTHER[key] for key in OTHER if key in means_nothing}
        others |= {key: not getattr(start, key) for key in FLIPPED & means_nothing}
        assert list(outcome(game, batches, dataclasses.replace(start, **others))) == whole
        for key in (
            SOME - means_nothing - EXPLORATION - ACTING - TOLD - KEPT - DRAWN - IMAGES - BOXES - {"distribution"}
        ):
            value = not getattr(start, key) if key in FLIPPED else OTHER[key]
            value = SECOND[key] if value == getattr(start, key) else value
            changed = outcome(game, batches, dataclasses.replace(start, **{key: value}))
            assert any(one != other for one, other in zip_longest(changed, whole)), key  # no further than needed
    finally:
        game.close()


# Of the replay and of the actor: what changes nothing beside a setting that switches it off, and something without.
SWITCHED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("dqn", {"alpha": 0.0}, {"alpha": 0.6}, {"beta": 0.9}),
    ("dqn", {"anneal_horizon": False}, {}, {"n_step_start": 7}),
    ("sac", {"alpha": 0.0}, {"alpha": 0.6}, {"priority_eps": 0.9}),
    ("dqn", {"remover": "fifo"}, {"remover": "proportional"}, {"remover_alpha": 3.0}),
    ("dqn", {"epsilon": 0.0}, {"epsilon": 0.4}, {"epsilon_alpha": 1.0}),
    ("r2d2", {"epsilon": 1.0}, {"epsilon": 0.4}, {"epsilon_alpha": 1.0}),
    ("td3", {"sigma": 0.0}, {"sigma": 0.4}, {"sigma_alpha": 1.0}),
    ("td3", {"sigma_alpha": 1.0}, {"sigma_alpha": 0.0}, {"sigma_least": 0.01}),
    ("d4pg", {"updates_per_step": 0.0}, {}, {"insert_band": 0.9}),  # which else says when somebody waits
    (
        "dqn",
        {"hindsight": "none"},
        {},
        {"hindsight_share": 0.5},
    ),  # which else needs goals: tests/topologies/test_goal_runs.py
]


def drawn(name: str, **changes: Any) -> tuple[list[Any], Config]:
    """What an actor records and a learner draws of it, some of it removed meanwhile."""
    game = Game(name, "vector", asks(name)[0], capacity=64, **changes)
    try:
        batches = [game.replay.sample(8, beta=game.config.replay.beta, timeout=5.0) for _ in range(3)]
        rows = [(batch.keys.tolist(), batch.weights.tolist(), batch.data["action"].tolist()) for batch in batches]
        return rows, game.config
    finally:
        game.close()


@pytest.mark.parametrize(("name", "off", "on", "change"), SWITCHED, ids=str)
def test_what_another_setting_switches_off_changes_nothing_and_is_refused(
    name: str, off: dict[str, Any], on: dict[str, Any], change: dict[str, Any]
) -> None:
    (plain, start), (changed, config) = drawn(name, **off), drawn(name, **off, **change)
    assert changed == plain
    check_in_use(start, off)
    ((switch, value),) = off.items()
    (flag, _) = as_flag(*next(iter(change.items()))).split()
    words = f"^{flag} means nothing with {as_flag(switch, value)}: leave it out, or change the other"
    with pytest.raises(ConfigError, match=words):
        check_in_use(config, [*off, *change])
    if on:
        assert drawn(name, **on)[0] != drawn(name, **on, **change)[0]
        check_in_use(override(config, on), [*on, *change])


@pytest.mark.parametrize("name", AGENTS)
def test_exploration_is_offered_to_those_who_heed_it(name: str) -> None:
    game = Game(name, "vector", asks(name)[0])
    try:
        agents_of_two = game.agent(), game.agent()
        seen = {key: np.repeat(value, 50, axis=0) for key, value in game.seen(3).items()}
        one, two = (
            act(agent, seen, how).actions.tolist() for agent, how in zip(agents_of_two, (0.0, 0.9), strict=True)
        )
        heeds = SIGMAS if game.spec.action.box else {"epsilon", "epsilon_alpha"}
        assert (one != two) == (not heeds & unread(name))
        assert EXPLORATION - heeds <= unread(name)
    finally:
        game.close()


def test_every_setting_of_some_has_another_value() -> None:
    assert (
        OTHER.keys() | FLIPPED | EXPLORATION | ACTING | TOLD | KEPT | DRAWN | IMAGES | BOXES | {"distribution"} == SOME
    )
    assert AGENTS.keys() == READS.keys()
    assert SOME <= OWN | KEPT


def test_of_an_own_agent_nothing_is_known() -> None:
    assert unread("my.module:Agent") == set()
    check_read("my.module:Agent", ["double", "residual"])
    check_in_use(Config(agent=AgentConfig(agent="my.module:Agent")), ["double", "atoms"])


def test_settings_that_change_nothing_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^--target-noise means nothing to agent sac: leave it out, .* td3, td3_bc, fast_td3$"
    ):
        check_read("sac", ["seed", "temperature", "target_noise"])
    with pytest.raises(ConfigError, match=r"^--quantiles means nothing to agent c51: .* dqn, "):
        check_read("c51", ["quantiles"])
    dqn = agents.with_agent(Config(), "dqn")
    with pytest.raises(ConfigError, match=r"^--atoms means nothing with --distribution expected: leave it out"):
        check_in_use(dqn, ["double", "atoms"])
    check_in_use(override(dqn, {"distribution": "categorical"}), ["atoms"])
    with pytest.raises(ConfigError, match=r"^--target-entropy means nothing with --temperature 0.2"):
        check_in_use(Config(agent=AgentConfig(agent="sac", temperature=0.2)), ["temperature", "target_entropy"])
    with pytest.raises(ConfigError, match=r"^--target-noise-clip means nothing with --target-noise 0: "):
        check_in_use(override(agents.with_agent(Config(), "td3"), {"target_noise": 0.0}), ["target_noise_clip"])
    check_in_use(agents.with_agent(Config(), "d4pg"), ["atoms", "target_period_updates", "beta", "remover_alpha"])
