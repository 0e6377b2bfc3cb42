from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from apexrl.config import EnvConfig
from apexrl.envs import env_name, env_spec_and_limit, make_env, make_vector
from apexrl.envs.lockstep import LoopRows
from apexrl.envs.make import has_limit
from apexrl.envs.native_rows import NativeRows
from apexrl.envs.toy import Catch
from apexrl.errors import EnvError


def test_native_form_only_when_it_does_what_a_loop_would() -> None:
    kinds = {
        "plain": EnvConfig(env="CartPole-v1"),
        "known keyword": EnvConfig(env="CartPole-v1", env_kwargs={"sutton_barto_reward": True}),
        "no native form": EnvConfig(env="Acrobot-v1"),
        "callable": EnvConfig(env=Catch),
    }
    backends = {what: type(make_vector(config, 2, 0)._backend) for what, config in kinds.items()}
    assert backends == {
        "plain": NativeRows,
        "known keyword": NativeRows,
        "no native form": LoopRows,
        "callable": LoopRows,
    }


def test_a_native_form_without_next_step_autoreset_or_with_other_keywords_is_not_used() -> None:
    class SameStep(gym.envs.classic_control.cartpole.CartPoleVectorEnv):
        metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

    entry = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    gym.register("TestSameStep-v0", entry_point=entry, vector_entry_point=SameStep, max_episode_steps=20)
    try:
        assert isinstance(make_vector(EnvConfig(env="TestSameStep-v0"), 2, 0)._backend, LoopRows)
        unknown = EnvConfig(env="TestSameStep-v0", env_kwargs={"unknown": 1})
        with pytest.raises(EnvError, match="unexpected keyword argument 'unknown'"):
            make_vector(unknown, 2, 0)
    finally:
        del gym.registry["TestSameStep-v0"]


@pytest.mark.parametrize(
    ("env", "limit"),
    [
        ("CartPole-v1", 5),
        ("apexrl.envs.toy:Endless-v0", 5),
        ("apexrl.envs.toy:Endless-v0", 13),  # more than the registered 10
        (lambda: gym.make("apexrl.envs.toy:Endless-v0"), 5),
        (lambda: gym.make("apexrl.envs.toy:Endless-v0", max_episode_steps=-1), 13),
    ],
)
def test_max_episode_steps_truncates(env: Any, limit: int) -> None:
    config = EnvConfig(env=env, max_episode_steps=limit)
    vector = make_vector(config, 1, 0)
    vector.reset()
    steps = [vector.step(np.array([index % 2])) for index in range(limit)]
    assert [bool(step.truncated[0]) for step in steps] == [False] * (limit - 1) + [True]
    assert steps[-1].episodes[0].length == limit
    assert env_spec_and_limit(config)[1] == limit


def test_keywords_and_callables() -> None:
    def build(length: int) -> gym.Env[Any, Any]:
        return gym.make("apexrl.envs.toy:Corridor-v0", length=length)

    config = EnvConfig(env=build, env_kwargs={"length": 9})
    assert make_vector(config, 1, 0).spec.categories == {"observation": 9}
    assert env_name(config).endswith("build")
    with pytest.raises(EnvError, match=r"returned a builtins\.int; it must return a gymnasium\.Env"):
        make_env(EnvConfig(env=int))


def test_an_environment_without_gymnasiums_spaces_is_refused() -> None:
    class Half(Catch):
        action_space = (0, 1, 2)  # type: ignore[assignment]

    with pytest.raises(EnvError, match=r"its observation_space is a builtins\.NoneType; it must be one of gymnasium"):
        make_env(EnvConfig(env=gym.Env))
    with pytest.raises(EnvError, match=r"its action_space is a builtins\.tuple; it must be one of gymnasium\.spaces"):
        make_env(EnvConfig(env=Half))


def test_a_module_that_an_environment_lacks_is_no_fault_of_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "Lacking-v0", gym.envs.registration.EnvSpec("Lacking-v0", "no_such_package:Env"))
    with pytest.raises(EnvError, match=r"needs the module 'no_such_package', which is not installed\.$"):
        make_env(EnvConfig(env="Lacking-v0"))


def test_an_environment_that_lacks_an_argument_says_how_it_is_given() -> None:
    def strict(render_mode: str | None = None) -> None:
        raise ValueError("render_mode must be given")

    with pytest.raises(EnvError, match=r"render_mode must be given\. Arguments .* --env-kwargs NAME VALUE"):
        make_env(EnvConfig(env=strict))


def test_an_error_without_words_says_where_it_was_raised_and_which_extra_there_is() -> None:
    def versions_differ(render_mode: str | None = None) -> None:
        raise AssertionError

    gym.register("mujoco-like-v0", lambda **kwargs: versions_differ())
    try:
        with pytest.raises(EnvError, match=r"AssertionError: in versions_differ, .*test_make\.py, line \d+\. The pack"):
            make_env(EnvConfig(env="mujoco-like-v0"))
    finally:
        del gym.registry["mujoco-like-v0"]
    with pytest.raises(EnvError, match=r"AssertionError: in versions_differ, .*test_make\.py, line \d+$"):
        make_env(EnvConfig(env=versions_differ))


