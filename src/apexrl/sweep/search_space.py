"""Which settings a sweep varies, and between which values: from the settings' own declarations.

A range that nobody gives lies around the value that the run would have, as far as the setting's ``Range`` allows. It is
searched on a logarithmic scale where it spans decades. Numbers just below 1, such as a discount, are searched by their
distance from 1: that is what changes by decades.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from apexrl import topologies
from apexrl.agents import setting_relevance
from apexrl.config import Config
from apexrl.config.convert import flat, known_settings
from apexrl.config.settings import Range, Setting, as_flag, did_you_mean, flag
from apexrl.errors import ConfigError
from apexrl.topologies.validation import unused

DEFAULTS: Final = (
    "learning_rate",
    "gamma",
    "batch_size",
    "n_step",
    "target_period_updates",
    "polyak",
    "entropy_coefficient",
    "gae_lambda",
    "clip_ratio",
    "unroll_length",
)
"""What is varied unless somebody says otherwise, as far as the agent reads it. ``updates_per_step`` and sizes of
networks are left out: they change what a run costs, and the search would choose the dearest."""

_DECADE: Final = 10.0
_AROUND: Final = {float: 10.0, int: 4.0}  # factor below and above the value that the run would have
_NEAR_ONE: Final = 0.9
_DIGITS: Final = 4  # of a setting: more would be noise, and hard to read


@dataclass(frozen=True)
class Dimension:
    """One setting that a sweep varies: a range of numbers, or some choices."""

    setting: str
    """Its flat name."""
    kind: Literal["float", "int", "choice"]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    """Searched on a logarithmic scale."""
    from_one: bool = False
    """The distance from 1 is searched; ``low`` and ``high`` are the setting's own all the same."""
    choices: tuple[bool | int | float | str, ...] = ()
    """A tuple of numbers is written as in a flag: ``64 64``."""

    @property
    def label(self) -> str:
        """The name of what is searched."""
        return f"1 - {self.setting}" if self.from_one else self.setting

    @property
    def ends(self) -> tuple[float, float]:
        """Least and greatest of what is searched."""
        return (1.0 - self.high, 1.0 - self.low) if self.from_one else (self.low, self.high)

    def to_setting(self, searched: Any) -> Any:
        """The setting's value for a value of what is searched."""
        if self.kind == "choice":
            return _from_text(known_settings()[self.setting][1], searched)
        if self.kind == "int":
            return int(searched)
        value = 1.0 - rounded(float(searched)) if self.from_one else rounded(float(searched))
        return min(max(round(value, 12), self.low), self.high)

    def to_searched(self, value: Any) -> Any:
        """The inverse of ``to_setting``; None: the value lies outside."""
        if self.kind == "choice":
            found = _to_text(value)
            return found if found in self.choices else None
        searched = 1.0 - value if self.from_one else value
        low, high = self.ends
        return searched if low <= searched <= high else None

    def __str__(self) -> str:
        if self.kind == "choice":
            return f"{self.setting}: {', '.join(map(str, self.choices))}"
        return f"{self.setting}: {self.low:g} to {self.high:g}{', logarithmic' if self.log else ''}"


def search_space(config: Config, over: Sequence[str] = (), usual: Sequence[str] = DEFAULTS) -> tuple[Dimension, ...]:
    """The settings to vary.

    Args:
        over: ``NAME``, ``NAME=LOW..HIGH`` or ``NAME=A,B,C`` for each; empty: ``usual``, as far as the agent reads them.

    Raises:
        ConfigError: an unknown setting, one that means nothing here, or a range that it cannot have.
    """
    values = flat(config)
    if not over:
        nothing = unused(config)
        found = [name for name in usual if name not in nothing and values[name]]
        return tuple(_around(known_settings()[name][1], values[name]) for name in found)
    space = tuple(_wanted(config, values, word) for word in over)
    names = [one.setting for one in space]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ConfigError(f"--over names {twice} twice")
    return space


def rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.{_DIGITS}g}")


