"""Makes the environments of an ``EnvConfig``, with their wrappers."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, cast

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from apexrl.config import EnvConfig
from apexrl.envs.atari import LifeLossEnds, atari_env
from apexrl.envs.atari_game import SINGLE_ENTRY, plain_game, register_atari
from apexrl.envs.atari_rows import AtariRows
from apexrl.envs.last_action_reward import LastActionReward
from apexrl.envs.lockstep import Backend, EnvCall, LoopRows, NativeRows
from apexrl.envs.minatar import register_minatar
from apexrl.envs.threaded import ThreadRows
from apexrl.envs.vector import VectorEnv
from apexrl.errors import EnvError

_GAME_KWARGS = {"repeat_action_probability", "full_action_space", "max_num_frames_per_episode", "frameskip"}


def make_vector(
    config: EnvConfig,
    num_envs: int,
    seed: int,
    vector: Literal["sync", "threads"] = "sync",
    call: EnvCall = nullcontext,
    cores: int = 1,
) -> VectorEnv:
    """``num_envs`` environments stepped together, with distinct seeds drawn from ``seed``.

    An environment with a registered vectorised form and NEXT_STEP autoreset (CartPole) uses that, unless it is wrapped.
    Atari games are stepped by ale-py's threads, where they may use several cores; the episodes are the same.

    Args:
        vector: one after the other, or each in its own thread (``ThreadRows``).
        call: entered around every call into environments.
        cores: processor cores that the environments may use at the same time.

    Raises:
        EnvError: the environment cannot be found or made; the message says what to install or what was meant.
        SpecError: one of its spaces is not supported.
    """
    if num_envs < 1:
        raise EnvError(f"{env_name(config)}: {num_envs} environments were asked for; at least 1 is needed")
    name = env_name(config)
    backend: Backend | None
    if vector == "threads":
        backend = ThreadRows([partial(make_env, config)] * num_envs, name, call)
    else:
        backend = _native(config, num_envs, name, call, cores) if config.native_envs else None
        backend = backend or LoopRows([make_env(config) for _ in range(num_envs)], name, call)
    return VectorEnv(backend, name, config.stack, config.reward_clip, seed)


def make_env(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """One environment with the wrappers of ``config`` (also of use for videos: ``render_mode="rgb_array"``).

    Raises:
        EnvError: as ``make_vector``.
    """
    kwargs = dict(config.env_kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if config.atari:
        game = plain_game(config.env, kwargs)
        kwargs = {"frameskip": 1, "repeat_action_probability": 0.0} | kwargs
        if game is not None:
            kwargs["max_num_frames_per_episode"] = 0  # ``AtariGame`` counts them
        env = atari_env(_make(config, kwargs), env_name(config), game)
    else:
        env = _make(config, kwargs)
    if config.max_episode_steps:
        env = gym.wrappers.TimeLimit(env, config.max_episode_steps)
    if config.atari and config.life_loss_ends:
        env = LifeLossEnds(env)
    return LastActionReward(env, config.reward_clip) if config.last_action_reward else env


def env_name(config: EnvConfig) -> str:
    """The environment's name in messages and run folders."""
    if isinstance(config.env, str):
        return config.env
    return str(getattr(config.env, "__qualname__", repr(config.env)))


def _make(config: EnvConfig, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    name = env_name(config)
    if callable(config.env):
        made = _guard(name, config.env, kwargs)
        if not isinstance(made, gym.Env):
            raise EnvError(f"{name} returned a {type(made).__name__}; it must return a gymnasium.Env")
        return made
    register_atari(config.env)
    register_minatar(config.env)
    if module := name.rpartition(":")[0]:
        _guard(name, lambda: importlib.import_module(module), {})  # Gymnasium's error does not name what is missing
    made = _guard(name, lambda **kw: gym.make(name, disable_env_checker=True, **kw), kwargs)
    assert isinstance(made, gym.Env)
    return made


def _guard(name: str, maker: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Call ``maker``; every failure becomes an EnvError that says what to do."""
    try:
        return maker(**kwargs)
    except EnvError:
        raise
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {name} needs a package that is not installed: {error}. {_extra(name)}") from error
    except ModuleNotFoundError as error:
        raise EnvError(
            f"environment {name} cannot be made: there is no module {error.name!r}. Write ids as "
            f"'package.module:Id-v0' with a module that is installed or in the current folder. {_extra(name)}".rstrip()
        ) from error
    except gym.error.UnregisteredEnv as error:
        raise EnvError(
            f"there is no environment {name}: {error} For your own write 'package.module:Id-v0', where the "
            "module registers the id with gymnasium.register"
        ) from error
    except gym.error.DeprecatedEnv as error:
        raise EnvError(f"environment {name} is out of date: {error}") from error
    except Exception as error:
        with_kwargs = f" with {kwargs}" if kwargs else ""
        raise EnvError(f"environment {name} cannot be made{with_kwargs}: {type(error).__name__}: {error}") from error


def _extra(name: str) -> str:
    """The extra of apexrl that the environment needs."""
    spec = gym.registry.get(name.rpartition(":")[2])
    entry = str(spec.entry_point) if spec else name
    for word, command in {
        "box2d": "pip install 'apexrl[box2d]'",
        "mujoco": "pip install 'apexrl[mujoco]'",
        "ale_py": "pip install 'apexrl[atari]'",
        "cv2": "pip install 'apexrl[atari]'",
    }.items():
        if word in entry.lower():
            return f"Run: {command}"
    return ""


def _native(config: EnvConfig, num_envs: int, name: str, call: EnvCall, cores: int) -> Backend | None:
    """The environment's own vectorised form, if it is equivalent to a loop."""
    if not isinstance(config.env, str) or config.last_action_reward:
        return None  # wrappers are for single environments
    if config.atari:
        game = plain_game(config.env, config.env_kwargs) if min(cores, num_envs) > 1 else None
        if game is None or not config.env_kwargs.keys() <= _GAME_KWARGS:
            return None
        limits = config.life_loss_ends, config.max_episode_steps
        return cast("Backend", _guard(name, lambda: AtariRows(game, num_envs, *limits, cores, name, call), {}))
    module, _, env_id = name.rpartition(":")
    if module:
        _guard(name, lambda: importlib.import_module(module), {})
    spec = gym.registry.get(env_id)
    if spec is None or spec.vector_entry_point is None or spec.additional_wrappers or spec.entry_point == SINGLE_ENTRY:
        return None  # ale-py's vector form shows other observations than its single one
    entry = spec.vector_entry_point
    creator = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    accepted = inspect.signature(creator).parameters
    kwargs = dict(config.env_kwargs)
    if config.max_episode_steps:
        kwargs["max_episode_steps"] = config.max_episode_steps
    open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    if not open_ended and not kwargs.keys() <= accepted.keys():
        return None
    made: gym.vector.VectorEnv[Any, Any, Any] = _guard(
        name,
        lambda **kw: gym.make_vec(name, num_envs=num_envs, vectorization_mode="vector_entry_point", **kw),
        kwargs,
    )
    if made.metadata.get("autoreset_mode") is not AutoresetMode.NEXT_STEP:
        made.close()
        return None
    return NativeRows(made, name, call)