def test_an_id_of_the_old_package_gym_is_refused_with_how_to_convert_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(envs=SimpleNamespace(registry={"Ancient-v0": None}))
    monkeypatch.setitem(sys.modules, "gym", old)  # type: ignore[arg-type]
    with pytest.raises(EnvError, match=r"registered with the old package gym: .* env_id apexrl:Ancient-v0 "):
        make_env(EnvConfig(env="apexrl:Ancient-v0"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(env="CartPol-v1"), "there is no environment CartPol-v1.*Did you mean: `CartPole`"),
        (EnvConfig(env=lambda: gym.make_vec("CartPole-v1", 2)), "CartPoleVectorEnv; .* takes num_envs"),
        (EnvConfig(env="CartPole-v9"), "there is no environment CartPole-v9"),
        (EnvConfig(env="Bird-v0"), "Where a package .* registers it, write that before the id: 'package.module:Id-v0'"),
        (EnvConfig(env="apexrl.envs.toy:Doors-v9"), "apexrl.envs.toy is imported and registers no such id"),
        (EnvConfig(env="./things:Thing-v0"), "'./things' is no module.*'package.module:Id-v0'"),
        (EnvConfig(env=".things:Thing-v0"), "'.things' is no module"),
        (EnvConfig(env="no.such.module:Thing-v0"), "no module 'no'.*'package.module:Id-v0'"),
        (
            EnvConfig(env="gymnasium:Wrapper"),
            r"has a Wrapper: give it an id .* gymnasium.register\('Wrapper-v0', Wrapper\)",
        ),
        (EnvConfig(env="apexrl.envs.toy:Nothing-v0"), "there is no environment apexrl.envs.toy:Nothing-v0"),
        (
            EnvConfig(env="CartPole-v1", env_kwargs={"colour": "red"}),
            r"cannot be made with \{'colour': 'red'\}: TypeError",
        ),
        (EnvConfig(env="apexrl.envs.faulty:RaisesOnMake-v0"), "RuntimeError: the simulator has no licence"),
        (EnvConfig(env="CartPole-v1", atari=True), "CartPole-v1"),
    ],
)
def test_what_cannot_be_made_says_what_to_do(config: EnvConfig, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_vector(config, 1, 0)


def test_a_callable_may_be_spelled_with_slashes_and_colons() -> None:
    make_env(EnvConfig(env=partial(lambda path, sizes: gym.make("CartPole-v1"), "maps/one", {"a": 1}))).close()


def test_minatar_is_found_and_goes_by_its_seed() -> None:
    def play(seed: int) -> list[float]:
        env = make_vector(EnvConfig(env="MinAtar/Breakout-v1"), 2, seed)
        assert (env.spec.observation["observation"].shape, env.spec.action.n) == ((10, 10, 4), 3)
        seen = [float((env.reset()["observation"] * np.arange(4)).sum())]
        for step in range(60):
            stepped = env.step(np.array([step % 3, 0]))
            seen += [*stepped.reward.tolist(), float(np.argmax(stepped.observation["observation"][..., 1]))]
        env.close()
        return seen

    assert play(1) == play(1)
    assert play(1) != play(2)


def test_no_environments_is_an_error() -> None:
    with pytest.raises(EnvError, match="at least 1"):
        make_vector(EnvConfig(), 0, 0)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    with pytest.raises(EnvError, match=r"pip install 'apexrl\[atari\]'"):
        make_env(EnvConfig(env="ALE/Pong-v5"))

    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    monkeypatch.delitem(gym.registry, "MinAtar/Asterix-v1", raising=False)
    with pytest.raises(EnvError, match=r"pip install 'apexrl\[minatar\]'"):
        make_env(EnvConfig(env="MinAtar/Asterix-v1"))

    def needs_box2d() -> gym.Env[Any, Any]:
        raise gym.error.DependencyNotInstalled("Box2D is not installed")

    monkeypatch.setitem(
        gym.registry,
        "NeedsBox2D-v0",
        gym.envs.registration.EnvSpec("NeedsBox2D-v0", entry_point="gymnasium.envs.box2d:NoSuchLander"),
    )
    monkeypatch.setattr(gym, "make", lambda *_, **__: needs_box2d())
    with pytest.raises(EnvError, match=r"Box2D is not installed.*pip install 'apexrl\[box2d\]'"):
        make_env(EnvConfig(env="NeedsBox2D-v0"))


def test_a_time_limit_is_known_from_the_configuration_the_registry_or_atari() -> None:
    assert has_limit(EnvConfig(env="CartPole-v1"))
    assert not has_limit(EnvConfig(env="CliffWalking-v1"))
    assert has_limit(EnvConfig(env="CliffWalking-v1", max_episode_steps=100))
    assert not has_limit(EnvConfig(env=gym.Wrapper))
    assert has_limit(EnvConfig(env="ALE/Pong-v5", atari=True))
