from __future__ import annotations

import dataclasses
import string
from typing import Any, Literal, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from apexrl.config import ActorConfig, AgentConfig, Config, EnvConfig, LearnerConfig, StopConfig, convert
from apexrl.config.settings import settings_of
from apexrl.config.trust import entrusted
from apexrl.errors import ConfigError
from apexrl.presets import PRESETS

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SIMPLE = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return st.builds(kind, **{name: any_of(inner) for name, inner in get_type_hints(kind).items()})
    if hint is str:
        return TEXT
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(-(2**63), 2**63 - 1)
    if hint is float:
        return st.floats(allow_nan=False)
    if get_origin(hint) is tuple:
        return st.lists(any_of(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(TEXT, VALUES, max_size=3)
    if hint == float | None:
        return st.none() | st.floats(allow_nan=False)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    return TEXT  # env: an id


@hypothesis_settings(max_examples=60, deadline=None)
@given(config=any_of(Config))
def test_toml_round_trip_is_exact(config: Config) -> None:
    again = convert.from_toml(convert.to_toml(config, "a comment\nof two lines"))
    assert again == config
    assert convert.to_toml(again) == convert.to_toml(config)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_round_trip(name: str) -> None:
    config = PRESETS[name].config
    assert convert.from_toml(convert.to_toml(config)) == config


def test_every_setting_is_written() -> None:
    agent, actor = AgentConfig(target_entropy=-1.0), ActorConfig(sigma_least=0.0)
    text = convert.to_toml(Config(stop=StopConfig(stop_at_return=1.0), agent=agent, actor=actor))
    for name in convert.known_settings():
        assert f"\n{name} = " in "\n" + text or f".{name}]" in text, name


def test_left_out_settings_have_defaults() -> None:
    assert convert.from_toml("seed = 5\n[agent]\ngamma = 1\n") == Config(seed=5, agent=AgentConfig(gamma=1.0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = ", "my.toml is not valid TOML"),
        ("sed = 1", r"my.toml: unknown setting 'sed' \(did you mean 'seed'\?\)"),
        ("[agent]\ngama = 1", r"my.toml: agent: unknown setting 'gama' \(did you mean 'gamma'\?\)"),
        ("seed = 'one'", "seed = 'one' is not of type int"),
        ("seed = true", "seed = True is not of type int"),
        ("agent = 'dqn'", r"my.toml: agent = 'dqn': agent is a section: write \[agent\], and below it agent = 'dqn'"),
        ("stop = 3", r"stop = 3: stop is a section: write \[stop\]$"),
        ("learning_rate = 0.1", r"unknown setting 'learning_rate': it belongs in the section \[agent\]$"),
        ("[agent]\nseed = 1", "agent: unknown setting 'seed': it belongs above all sections"),
        ("[agent]\noptimizer = 'lion'", "optimizer = 'lion'"),
        ("[agent]\nhidden = ['a']", "hidden = "),
        ("[env]\nenv = 3", "env = 3"),
        ("[stop]\nstop_at_return = 'x'", "stop_at_return"),
    ],
)
def test_wrong_files_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert.from_toml(text, "my.toml")


def make_env(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", **kwargs)


def test_a_callable_is_noted_by_name_and_imported_again() -> None:
    text = convert.to_toml(Config(env=EnvConfig(env=make_env)))
    assert f'callable = "{__name__}:make_env"' in text
    again = convert.from_toml(text)
    assert convert.to_toml(again) == text
    assert convert.from_toml(convert.to_toml(again)) == again
    assert callable(again.env.env)
    entrusted(again, (__name__,), "config.toml").env.env().close()


def test_a_local_callable_is_refused_only_when_needed() -> None:
    again = convert.from_toml(convert.to_toml(Config(env=EnvConfig(env=lambda: None))), "runs/x/config.toml")
    assert callable(again.env.env)
    trusting = entrusted(again, (__name__,), "runs/x/config.toml")
    with pytest.raises(ConfigError, match=r"runs/x/config.toml: .*no importable name"):
        trusting.env.env()


@pytest.mark.parametrize("name", ["no_such_module:make", f"{__name__}:gone", f"{__name__}:TEXT", "json:dumps.x", ":"])
def test_what_cannot_be_imported_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="give the environment again from Python"):
        convert.import_callable(name)


def test_env_kwargs_that_toml_cannot_hold() -> None:
    for value in (None, object(), {1: 2}):
        with pytest.raises(ConfigError, match="env_kwargs cannot be written"):
            convert.to_toml(Config(env=EnvConfig(env_kwargs={"x": value})))


def test_override_by_flat_names() -> None:
    config = convert.override(
        Config(), {"actors": 5, "gamma": 1, "hidden": (8, 8), "seed": 3, "stop_at_return": None, "env": make_env}
    )
    assert config.actor.actors == 5
    assert config.agent.gamma == 1.0
    assert isinstance(config.agent.gamma, float)
    assert config.agent.hidden == (8, 8)
    assert config.seed == 3
    assert config.stop.stop_at_return is None
    assert config.env.env is make_env


@pytest.mark.parametrize("steps", [300, 3e2, np.int64(300), np.float32(300), np.array(300)])
def test_numbers_of_other_types_are_taken(steps: Any) -> None:
    changed = convert.override(Config(), {"env_steps": steps, "learning_rate": np.float32(0.5)})
    assert (changed.stop.env_steps, changed.agent.learning_rate) == (300, 0.5)
    assert type(changed.stop.env_steps) is int


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"actorz": 5}, r"unknown setting 'actorz' \(did you mean 'actors'\?\)"),
        ({"actors": "five"}, "actors = 'five' is not of type int"),
        ({"seed": None}, "seed = None is not of type int"),
        ({"seed": 1.5}, "seed = 1.5 is not of type int"),
        ({"env": gym.spec("CartPole-v1")}, "is no name and no callable: every worker makes environments of its own"),
        ({"hidden": 64}, "hidden = 64"),
    ],
)
def test_wrong_overrides_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert.override(Config(), values)