def _wanted(config: Config, values: dict[str, Any], word: str) -> Dimension:
    """The dimension that a word of ``--over`` asks for."""
    name, equals, text = word.partition("=")
    name = name.removeprefix("--").replace("-", "_")
    if name not in known_settings():
        raise ConfigError(f"--over: there is no setting {name!r}{did_you_mean(name, known_settings())}")
    group, setting = known_settings()[name]
    if group not in ("agent", "replay", "actor", "learner", "wiring") or name in ("agent", "agent_settings"):
        raise ConfigError(
            f"--over {name}: that is nothing to search; choose settings of agent, replay, actor or learner"
        )
    setting_relevance.check_read(config.agent.agent, [name])
    topologies.check_read(config.topology, [name])
    if name in setting_relevance.idle(config):
        raise ConfigError(f"--over {name}: it means nothing with {setting_relevance.idle(config)[name]}")
    try:
        return _given(setting, text) if equals else _around(setting, values[name])
    except ConfigError as error:
        raise ConfigError(f"--over {word}: {error}") from error


def _given(setting: Setting, text: str) -> Dimension:
    """A dimension with the range or the choices that somebody gave."""
    low, dots, high = text.partition("..")
    if not dots:
        choices = [choice.strip() for choice in text.split(",") if choice.strip()]
        if len(choices) < 2:
            raise ConfigError(f"give a range, {setting.name}=LOW..HIGH, or choices, {setting.name}=A,B,C")
        return _choices(setting, [_from_text(setting, choice) for choice in choices])
    kind = _kind(setting)
    if kind is None:
        raise ConfigError(f"{setting.flag} is no number: give choices, {setting.name}=A,B,C")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise ConfigError(f"{text!r} is no range of numbers, LOW..HIGH") from None
    if not ends[0] < ends[1]:
        raise ConfigError(f"{low} is not less than {high}")
    if kind is int and any(end != int(end) for end in ends):
        raise ConfigError(f"{setting.flag} is a whole number")
    for end in ends:
        setting.check(kind(end))
    return _numbers(setting.name, kind, *ends)


def _around(setting: Setting, value: Any) -> Dimension:
    """A dimension around a run's own value, as far as the setting's rules allow."""
    kind = _kind(setting)
    if setting.hint is bool:
        return _choices(setting, [False, True])
    if typing.get_origin(setting.hint) is Literal:
        return _choices(setting, list(typing.get_args(setting.hint)))
    if kind is None and isinstance(value, tuple) and value:
        sizes = [tuple(max(1, int(one * factor)) for one in value) for factor in (0.5, 1, 2)]
        return _choices(setting, sizes)
    if kind is None or not value or value < 0:
        shown = as_flag(setting.name, value)
        raise ConfigError(f"there is no range around {shown}: give one, {setting.name}=LOW..HIGH or {setting.name}=A,B")
    rule = next((rule for rule in setting.rules if isinstance(rule, Range)), Range())
    if kind is float and _NEAR_ONE <= value < 1.0 and min(rule.at_most, rule.below) == 1.0:
        distance = 1.0 - value
        return _numbers(setting.name, kind, round(1.0 - min(0.5, _DECADE * distance), 12), 1.0 - distance / _DECADE)
    factor = _AROUND[kind]
    low, high = max(value / factor, rule.at_least), min(value * factor, rule.at_most, rule.below)
    if kind is int:
        low, high = max(1, round(low)), round(high)
    return _numbers(setting.name, kind, low, high)


def _numbers(name: str, kind: type[Any], low: float, high: float) -> Dimension:
    if kind is int:
        return Dimension(name, "int", int(low), int(high), low >= 1 and high / low >= _DECADE)
    low, high = round(low, 12), round(high, 12)
    if low >= 0.5 and high < 1.0 and (1.0 - low) / (1.0 - high) >= _DECADE:
        return Dimension(name, "float", low, high, log=True, from_one=True)
    return Dimension(name, "float", low, high, low > 0 and high / low >= _DECADE)


def _choices(setting: Setting, values: Sequence[Any]) -> Dimension:
    for value in values:
        setting.check(value)
    return Dimension(setting.name, "choice", choices=tuple(dict.fromkeys(map(_to_text, values))))


def _kind(setting: Setting) -> type[Any] | None:
    """``float`` or ``int``; None: it is no number."""
    kinds = [one for one in (typing.get_args(setting.hint) or (setting.hint,)) if one is not type(None)]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (float, int) else None


def _to_text(value: Any) -> bool | int | float | str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _from_text(setting: Setting, text: Any) -> Any:
    """A choice as the setting's type; ``text`` may have it already."""
    if not isinstance(text, str) or setting.hint is str:
        return text
    if typing.get_origin(setting.hint) is tuple:
        text = text.split()
    if setting.hint is bool:
        text = {"yes": True, "no": False}.get(text, text)
    try:
        return msgspec.convert(text, setting.hint, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{flag(setting.name)} cannot be {text!r} ({error})") from None
