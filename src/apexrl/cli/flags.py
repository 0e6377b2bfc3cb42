"""Flags from dataclasses, through tyro: one flat flag per setting."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import tyro

from apexrl.config import Config
from apexrl.config.convert import OWN
from apexrl.config.named_env import named_env
from apexrl.config.settings import Range, Setting, settings_of

T = TypeVar("T")

_NUMBER_OR_NONE: Any = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="FLOAT|none",
    instance_from_str=lambda words: None if words[0].lower() == "none" else float(words[0]),
    is_instance=lambda value: value is None or isinstance(value, (int, float)),
    str_from_instance=lambda value: ["none" if value is None else str(value)],
)

_GROUPS: dict[str, Any] = {
    str(kind.__name__): kind
    for kind in typing.get_type_hints(Config).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}


def parse(kind: type[T], words: Sequence[str], command: str) -> T:
    """Parse the flags of a command; exits with code 2 and an explanation when they are wrong."""
    return tyro.cli(kind, prog=f"apexrl {command}", args=list(words), registry=registry())


def offering(
    command: type[Any], start: Config, unread: Set[str], own: Mapping[str, type[Any]]
) -> tuple[type[Any], dict[str, Any]]:
    """``command`` with flags for settings in ``own``, without those in ``unread``, and its values from ``start``."""
    values = {entry.name: getattr(start, entry.name) for entry in dataclasses.fields(Config)}
    fields: list[tuple[str, Any, Any]] = []
    for name, setting in settings_of(Config).items():
        value = values[name]
        if dataclasses.is_dataclass(value):
            kind = _shown(type(value), unread | OWN)
            values[name] = kind(**{entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)})
            fields.append((name, kind, dataclasses.field(default=values[name])))
        elif setting.rules:
            fields.append((name, _with_help(setting), dataclasses.field(default=value)))
    has = {**start.agent.agent_settings, **start.wiring.topology_settings}
    for place, kind in own.items():
        known = {
            name: setting.converted(has[name]) if name in has else setting.default
            for name, setting in settings_of(kind).items()
        }
        filled = {name: tyro.MISSING if value is dataclasses.MISSING else value for name, value in known.items()}
        shown = _shown(kind)
        fields.append((place, shown, dataclasses.field(default=shown(**filled))))
    return dataclasses.make_dataclass("Train", fields, bases=(command,), frozen=True), values


def _shown(kind: type[Any], hidden: Set[str] = frozenset()) -> type[Any]:
    """A dataclass with the fields of ``kind``, whose help says what they may be; those in ``hidden`` are no flags."""
    fields = [
        (name, Annotated[setting.hint, tyro.conf.Suppress] if name in hidden else _with_help(setting))
        for name, setting in settings_of(kind).items()
    ]
    said = kind.__doc__ or ""
    if said.startswith(f"{kind.__name__}("):  # which ``dataclass`` writes where nothing is said
        said = "Settings of your own."
    return dataclasses.make_dataclass(kind.__name__, fields, frozen=True, namespace={"__doc__": said})


def _with_help(setting: Setting) -> Any:
    """A setting's type, with its description and its range as help."""
    must = "Each must be" if typing.get_origin(setting.hint) is tuple else "Must be"
    rules = [f"{must} {rule}." for rule in setting.rules if rule != Range()]
    how = tyro.conf.arg(help=" ".join([setting.description, *rules]).strip())
    return (
        Annotated[setting.hint, _NUMBER_OR_NONE, how] if setting.hint == float | None else Annotated[setting.hint, how]
    )


def plain_group(value: Any) -> Any:
    """A group of settings as ``apexrl.config`` has it, where some had no flags."""
    known = _GROUPS.get(type(value).__name__)
    return value if known is None else known(**{e.name: getattr(value, e.name) for e in dataclasses.fields(known)})


def registry() -> tyro.constructors.ConstructorRegistry:
    """What tyro cannot guess: keyword arguments of an environment, an environment that may be a callable, and how help
    shows an empty text."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def text(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type is not str:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="STR",
            instance_from_str=lambda words: words[0],
            is_instance=lambda value: isinstance(value, str),
            str_from_instance=lambda value: [value or "empty"],
        )

    @registry.primitive_rule
    def integer(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: _read_integer(words[0]),
            is_instance=lambda value: isinstance(value, int),
            str_from_instance=lambda value: [str(value)],
        )

    @registry.primitive_rule
    def kwargs(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type != dict[str, Any]:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar="[KEY VALUE]…",
            instance_from_str=_read_kwargs,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [w for k, v in value.items() for w in (k, _spell(v))] or ["none"],
        )

    @registry.primitive_rule
    def env(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type != str | Callable[..., Any]:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="ID|MODULE:ID|MODULE:NAME",
            instance_from_str=lambda words: named_env(words[0]),
            is_instance=lambda value: isinstance(value, str) or callable(value),
            str_from_instance=lambda value: [value if isinstance(value, str) else "(callable)"],
        )

    return registry


def _read_integer(word: str) -> int:
    """An integer, also as 1e6."""
    with suppress(ValueError):
        return int(word)
    with suppress(ValueError):
        if (value := float(word)).is_integer():
            return int(value)
    raise ValueError(f"wants an integer, as 1000 or 1e6, got {word!r}")


def _read_kwargs(words: list[str]) -> dict[str, Any]:
    """``KEY VALUE`` or ``KEY=VALUE``, each: the name of an argument has no equals sign."""
    found = dict[str, Any]()
    rest = iter(words)
    for word in rest:
        key, equals, value = word.partition("=")
        try:
            found[key] = _read(value if equals else next(rest))
        except StopIteration:
            raise ValueError(f"wants KEY VALUE or KEY=VALUE, each; {word} has no value") from None
    return found


def _read(word: str) -> Any:
    """Numbers, true, false, lists and objects as in JSON; anything else is text."""
    if word in ("True", "False"):
        return word == "True"
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return word if value is None else value


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
