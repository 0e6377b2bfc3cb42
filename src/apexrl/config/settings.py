"""A setting: one field of a dataclass, with its type, default, range, the settings that it needs, and its description.

A dataclass declares settings as ``name: Annotated[float, Range(0, 1), Needs("other")] = 0.5``, each followed by its
description as a string. Flags, help, config.toml, validation and the settings reference are made from that alone.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import re
import textwrap
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple

from apexrl.config.elsewhere import ELSEWHERE
from apexrl.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be, all of them finite; of a tuple, each of its numbers. None is not looked at."""

    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def holds(self, value: Any) -> bool:
        if value is None:
            return True
        if isinstance(value, tuple):
            return all(map(self.holds, value))
        inside = self.at_least <= value <= self.at_most and self.above <= value <= self.below  # not so for NaN
        return inside and value not in (self.above, self.below, math.inf, -math.inf)

    def __str__(self) -> str:
        least, most = math.isfinite(self.at_least), math.isfinite(self.at_most)
        if math.isfinite(self.below):
            lower = f"more than {self.above:g} and " if math.isfinite(self.above) else ""
            lower = f"at least {self.at_least:g} and " if least else lower
            return f"{lower}below {_spell_bound(self.below)}"
        if least and most:
            return f"between {self.at_least:,} and {self.at_most:,}"
        if least:
            return f"at least {self.at_least:,}" if self.at_least else "0 or more"
        if math.isfinite(self.above):
            words = f"more than {self.above:,}" if self.above else "positive"
            return f"{words} and at most {self.at_most:,}" if most else words
        return f"{self.at_most:,} or less" if most else "a finite number"


@dataclass(frozen=True)
class Matches:
    """The texts that a setting may be."""

    pattern: str
    words: str

    def holds(self, value: Any) -> bool:
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Needs:
    """A setting means something only while another one has one of some values, or none of others."""

    switch: str
    values: tuple[Any, ...] = (True,)
    unless: tuple[Any, ...] = ()

    def met(self, value: Any) -> bool:
        return value not in self.unless if self.unless else value in self.values

    def __str__(self) -> str:
        if self.unless == ("",):
            return flag(self.switch)
        flags = [as_flag(self.switch, value) for value in self.unless or self.values]
        return f"{'not ' if self.unless else ''}{' or '.join(flags)}"


class Setting(NamedTuple):
    """What one field declares."""

    name: str
    hint: Any
    """Its type, without annotations."""
    default: Any
    rules: tuple[Range | Matches, ...]
    needs: Needs | None
    family: Any
    """The dataclass that declares it."""

    @property
    def description(self) -> str:
        """The string behind the field, in the source of its dataclass; empty where there is none."""
        return _descriptions(self.family).get(self.name, "")

    @property
    def flag(self) -> str:
        return flag(self.name)

    def check(self, value: Any) -> None:
        """Raises ConfigError where ``value`` breaks a rule; the message names the flag."""
        for rule in self.rules:
            if not rule.holds(value):
                each = "numbers, each " if isinstance(value, tuple) else ""
                shown = repr(value) if isinstance(value, str) else value
                raise ConfigError(f"{self.flag} must be {each}{rule}, not {shown}")

    def converted(self, value: Any, where: str = "") -> Any:
        """``value``, of a TOML file or of Python, as the setting's type; NumPy's numbers, and 1e6 for a whole one, too.

        Raises:
            ConfigError: it is of another type; the message begins with ``where``.
        """
        import msgspec

        given = value.item() if type(value).__module__ == "numpy" and value.shape == () else value
        if self.hint is int and isinstance(given, float) and given.is_integer():
            given = int(given)
        try:
            return msgspec.convert(given, self.hint)
        except msgspec.ValidationError:
            message = f"{where}{self.name} = {value!r} is "
            if typing.get_origin(self.hint) is typing.Literal:
                choices = list(map(str, typing.get_args(self.hint)))
                message += f"none of {', '.join(choices)}{did_you_mean(str(value), choices)}"
            else:
                message += f"not of type {spell_type(self.hint)}"
            raise ConfigError(message) from None


def settings_of(kind: Any) -> Mapping[str, Setting]:
    """The settings that a dataclass declares, or inherits from its families, by name."""
    return _declared(kind)


@functools.cache
def _declared(kind: Any) -> Mapping[str, Setting]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {}
    for entry in dataclasses.fields(kind):
        hint = hints[entry.name]
        told = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
        found[entry.name] = Setting(
            entry.name,
            typing.get_args(hint)[0] if told else hint,
            entry.default_factory() if entry.default_factory is not dataclasses.MISSING else entry.default,
            tuple(one for one in told if isinstance(one, Range | Matches)),
            next((one for one in told if isinstance(one, Needs)), None),
            next(base for base in kind.__mro__ if entry.name in inspect.get_annotations(base)),
        )
    return found


def names_of(read: Iterable[type[Any] | str]) -> set[str]:
    """The settings of some families, and single ones by their names."""
    return {name for one in read for name in ([one] if isinstance(one, str) else settings_of(one))}


def flag(name: str) -> str:
    """``learning_rate`` on the command line: ``--learning-rate``."""
    return "--" + name.replace("_", "-")


def as_flag(name: str, value: Any) -> str:
    """A setting as it would be given on the command line: ``--no-double``, ``--hidden 64 64``."""
    if isinstance(value, bool):
        return flag(name) if value else f"--no-{flag(name)[2:]}"
    if isinstance(value, float):
        return f"{flag(name)} {value:g}"
    return " ".join([flag(name), *map(str, value if isinstance(value, tuple) else [value])])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing, to end a message with."""
    small = {one.lower(): one for one in known}
    if (ours := ELSEWHERE.get(name)) in small:
        return f" (here it is {ours!r})"
    close = [small[one] for one in get_close_matches(name.lower(), small, n=3, cutoff=0.5)]
    letters = sorted(name.lower())
    close.sort(key=lambda other: sorted(other.lower()) != letters)  # in another order they are the likeliest mistake
    return f" (did you mean {close[0]!r}?)" if close else ""


def spell_type(hint: Any) -> str:
    """A type as in source: ``int``, ``tuple[int, ...]``."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _spell_bound(value: float) -> str:
    power = math.log2(value) if value > 1 else 0.0
    return f"2^{power:g}" if power > 30 and power == int(power) else f"{value:g}"


@functools.cache
def _descriptions(kind: Any) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(after.value.value)
        for field, after in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    }