def test_flat_names_are_unique() -> None:
    names = [entry.name for group in dataclasses.fields(Config) if dataclasses.is_dataclass(hint := _hint(group.name))
             for entry in dataclasses.fields(hint)]  # fmt: skip
    names += [entry.name for entry in dataclasses.fields(Config) if not dataclasses.is_dataclass(_hint(entry.name))]
    assert len(names) == len(set(names))
    assert all(set(name) <= set(string.ascii_lowercase + "_") for name in names)


def _hint(name: str) -> Any:
    return get_type_hints(Config)[name]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_in_range(name: str) -> None:
    convert.check_values(PRESETS[name].config)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"actors": 0}, "--actors must be at least 1, not 0"),
        ({"gamma": 1.5}, "--gamma must be between 0 and 1"),
        ({"learning_rate": 0.0}, "--learning-rate must be positive"),
        ({"learning_rate": float("nan")}, "--learning-rate must be positive"),
        ({"minutes": -1.0}, "--minutes must be 0 or more"),
        ({"hidden": (64, 0)}, "--hidden must be"),
        ({"device": "gpu"}, "--device must be auto, cpu, cuda"),
        ({"serial": True, "vector": "threads"}, "--serial cannot go with --vector threads"),
        ({"serial": True, "autotune": True}, "--serial cannot go with --autotune"),
        ({"autotune_seconds": 0.0}, "--autotune-seconds must be positive"),
        ({"min_size": 100, "capacity": 50}, "--min-size 100 is more than --capacity 50"),
        ({"remover": "proportional", "alpha": 0.0}, "--remover proportional needs priorities"),
        ({"trim_every": 0}, "--trim-every must be at least 1"),
        ({"v_min": 3.0, "v_max": 3.0}, "--v-min 3 must be less than --v-max 3"),
        ({"initial_std": 0.05, "least_std": 0.1}, "--initial-std 0.05 is less than --least-std 0.1: lower this, too"),
        ({"critic_hidden": (0,)}, "--critic-hidden must be numbers, each between 1 and 1,048,576, not"),
        ({"value_clip": -0.1}, "--value-clip must be 0 or more"),
        ({"anneal": True}, "--anneal lowers the step size .* set --env-steps"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert.check_values(convert.override(Config(), values))


INF, NAN = float("inf"), float("nan")
BAD: dict[str, list[Any]] = {
    **{key: [0, -1] for key in ["image_units", "policy_period_updates", "recurrent_units", "cosines"]},
    **{key: [0] for key in ["sequence_length", "sequence_stride"]},
    **{key: [1, 0] for key in ["atoms", "quantiles", "quantile_samples"]},
    **{key: [0.0, -0.001, INF, NAN] for key in ["learning_rate", "initial_temperature", "munchausen_temperature"]},
    **{key: [0.0, -0.1, INF, NAN] for key in ["noisy_sigma", "optimizer_eps", "priority_eps"]},
    **{key: [-1e-09, INF, NAN] for key in ["policy_learning_rate", "temperature_learning_rate", "temperature"]},
    **{key: [-0.1, INF, NAN] for key in ["residual", "target_noise", "target_noise_clip"]},
    **{key: [-1.0, NAN] for key in ["rescaling_eps", "sigma_alpha"]},
    **{key: [-0.1, 1.1, NAN] for key in ["polyak", "priority_eta", "munchausen_alpha", "sigma"]},
    **{key: [INF, -INF, NAN] for key in ["v_min", "v_max", "remover_alpha", "target_entropy"]},
    "first_moment_decay": [-0.1, 1.0, NAN],
    "second_moment_decay": [-0.1, 1.0, NAN],
    "burn_in": [-1, 256],
    "recency_half_life": [-0.1, INF, NAN],
    "lag_half_life": [-1],
    "munchausen_clip": [0.1, -INF, NAN],
}
EDGES: dict[str, list[Any]] = {
    **{key: [0.0, 1.0] for key in ["polyak", "priority_eta", "munchausen_alpha", "sigma"]},
    "first_moment_decay": [0.0, 0.999],
    "second_moment_decay": [0.0, 0.999],
    "burn_in": [0, 255],
    "atoms": [2],
    "munchausen_clip": [0.0],
    "target_entropy": [None, -3.0, 2.0],
    "temperature": [0.0],
    "critic_hidden": [(), (1,)],
    "remover_alpha": [-2.0, 0.0],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_what_an_agent_cannot_mean_is_refused_by_its_flag(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} must be "):
        convert.check_values(convert.override(Config(), {name: value}))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in EDGES.items() for value in values])
