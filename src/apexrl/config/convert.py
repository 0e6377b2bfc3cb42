"""A configuration is written as TOML and read back (exactly), changed by flat names, and checked value by value.

An environment given as a Python callable is written as ``{ callable = "module:qualname" }`` and imported again when
read; one that cannot be imported by name (a lambda, a local function, one of ``__main__``) is noted the same way and
refused, with the reason, only when somebody needs it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import tomllib
import typing
from collections.abc import Callable, Mapping
from typing import Any

from apexrl.config import AgentConfig, Config
from apexrl.config.elsewhere import ELSEWHERE
from apexrl.config.outside import is_outside
from apexrl.config.settings import Setting, did_you_mean, settings_of
from apexrl.errors import ConfigError

OWN = frozenset(("agent_settings", "topology_settings"))
"""Settings that hold those which an agent or a topology of your own declares, each of which is a flag."""


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
    known = settings_of(kind)
    values: dict[str, Any] = {}
    for name, item in table.items():
        if (name, kind) == ("recurrent", AgentConfig):  # of releases until 0.2, in which memories were LSTMs
            values["memory"] = "lstm" if item else "none"
            continue
        if name not in known:
            ours = ELSEWHERE.get(name, name)
            hint = did_you_mean(name, known)
            if ours in known_settings():
                section = known_settings()[ours][0]
                hint = f": here it is {ours!r}, which" if ours != name else ": it"
                hint += " belongs " + (f"in the section [{section}]" if section else "above all sections")
            raise ConfigError(f"{where}: unknown setting {name!r}{hint}")
        if name in _GROUPS and kind is Config:
            if not isinstance(item, dict):
                own = f", and below it {name} = {item!r}" if name in settings_of(_GROUPS[name]) else ""
                raise ConfigError(f"{where}: {name} = {item!r}: {name} is a section: write [{name}]{own}")
            values[name] = _from_table(_GROUPS[name], item, f"{where}: {name}")
        else:
            values[name] = _value(known[name], item, f"{where}: ")
    return kind(**values)


def _value(setting: Setting, item: Any, where: str = "") -> Any:
    if setting.name != "env":
        return setting.converted(item, where)
    if isinstance(item, dict) and set(item) == {"callable"}:
        return LazyCallable(str(item["callable"]), where.removesuffix(": "))
    if not isinstance(item, str) and not callable(item):
        raise ConfigError(
            f"{where}env = {item!r} is no name and no callable: every worker makes environments of its own, so give "
            "the id, the class, or a function that makes one, as env=lambda: gymnasium.make('CartPole-v1')"
        )
    return item


@dataclasses.dataclass(frozen=True)
class LazyCallable:
    """An environment callable by its name, so that a run's config can always be read; ``config.trust`` says who may
    call it."""

    name: str
    origin: str = "config.toml"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(f"{self.origin}: the environment {self.name} is not trusted here: --trust allows its module")


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """``config`` with settings changed by their flat names: ``{"actors": 4, "learning_rate": 1e-3}``.

    A name that is none of apexrl's may be one that an agent or a topology of your own declares: ``validate`` looks.

    Raises:
        ConfigError: an unknown setting (the message names the nearest) or a value of the wrong type.
    """
    known = known_settings()
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name in known:
            group, setting = known[name]
            changes.setdefault(group, {})[name] = _value(setting, value)
    for group, changed in changes.items():
        if group:
            changed = {group: dataclasses.replace(getattr(config, group), **changed)}
        config = dataclasses.replace(config, **changed)
    if others := {name: value for name, value in values.items() if name not in known}:
        if is_outside("agents", config.agent.agent):
            own = {**config.agent.agent_settings, **others}
            return dataclasses.replace(config, agent=dataclasses.replace(config.agent, agent_settings=own))
        if is_outside("topologies", config.topology):
            own = {**config.wiring.topology_settings, **others}
            return dataclasses.replace(config, wiring=dataclasses.replace(config.wiring, topology_settings=own))
        raise ConfigError(f"unknown setting {(name := next(iter(others)))!r}{did_you_mean(name, known)}")
    return config


@functools.cache
def known_settings() -> Mapping[str, tuple[str, Setting]]:
    """Every setting of apexrl by its flat name -> (its group in ``Config`` or "", the setting)."""
    found = {name: ("", setting) for name, setting in settings_of(Config).items() if name not in _GROUPS}
    for group, kind in _GROUPS.items():
        found |= {name: (group, setting) for name, setting in settings_of(kind).items()}
    return found


_GROUPS: Mapping[str, Any] = {
    name: hint for name, hint in typing.get_type_hints(Config).items() if dataclasses.is_dataclass(hint)
}


def flat(config: Config) -> dict[str, Any]:
    """Every setting's flat name -> its value."""
    return {
        name: getattr(getattr(config, group) if group else config, name)
        for name, (group, _) in known_settings().items()
    }


