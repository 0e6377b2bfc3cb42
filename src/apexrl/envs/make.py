"""Makes the environments of an ``EnvConfig``, with their wrappers."""

from __future__ import annotations

import importlib
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any, Literal, cast

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from apexrl.config import EnvConfig
from apexrl.config.game_names import is_game, is_team, takes_turns
from apexrl.envs.action_masks import (
    ActionMasks,
    VectorActionMasks,
    has_masks,
    shows_mask,
    vector_method,
)
from apexrl.envs.agent_games import agent_rows, seat_rows, team_env
from apexrl.envs.atari import LifeLossEnds, atari_env
from apexrl.envs.atari_game import plain_game, register_atari
from apexrl.envs.atari_rows import AtariRows
from apexrl.envs.envpool_rows import PREFIX, EnvPoolRows, pool_spaces
from apexrl.envs.last_action_reward import LastActionReward
from apexrl.envs.lockstep import Backend, Changes, EnvCall, LoopRows
from apexrl.envs.minatar import register_minatar
from apexrl.envs.native_rows import NativeRows
from apexrl.envs.players import MakePlayers, RandomPlayers
from apexrl.envs.shrunk_images import ShrunkImages
from apexrl.envs.spaces import env_spec, length_limit
from apexrl.envs.step_cost import MOST_THREADS, StepCost, step_cost
from apexrl.envs.threaded import ThreadRows
from apexrl.envs.vector import VectorEnv
from apexrl.envs.vector_form import VectorForm, vector_form
from apexrl.errors import EnvError, said_by
from apexrl.run.env_changes import EnvChange
from apexrl.spec import EnvSpec

_GAME_KWARGS = {"repeat_action_probability", "full_action_space", "max_num_frames_per_episode", "frameskip"}


def make_vector(
    config: EnvConfig,
    num_envs: int,
    seed: int,
    vector: Literal["auto", "sync", "threads"] = "sync",
    call: EnvCall = nullcontext,
    cores: int = 1,
    partial: bool = False,
    changes: Changes | None = None,
    players: MakePlayers | None = None,
) -> VectorEnv:
    """``num_envs`` environments stepped together, with distinct seeds drawn from ``seed``.

    Of an environment of several agents (``package.module:parallel_env``) rows are agents, at least ``num_envs`` of
    them, and as many as its environments have.

    An environment with a vectorised form that does what single ones do (CartPole) uses that, unless it is wrapped; one
    that has no other form uses it always. Atari games are stepped by ale-py's threads, where they may use several
    cores; the episodes are the same.

    Args:
        vector: one after the other, or each in its own thread (``ThreadRows``); ``auto``: threads where the first
            environment's steps mostly wait (``step_cost``), which ``VectorEnv.chosen`` then says.
        call: entered around every call into environments.
        cores: processor cores that the environments may use at the same time.
        partial: whether answers may have rows of some environments; then no step is lost where the vectorised form
            has not NEXT_STEP autoreset (``NativeRows``).
        changes: settings that callbacks change; None: none are taken.
        players: makes who plays agents that are not learned; None: they act at random.

    Raises:
        EnvError: the environment cannot be found or made; the message says what to install or what was meant.
        SpecError: one of its spaces is not supported.
    """
    if num_envs < 1:
        raise EnvError(f"{env_name(config)}: {num_envs} environments were asked for; at least 1 is needed")
    name = env_name(config)
    backend: Backend | None
    if is_game(config.env) and not config.team:
        backend = _game(config, num_envs, seed, vector, call, players or RandomPlayers)
    else:
        backend = _native(config, num_envs, vector, call, cores, partial)
    made: list[gym.Env[Any, Any]] = []
    chosen = ""
    if backend is None and vector == "auto" and 1 < num_envs <= MOST_THREADS:
        made = [make_env(config)]
        cost = _cost(made[0], seed, call)
        if cost is not None and cost.wants_threads:
            made.pop().close()  # threads make and step their own
            vector, chosen = "threads", str(cost)
    own, fixed, limit = changes or EnvChange, backend is not None, length_limit(config)
    if backend is None and vector == "threads":
        backend = ThreadRows([lambda: make_env(config)] * num_envs, name, call, config.info_metrics, own, limit)
    elif backend is None:
        made += [make_env(config) for _ in range(num_envs - len(made))]
        backend = LoopRows(made, name, call, config.info_metrics, own, limit)
    return VectorEnv(backend, name, config.stack, config.reward_clip, seed, chosen, changes if fixed else None)