def test_the_ends_of_a_range_belong_to_it(name: str, value: Any) -> None:
    convert.check_values(convert.override(Config(), {name: value}))


def test_every_number_of_the_agent_has_a_range() -> None:
    for name, setting in settings_of(AgentConfig).items():
        number = setting.hint not in (str, bool) and get_origin(setting.hint) not in (Literal, dict)
        assert bool(setting.rules) == number, name


def test_flat_is_what_override_takes() -> None:
    config = PRESETS["pendulum"].config
    assert convert.override(Config(), convert.flat(config)) == config


@pytest.mark.parametrize("name", ["../up", "a/b", ".", "..", "-flag/", "new\nline"])
def test_names_that_are_no_folder_names(name: str) -> None:
    with pytest.raises(ConfigError, match="is no plain folder name"):
        convert.check_values(Config(name=name))


def test_other_groups_are_kept() -> None:
    start = Config(learner=LearnerConfig(batch_size=7))
    assert convert.override(start, {"prefetch": 2}).learner == LearnerConfig(batch_size=7, prefetch=2)


def test_runs_of_before_0_2_have_the_memory_that_they_had() -> None:
    text = convert.to_toml(Config()).replace('memory = "none"\n', "")
    for before, now in (("true", "lstm"), ("false", "none")):
        old = text.replace("[agent]\n", f"[agent]\nrecurrent = {before}\n")
        assert old != text
        assert convert.from_toml(old).agent.memory == now
