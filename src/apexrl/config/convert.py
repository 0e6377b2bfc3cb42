"""Settings in other forms than dataclasses: a ``Config`` as TOML and back (exactly), and changed by flat names.

An environment given as a Python callable is written as ``{ callable = "module:qualname" }`` and imported again when
read; one that cannot be imported by name (a lambda, a local function, one of ``__main__``) is noted the same way and
refused, with the reason, only when somebody needs it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError

_MISSING = object()


def to_toml(config: Config, comment: str = "") -> str:
    """Every setting of ``config``, defaults included; ``None`` (no limit) is left out, as TOML has no word for it.

    Raises:
        ConfigError: ``env_kwargs`` hold something that TOML cannot.
    """
    import tomli_w

    try:
        text = tomli_w.dumps(_to_table(config))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"env_kwargs cannot be written to config.toml ({error}): use text, numbers, booleans, lists and dicts, "
            "or give the environment as a callable that fills in the rest"
        ) from error
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return f"{head}\n{text}" if head else text


def from_toml(text: str, origin: str = "config.toml") -> Config:
    """Read a configuration; settings that are left out have their defaults.

    Raises:
        ConfigError: not TOML, an unknown setting, or a value of the wrong type; the message names ``origin``.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin} is not valid TOML: {error}") from error
    config: Config = _from_table(Config, table, origin)
    return config


def describe_callable(env: Callable[..., Any]) -> str:
    """``module:qualname`` of an environment callable; a class or function names itself, anything else its type."""
    if isinstance(env, LazyCallable):
        return env.name
    named = env if hasattr(env, "__qualname__") else type(env)
    return f"{named.__module__}:{named.__qualname__}"