def check_values(config: Config, elsewhere: bool = False) -> None:
    """Refuse values that are out of range, or contradict each other, whichever agent and topology read them.

    Args:
        elsewhere: other hosts may bring all that steps environments.

    Raises:
        ConfigError: a value is out of range or two contradict each other; the message names the flag.
    """
    values = flat(config)
    for name, (_, setting) in known_settings().items():
        setting.check(values[name])
    agent, replay, actor = config.agent, config.replay, config.actor
    if actor.actors < 1 - elsewhere:
        raise ConfigError(f"--actors must be at least 1, not {actor.actors}")
    if actor.min_actors > max(1, actor.actors):
        raise ConfigError(f"--min-actors {actor.min_actors} are more than the --actors {actor.actors} that there are")
    if config.name and (not re.fullmatch(r"[\w.+=@-][\w.+=@ -]*", config.name) or config.name in {".", ".."}):
        raise ConfigError(f"--name {config.name!r} is no plain folder name: use letters, digits, '-', '_' and '.'")
    if config.serial and actor.vector == "threads":
        raise ConfigError(
            "--serial cannot go with --vector threads: the seed does not decide which thread is ready first. "
            "Leave out one of them"
        )
    if config.serial and config.wiring.autotune:
        raise ConfigError(
            "--serial cannot go with --autotune: in one process, more actors make nothing faster. Leave out one of them"
        )
    if 0 < actor.actor_slots < actor.actors:
        raise ConfigError(f"--actor-slots {actor.actor_slots} is less than --actors {actor.actors}")
    if not agent.v_min < agent.v_max:
        raise ConfigError(f"--v-min {agent.v_min:g} must be less than --v-max {agent.v_max:g}")
    if agent.initial_std < agent.least_std:
        raise ConfigError(
            f"--initial-std {agent.initial_std:g} is less than --least-std {agent.least_std:g}: lower this, too"
        )
    if agent.sequence_stride > agent.sequence_length:
        raise ConfigError(
            f"--sequence-stride {agent.sequence_stride} is more than --sequence-length {agent.sequence_length}: steps "
            "in between would be in no sequence. Lower the one or raise the other"
        )
    if agent.anneal_horizon and not 0.0 < agent.gamma < 1.0:
        raise ConfigError(
            f"--anneal-horizon changes 1 − γ exponentially, which never becomes 0: set --gamma between 0 and 1, not "
            f"{agent.gamma:g}, or --no-anneal-horizon"
        )
    offline, stop = config.topology == "offline", config.stop
    limit = stop.updates if offline else stop.schedule_env_steps or stop.env_steps
    steps, of = ("--updates", "updates") if offline else ("--env-steps or --schedule-env-steps", "environment steps")
    if agent.anneal and not limit:
        raise ConfigError(f"--anneal lowers the step size over the {of} of the run: set {steps}")
    if agent.beta_end and not limit:
        raise ConfigError(f"--beta-end is reached with the last of the run's {of}: set {steps}")
    if offline and stop.schedule_env_steps:
        raise ConfigError("--schedule-env-steps counts environment steps, and topology offline makes none: --updates")
    if offline and config.evaluator.eval_period_steps:
        raise ConfigError(
            "--eval-period-steps counts environment steps, and topology offline makes none: use --eval-period-seconds"
        )
    if offline and not replay.dataset:
        raise ConfigError("topology offline learns from a dataset alone: name one with --dataset")
    if replay.remover == "proportional" and replay.alpha == 0:
        raise ConfigError("--remover proportional needs priorities: set --alpha above 0, or --remover fifo")
    if replay.min_size > replay.capacity:
        raise ConfigError(
            f"--min-size {replay.min_size} is more than --capacity {replay.capacity}: it is never reached"
        )