def _cost(env: gym.Env[Any, Any], seed: int, call: EnvCall) -> StepCost | None:
    """None: it raises an error, which it will do again where errors are told."""
    try:
        return step_cost(env, seed % 2**32, call)
    except Exception:
        return None


def make_env(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """One environment with the wrappers of ``config`` (also of use for videos: ``render_mode="rgb_array"``).

    Raises:
        EnvError: as ``make_vector``.
    """
    name = env_name(config)
    if is_game(config.env) and not config.team:
        raise EnvError(f"{name} has several agents: there is no single environment to make")
    if name.startswith(PREFIX) or ((form := _guarded_form(config)) is not None and form.only):
        raise EnvError(f"{name} has a vectorised form only: there is no single environment to make")
    kwargs = dict(config.env_kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    replaces = isinstance(config.env, str) and not (config.atari or is_team(config, config.env))
    if config.max_episode_steps and replaces:  # the limit that it is registered with, also a shorter one
        kwargs["max_episode_steps"] = config.max_episode_steps
    if config.atari:
        game = plain_game(config.env, kwargs)
        kwargs = {"frameskip": 1, "repeat_action_probability": 0.0} | kwargs
        if game is not None:
            kwargs["max_num_frames_per_episode"] = 0  # ``AtariGame`` counts them
        env = atari_env(_make(config, kwargs), env_name(config), game)
    else:
        env = _make(config, kwargs)
    for what in ("observation_space", "action_space"):
        if not isinstance(space := getattr(env, what, None), gym.Space):
            raise EnvError(
                f"environment {name}: its {what} is a {type(space).__module__}.{type(space).__qualname__}; it must be "
                "one of gymnasium.spaces"
            )
    if config.max_episode_steps and not replaces:
        env = gym.wrappers.TimeLimit(env, config.max_episode_steps)
    if config.atari and config.life_loss_ends:
        env = LifeLossEnds(env)
    if config.image_size:
        env = ShrunkImages(env, config.image_size)
    if config.last_action_reward:
        env = LastActionReward(env, config.reward_clip)
    if shows_mask(env.observation_space):
        return env
    if config.mask_in_info or (has_masks(env) and not isinstance(env.action_space, gym.spaces.Box)):
        return ActionMasks(env, config.mask_in_info)
    return env


def env_spec_and_limit(config: EnvConfig) -> tuple[EnvSpec, int | None]:
    """What an environment shows and takes, and after how many steps it cuts an episode (None: no limit is known).

    Raises:
        EnvError, SpecError: as ``make_vector``.
    """
    name = env_name(config)
    if name.startswith(PREFIX):
        observations, actions, limit = _guard(name, lambda: pool_spaces(name, _pool_kwargs(config)), {})
        return env_spec(observations, actions, config.stack, length_limit(config)), limit
    if is_game(config.env) and not config.team:
        with closing(make_vector(config, 1, 0)) as vector:
            return vector.spec, config.max_episode_steps or vector.time_limit
    form = None if config.atari else _guarded_form(config)
    if form is not None and form.only:
        with closing(make_vector(config, 1, 0)) as vector:
            return vector.spec, form.time_limit
    with single_env(config) as env:
        spec = env_spec(env.observation_space, env.action_space, config.stack, length_limit(config))
        own = env.spec.max_episode_steps if env.spec else getattr(env.unwrapped, "time_limit", None)
        return spec, config.max_episode_steps or own


def shrinks_images(config: EnvConfig) -> bool:
    """Whether defaults may shrink its images: it is one agent's, can be wrapped, and has no pipeline of its own."""
    name = env_name(config)
    if config.atari or is_game(config.env) or name.startswith(PREFIX):
        return False
    form = _guarded_form(config)
    return form is None or not form.only


def has_limit(config: EnvConfig) -> bool:
    """Whether an environment that was made is known to end its episodes: by a ``known_limit``, or that of Atari games
    or EnvPool."""
    return bool(known_limit(config) or config.atari or env_name(config).startswith(PREFIX))  # EnvPool's tasks all do


def known_limit(config: EnvConfig) -> int:
    """The steps after which ``config``, or what an environment is registered with, cuts an episode; 0: not known."""
    registered = gym.registry.get(env_name(config).rpartition(":")[2])
    return config.max_episode_steps or (registered and registered.max_episode_steps) or 0


@contextmanager
def single_env(config: EnvConfig) -> Iterator[gym.Env[Any, Any]]:
    """``make_env``, closed at the end; an error of that is a warning."""
    env = make_env(config)
    try:
        yield env
    finally:
        try:
            env.close()
        except Exception as error:
            text = f"{env_name(config)}: close() raised {type(error).__name__}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)


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
            several = "; what makes a vector of them takes num_envs" * isinstance(made, gym.vector.VectorEnv)
            kind = f"{type(made).__module__}.{type(made).__qualname__}"
            raise EnvError(f"{name} returned a {kind}; it must return a gymnasium.Env{several}")
        return made
    if is_team(config, config.env):
        team = _guard(
            name,
            lambda **kw: team_env(config, **kw),
            {key: kwargs[key] for key in kwargs.keys() - config.env_kwargs.keys()},
        )
        return cast("gym.Env[Any, Any]", team)
    register_atari(config.env)
    register_minatar(config.env)
    if module := name.rpartition(":")[0]:
        _guard(name, lambda: importlib.import_module(module), {})  # Gymnasium's error does not name what is missing
    made = _guard(name, lambda **kw: gym.make(name, disable_env_checker=True, **kw), kwargs)
    assert isinstance(made, gym.Env)
    return made


def _unregistered(name: str) -> str:
    """What to do about an environment that Gymnasium does not know."""
    module, _, attribute = name.rpartition(":")
    old = sys.modules.get("gym")
    if old is not None and attribute in getattr(old.envs.registry, "env_specs", old.envs.registry):  # a dict since 0.26
        return (
            f"{attribute} is registered with the old package gym: convert it, as with --env "
            f"shimmy:GymV26Environment-v0 --env-kwargs env_id {name} "
            "(GymV21Environment-v0 where its reset() takes no seed)"
        )
    if callable(getattr(sys.modules.get(module), attribute, None)):
        return (
            f"The module {module} has a {attribute}: give it an id there, as with gymnasium.register('{attribute}-v0', "
            f"{attribute}), and write {name}-v0; or from Python apexrl.train(env={attribute})"
        )
    if module:
        return f"{module} is imported and registers no such id with gymnasium.register"
    return "Where a package or a module of your own registers it, write that before the id: 'package.module:Id-v0'"


_IDS = "Write ids as 'package.module:Id-v0' with a module that is installed or in the current folder"


def _guard(name: str, maker: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Call ``maker``; every failure becomes an EnvError that says what to do."""
    try:
        return maker(**kwargs)
    except EnvError:
        raise
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {name} needs a package that is not installed: {error}. {_extra(name)}") from error
    except ModuleNotFoundError as error:
        own = name.rpartition(":")[0]
        if error.name and not f"{own}.".startswith(f"{error.name}."):
            why = f"it needs the module {error.name!r}, which is not installed."
        else:
            why = f"there is no module {error.name!r}. {_IDS}."
        raise EnvError(f"environment {name} cannot be made: {why} {_extra(name)}".rstrip()) from error
    except gym.error.UnregisteredEnv as error:
        raise EnvError(f"there is no environment {name}: {error} {_unregistered(name)}") from error
    except gym.error.DeprecatedEnv as error:
        raise EnvError(f"environment {name} is out of date: {error}") from error
    except (Exception, SystemExit) as error:
        if "perform a relative import" in (said := said_by(error)):
            module = name.rpartition(":")[0]
            raise EnvError(f"environment {name} cannot be made: {module!r} is no module. {_IDS}") from error
        with_kwargs = f" with {kwargs}" if kwargs else ""
        what = f"environment {name} cannot be made{with_kwargs}: {type(error).__name__}: {said or _place(error)}"
        if isinstance(error, AssertionError) and (extra := _extra(name)):
            what += f". The packages that it needs may not go together. {extra}"
        if isinstance(error, TypeError | ValueError):
            what += ". Arguments of its constructor: --env-kwargs NAME VALUE …"
        raise EnvError(what) from error


def _place(error: BaseException) -> str:
    """Where an error without words was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {last.name}, {last.filename}, line {last.lineno}"


def _extra(name: str) -> str:
    """The extra of apexrl that the environment needs."""
    spec = gym.registry.get(name.rpartition(":")[2])
    entry = f"{name} {spec.entry_point if spec else ''}"
    for word, command in {
        "box2d": "pip install 'apexrl[box2d]'",
        "robotics": "pip install 'apexrl[robotics]'",
        "mujoco": "pip install 'apexrl[mujoco]'",
        "ale_py": "pip install 'apexrl[atari]'",
        "cv2": "pip install 'apexrl[atari]'",
        "envpool": "pip install 'apexrl[envpool]'",
        "pettingzoo": "pip install 'apexrl[pettingzoo]', and what PettingZoo names for it, as in 'pettingzoo[sisl]'",
        "mpe2": "pip install mpe2",
        "minigrid": "pip install 'apexrl[minigrid]'",
    }.items():
        if word in entry.lower():
            return f"Run: {command}"
    return ""


def _pool(config: EnvConfig, num_envs: int, vector: str, call: EnvCall, cores: int, partial: bool) -> EnvPoolRows:
    _refuse_wrappers(config, vector)
    if config.mask_in_info:
        raise EnvError(f"{env_name(config)}: EnvPool tells no action masks; leave out mask_in_info")
    return EnvPoolRows(_pool_kwargs(config), num_envs, partial, cores, env_name(config), call)


def _pool_kwargs(config: EnvConfig) -> dict[str, Any]:
    limit = {"max_episode_steps": config.max_episode_steps} if config.max_episode_steps else {}
    return {**config.env_kwargs, **limit}


def _refuse_wrappers(config: EnvConfig, vector: str) -> None:
    """Refuse what is for single environments."""
    asked = {
        "atari": config.atari,
        "last_action_reward": config.last_action_reward,
        "image_size": config.image_size,
        "--vector threads": vector == "threads",
    }
    if any(asked.values()):
        raise EnvError(
            f"{env_name(config)} has a vectorised form only, which steps all environments at once and is not wrapped: "
            f"leave out {' and '.join(what for what, wanted in asked.items() if wanted)}"
        )


def _guarded_form(config: EnvConfig) -> VectorForm | None:
    return cast("VectorForm | None", _guard(env_name(config), lambda: vector_form(config), {}))


def _game(config: EnvConfig, rows: int, seed: int, vector: str, call: EnvCall, players: MakePlayers) -> Backend:
    """Environments of several agents."""
    name = env_name(config)
    if vector == "threads":
        raise EnvError(
            f"{name} has several agents, whose environments are stepped one after the other: leave out --vector threads"
        )
    make = seat_rows if takes_turns(config.env) else agent_rows
    return cast("Backend", _guard(name, lambda: make(config, rows, seed, call, players), {}))


def _native(config: EnvConfig, num_envs: int, vector: str, call: EnvCall, cores: int, partial: bool) -> Backend | None:
    """The environment's own vectorised form, if there are no single ones, or if it does what they would."""
    name = env_name(config)
    if name.startswith(PREFIX):
        return cast("Backend", _guard(name, lambda: _pool(config, num_envs, vector, call, cores, partial), {}))
    if config.atari:
        wanted = (
            config.native_envs
            and vector != "threads"
            and not (config.last_action_reward or config.info_metrics or config.mask_in_info or config.image_size)
            and min(cores, num_envs) > 1
        )
        game = plain_game(config.env, config.env_kwargs) if wanted else None
        if game is None or not config.env_kwargs.keys() <= _GAME_KWARGS:
            return None
        limits = config.life_loss_ends, config.max_episode_steps
        return cast("Backend", _guard(name, lambda: AtariRows(game, num_envs, *limits, cores, name, call), {}))
    form = _guarded_form(config)
    if form is None:
        return None
    if form.only:
        _refuse_wrappers(config, vector)
    wrapped = config.last_action_reward or config.mask_in_info or config.image_size
    if not form.only and (not config.native_envs or wrapped or vector == "threads"):
        return None
    made: gym.vector.VectorEnv[Any, Any, Any] = _guard(name, lambda: form.make(num_envs=num_envs), {})
    mode = made.metadata.get("autoreset_mode")
    if form.only and not isinstance(mode, AutoresetMode):
        made.close()
        raise EnvError(
            f"{name} does not say how it resets: its metadata must have 'autoreset_mode', one of "
            "gymnasium.vector.AutoresetMode"
        )
    if not form.only and mode is not AutoresetMode.NEXT_STEP and not (partial and isinstance(mode, AutoresetMode)):
        made.close()
        return None  # single environments lose no step
    if not shows_mask(made.single_observation_space) and (config.mask_in_info or vector_method(made)):
        made = VectorActionMasks(made, config.mask_in_info)
    return NativeRows(made, name, call, not partial, config.info_metrics, length_limit(config))
