"""What the flags of ``train`` and ``learner`` change: a preset, a file, or what suits an environment."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from apexrl.cli import train_flags
from apexrl.config import Config, convert
from apexrl.config.paths import expanded
from apexrl.errors import ConfigError
from apexrl.presets import names, preset, unseen, with_names
from apexrl.presets.choice import AUTO
from apexrl.presets.unseen import Recipe


def starting_point(words: list[str], command: str = "train") -> tuple[Config, str]:
    """The configuration that the flags change, and its name on the command line, which is removed from ``words``."""
    if words and not words[0].startswith("-"):
        word = words.pop(0)
        if word.endswith(".toml"):
            path = expanded(word)
            if not path.is_file():
                raise ConfigError(f"there is no file {path}")
            # the folder of the first run exists: this one gets a new name
            start = dataclasses.replace(convert.from_toml(_text_of(path), str(path)), name="")
            return _of_file(start, words, word), word
        return _with_names(preset(word).config, words), word
    asks_help = "-h" in words or "--help" in words
    if not asks_help and not any(word == "--env" or word.startswith("--env=") for word in words):
        misplaced = next((word for word in words if word in names()), None)
        if misplaced:
            raise ConfigError(f"the preset comes first: apexrl {command} {misplaced} --flags")
        raise ConfigError(
            f"say what to train: apexrl {command} PRESET ({', '.join(names())}), or apexrl {command} --env ID; "
            f"see: apexrl {command} --help"
        )
    if (env := _given(words, "--env")) in names():
        raise ConfigError(f"{env} is a preset, which has its environment: apexrl {command} {env}")
    return _unseen(words, command, asks_help), ""


def _text_of(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8, which settings must be saved as: {error}") from error
    if not any(line.partition("#")[0].strip() for line in text.splitlines()):
        raise ConfigError(f"{path} is empty: it should hold settings, as config.toml of a run does")
    return text


def _unseen(words: list[str], command: str, asks_help: bool) -> Config:
    """What a run without a preset starts from. ``--agent auto``, which is no agent's name, goes from ``words``."""
    agent, topology = _given(words, "--agent"), _given(words, "--topology")
    recipe = recipe_given(words)
    if agent == AUTO:
        place = words.index("--agent") if "--agent" in words else words.index("--agent=auto")
        del words[place : place + (2 if words[place] == "--agent" else 1)]
    if asks_help:
        return unseen.assumed_start(agent, topology, recipe)
    look = train_flags.parse_look(words, Config())
    given = [*train_flags.settings_given(words), *(["redis"] if command == "learner" else [])]
    start = unseen.start(look, agent, topology, recipe, given)
    for line in start.said.splitlines():
        print(f"apexrl: {line}", file=sys.stderr, flush=True)
    return start.config


def recipe_given(words: list[str]) -> Recipe:
    """The recipe that the flags of a run without a preset name, or that which it has by itself."""
    recipe: Recipe = convert.known_settings()["recipe"][1].converted(
        _given(words, "--recipe") or "default", "--recipe: "
    )
    return recipe


def _of_file(config: Config, words: list[str], word: str) -> Config:
    """The configuration of a file with the topology and the agent that the flags name."""
    agent, topology = _given(words, "--agent"), _given(words, "--topology")
    if config.preset or config.recipe == "none" or not (agent or topology):
        return _with_names(config, words)
    return unseen.switched(config, agent, topology, train_flags.look_of_file(words, config, word))


def _with_names(config: Config, words: list[str]) -> Config:
    """``config`` with the topology and the agent that the flags name."""
    return with_names(config, _given(words, "--topology"), _given(words, "--agent"))


def _given(words: list[str], flag: str) -> str:
    """The value of ``flag``; empty: it is not there."""
    for place, word in enumerate(words):
        value = words[place + 1] if word == flag and place + 1 < len(words) else word.partition(f"{flag}=")[2]
        if value:
            return value
    return ""