def import_callable(name: str, origin: str = "config.toml") -> Callable[..., Any]:
    """Import ``module:qualname`` again.

    Raises:
        ConfigError: it cannot be found by that name.
    """
    advice = "give the environment again from Python (apexrl.train(..., env=...), apexrl.load(..., env=...))"
    module_name, _, qualname = name.partition(":")
    if "<" in qualname or module_name == "__main__":
        raise ConfigError(
            f"{origin}: the environment was a callable, {name}, which has no importable name: "
            f"define it at the top of a module, or {advice}"
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{origin}: cannot import the environment callable {name} ({error}): {advice}") from error
    if not callable(found):
        raise ConfigError(f"{origin}: {name} is not callable: {advice}")
    return typing.cast("Callable[..., Any]", found)


def did_you_mean(name: str, known: typing.Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing, to end a message with."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _to_table(value: Any) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for entry in dataclasses.fields(value):
        item = getattr(value, entry.name)
        if item is None:
            continue
        if callable(item):
            table[entry.name] = {"callable": describe_callable(item)}
        elif dataclasses.is_dataclass(item):
            table[entry.name] = _to_table(item)
        else:
            table[entry.name] = _plain(item)
    return table


def _plain(item: Any) -> Any:
    if isinstance(item, Mapping):
        if bad := [key for key in item if not isinstance(key, str)]:
            raise TypeError(f"the key {bad[0]!r} is no text")
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_plain(value) for value in item]
    return item


def _from_table(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    if unknown := [name for name in table if name not in hints]:
        raise ConfigError(f"{where}: unknown setting {unknown[0]!r}{did_you_mean(unknown[0], hints)}")
    values: dict[str, Any] = {}
    for name, item in table.items():
        converted = _convert(hints[name], item, f"{where}: {name}")
        if converted is _MISSING:
            raise ConfigError(f"{where}: {name} = {item!r} is not of type {_spell(hints[name])}")
        values[name] = converted
    return kind(**values)


def _convert(hint: Any, item: Any, where: str) -> Any:
    """``item`` as ``hint`` asks for it, or ``_MISSING`` when it is of another type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _from_table(typing.cast("type[Any]", hint), item, where) if isinstance(item, dict) else _MISSING
    if origin in (typing.Union, types.UnionType):
        converted = (_convert(choice, item, where) for choice in arguments)
        return next((value for value in converted if value is not _MISSING), _MISSING)
    if origin is typing.Literal:
        return item if item in arguments else _MISSING
    if origin is tuple:
        if not isinstance(item, list):
            return _MISSING
        parts = tuple(_convert(arguments[0], part, where) for part in item)
        return _MISSING if _MISSING in parts else parts
    if origin is dict:
        return item if isinstance(item, dict) else _MISSING
    if hint is float:
        return float(item) if isinstance(item, (int, float)) and not isinstance(item, bool) else _MISSING
    if hint is int:
        return item if isinstance(item, int) and not isinstance(item, bool) else _MISSING
    if isinstance(item, dict) and set(item) == {"callable"} and hint not in (str, bool):
        return LazyCallable(str(item["callable"]), where)
    return item if isinstance(hint, type) and hint is not type(None) and isinstance(item, hint) else _MISSING


def _spell(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


@dataclasses.dataclass(frozen=True)
class LazyCallable:
    """An environment callable by its name, so that a run's config can always be read; ``config.trust`` says who may
    call it."""

    name: str
    origin: str = "config.toml"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(f"{self.origin}: nobody has said that {self.name} may be called here")


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """``config`` with settings changed by their flat names: ``{"actors": 4, "learning_rate": 1e-3}``.

    Raises:
        ConfigError: an unknown setting (the message names the nearest) or a value of the wrong type.
    """
    changes: dict[str, dict[str, Any]] = {}
    known = _flat_names()
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}{did_you_mean(name, known)}")
        group, hint = known[name]
        if not callable(value):
            plain = list(value) if isinstance(value, tuple) else value
            value = None if value is None and type(None) in typing.get_args(hint) else _convert(hint, plain, name)
        if value is _MISSING:
            raise ConfigError(f"{name} = {values[name]!r} is not of type {_spell(hint)}")
        changes.setdefault(group, {})[name] = value
    for group, changed in changes.items():
        if group:
            changed = {group: dataclasses.replace(getattr(config, group), **changed)}
        config = dataclasses.replace(config, **changed)
    return config


@functools.cache
def _flat_names() -> dict[str, tuple[str, Any]]:
    """Every setting's flat name -> (its group or "", its type)."""
    names: dict[str, tuple[str, Any]] = {}
    for entry, hint in typing.get_type_hints(Config).items():
        if dataclasses.is_dataclass(hint):
            names |= {name: (entry, inner) for name, inner in typing.get_type_hints(hint).items()}
        else:
            names.setdefault(entry, ("", hint))
    return names


def flat(config: Config) -> dict[str, Any]:
    """Every setting's flat name -> its value."""
    return {
        name: getattr(getattr(config, group) if group else config, name) for name, (group, _) in _flat_names().items()
    }


# Settings by what they may be. NaN fulfils none of these.
_RANGES: list[tuple[str, Callable[[Any], bool], str]] = [
    (
        "at least 1",
        lambda value: value >= 1,
        "envs_per_actor pull_period stack target_period_updates policy_period_updates batch_size "
        "publish_period_updates learner_threads checkpoints_kept eval_episodes eval_envs min_size capacity trim_every "
        "image_units recurrent_units sequence_length sequence_stride cosines unroll_length epochs minibatches "
        "queue_batches learners parameter_servers policy_workers predictors trainers training_min_batch min_actors",
    ),
    ("between 1 and 1,000", lambda value: 1 <= value <= 1_000, "n_step"),
    ("at least 2", lambda value: value >= 2, "atoms quantiles quantile_samples"),
    (
        "positive",
        lambda value: 0 < value < math.inf,
        "learning_rate initial_temperature munchausen_temperature env_timeout checkpoint_seconds eval_period_seconds "
        "window_mb lease_seconds patience_minutes priority_eps rho_clip c_clip clip_ratio autotune_seconds "
        "noisy_sigma optimizer_eps",
    ),
    (
        "0 or more",
        lambda value: 0 <= value < math.inf,
        "reward_clip max_episode_steps gradient_clip huber policy_learning_rate temperature "
        "temperature_learning_rate residual target_noise target_noise_clip rescaling_eps alpha beta "
        "samples_per_insert insert_band epsilon_alpha sigma_alpha actor_restarts actor_slots send_period "
        "learner_restarts updates_per_second env_steps minutes value_coefficient value_clip entropy_coefficient "
        "probability_floor max_policy_lag max_gradient_lag outlier_deviations inference_batch inference_wait_ms "
        "splits stall_timeout",
    ),
    (
        "between 0 and 1",
        lambda value: 0 <= value <= 1,
        "gamma epsilon sigma rmsprop_decay polyak priority_eta munchausen_alpha gae_lambda",
    ),
    ("from 0 up to, not including, 1", lambda value: 0 <= value < 1, "first_moment_decay momentum"),
    ("from 0 up to, not including, 2^63", lambda value: 0 <= value < 2**63, "seed"),
    ("0 … 255", lambda value: 0 <= value <= 255, "burn_in"),
    ("0 or less", lambda value: -math.inf < value <= 0, "munchausen_clip"),
    ("a finite number", math.isfinite, "v_min v_max remover_alpha"),
    ("a finite number", lambda value: value is None or math.isfinite(value), "target_entropy"),
    ("numbers of units, at least 1 each", lambda value: all(units >= 1 for units in value), "hidden critic_hidden"),
]


def check(config: Config, elsewhere: bool = False) -> None:
    """Refuse values that no run could mean, whoever the agent is.

    Args:
        elsewhere: other hosts may bring all that steps environments.

    Raises:
        ConfigError: a value is out of range or two contradict each other; the message names the flag.
    """
    values = flat(config)
    for words, holds, names in _RANGES:
        for name in names.split():
            if not holds(values[name]):
                raise ConfigError(f"{_flag(name)} must be {words}, not {values[name]}")
    agent, replay, actor, learner = config.agent, config.replay, config.actor, config.learner
    if actor.actors < 1 - elsewhere:
        raise ConfigError(f"--actors must be at least 1, not {actor.actors}")
    if actor.min_actors > max(1, actor.actors):
        raise ConfigError(f"--min-actors {actor.min_actors} are more than the --actors {actor.actors} that there are")
    if config.name and (not re.fullmatch(r"[\w.+=@-][\w.+=@ -]*", config.name) or config.name in {".", ".."}):
        raise ConfigError(f"--name {config.name!r} is no plain folder name: use letters, digits, '-', '_' and '.'")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", learner.device):
        raise ConfigError(f"--device must be auto, cpu, cuda, cuda:N or mps, not {learner.device!r}")
    if config.serial and actor.vector == "threads":
        raise ConfigError(
            "--serial cannot go with --vector threads: which environment is ready first is no matter of the seed. "
            "Leave out one of them"
        )
    if config.serial and config.wiring.autotune:
        raise ConfigError(
            "--serial cannot go with --autotune: roles that take turns in one process gain nothing by being more. "
            "Leave out one of them"
        )
    if 0 < actor.actor_slots < actor.actors:
        raise ConfigError(f"--actor-slots {actor.actor_slots} is less than --actors {actor.actors}")
    if not agent.v_min < agent.v_max:
        raise ConfigError(f"--v-min {agent.v_min:g} must be less than --v-max {agent.v_max:g}")
    if agent.sequence_stride > agent.sequence_length:
        raise ConfigError(
            f"--sequence-stride {agent.sequence_stride} is more than --sequence-length {agent.sequence_length}: steps "
            "in between would be in no sequence. Lower the one or raise the other"
        )
    if agent.anneal and not config.stop.env_steps:
        raise ConfigError(
            "--anneal lets the step size fall to 0 over the environment steps of the run: say how many with --env-steps"
        )
    if replay.remover == "proportional" and replay.alpha == 0:
        raise ConfigError("--remover proportional needs priorities: set --alpha above 0, or --remover fifo")
    if replay.min_size > replay.capacity:
        raise ConfigError(
            f"--min-size {replay.min_size} is more than --capacity {replay.capacity}: it is never reached"
        )


def as_flag(name: str, value: Any) -> str:
    """A setting as it would be given on the command line: ``--no-double``, ``--hidden 64 64``."""
    flag = _flag(name)
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    if isinstance(value, float):
        return f"{flag} {value:g}"
    return " ".join([flag, *map(str, value if isinstance(value, tuple) else [value])])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
