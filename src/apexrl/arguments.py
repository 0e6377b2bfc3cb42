"""Command-line flags, made by tyro from the dataclasses of ``apexrl.config``: one flat flag per setting."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import tyro

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.settings import did_you_mean

T = TypeVar("T")

TRAIN_MODULES = frozenset(
    {"gymnasium", "matplotlib", "msgspec", "rich", "safetensors", "tensorboard", "tomli_w", "torch"}
)
"""What the extra ``train`` brings, by import name, for a helpful word when it is missing."""

_FLAT = (tyro.conf.OmitArgPrefixes,)


@dataclass(frozen=True)
class _Train(Config):
    preset: Annotated[str, tyro.conf.Suppress] = ""  # the first word, not a flag


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped: weights, optimizer, counters, and the replay when it was saved.

    What ended the run would end it again at once, so give the new end.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    env_steps: int | None = None
    """New limit of environment steps, those before included; 0: no limit."""
    minutes: float | None = None
    """New limit of minutes of training, those before included; 0: no limit."""
    stop_at_return: float | None = None
    """New mean greedy return at which to stop."""


@dataclass(frozen=True)
class Eval:
    """Play greedy episodes with the best weights of a run."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    episodes: int = 20
    """Episodes to play."""
    video: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for films of the episodes (needs apexrl[video], and an environment that renders rgb_array)."""
    seed: int = 1_000_000_007
    """Of the environments; training uses others."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="best|latest|FILE")] = "best"
    """Which weights: those of the best evaluation, the newest, or a checkpoint file."""


def parse(kind: type[T], words: Sequence[str], command: str) -> T:
    """Parse the flags of a command; exits with code 2 and an explanation when they are wrong."""
    return tyro.cli(kind, prog=f"apexrl {command}", args=list(words), registry=_registry())


def parse_train(words: Sequence[str], start: Config, word: str) -> Config:
    """Parse the flags of ``train``, which change ``start``; ``word`` names it in the help."""
    description = (
        f"Train {word}. Every setting below is a flag; its value here is {word}'s."
        if word
        else "Train a preset, a run's config.toml, or your own environment:\n\n"
        "  apexrl train PRESET [--flags]\n"
        "  apexrl train --env MODULE:Env-v0 [--flags]\n\n"
        "See apexrl list for presets. Every setting is a flag; the defaults below are those without a preset."
    )
    values = {entry.name: getattr(start, entry.name) for entry in dataclasses.fields(Config)}
    parsed = tyro.cli(
        _Train,
        prog=f"apexrl train {word}".strip(),
        description=description,
        args=list(words),
        default=_Train(**values),
        config=_FLAT,
        registry=_registry(),
    )
    return Config(**{name: getattr(parsed, name) for name in values})


def resumed(config: Config, wanted: Resume) -> Config:
    """A run's configuration with the new stop rules of ``resume``."""
    given = {
        name: value
        for name in ("env_steps", "minutes", "stop_at_return")
        if (value := getattr(wanted, name)) is not None
    }
    return dataclasses.replace(config, stop=dataclasses.replace(config.stop, **given))


def check(config: Config) -> None:
    """Refuse what is known to be wrong before any process starts.

    Raises:
        ConfigError: an unknown agent or topology, or an extra that is not installed.
    """
    from apexrl import agents, presets, topologies

    agent = config.agent.agent
    if ":" not in agent and agent not in agents.describe():
        known = list(agents.describe())
        raise ConfigError(
            f"unknown agent {agent!r}{did_you_mean(agent, known)}. Agents: {', '.join(known)}; "
            "or your own as --agent MODULE:Class"
        )
    topologies.topology(config.topology)
    preset = presets.PRESETS.get(config.preset)
    if preset and preset.missing and preset.config.env.env == config.env.env:
        raise ConfigError(
            f"preset {config.preset} needs an extra that is not installed; run: pip install 'apexrl[{preset.extra}]'"
        )


def _registry() -> tyro.constructors.ConstructorRegistry:
    """What tyro cannot guess: keyword arguments of an environment, and an environment that may be a callable."""
    registry = tyro.constructors.ConstructorRegistry()

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
            metavar="ID|MODULE:ID",
            instance_from_str=lambda words: words[0],
            is_instance=lambda value: isinstance(value, str) or callable(value),
            str_from_instance=lambda value: [value if isinstance(value, str) else "(callable)"],
        )

    return registry


def _read_kwargs(words: list[str]) -> dict[str, Any]:
    if len(words) % 2:
        raise ValueError(f"wants pairs of KEY VALUE, got {len(words)} words: {' '.join(words)}")
    return {key: _read(value) for key, value in zip(words[::2], words[1::2], strict=True)}


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
