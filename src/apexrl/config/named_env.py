"""An environment's class or maker by its name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from apexrl.config.convert import describe_callable, import_callable
from apexrl.config.game_names import is_game
from apexrl.errors import ConfigError


def named_env(word: str) -> str | Callable[..., Any]:
    """The class or function that ``module:name`` names, where it is no id that is registered; else the word itself,
    and who makes the environment says what is wrong with it.

    Raises:
        ConfigError: a run could not find it again.
    """
    import gymnasium as gym

    module, _, name = word.rpartition(":")
    if not module or word.startswith("envpool:") or is_game(word):
        return word
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception:
        return word
    if not callable(found) or name in gym.registry:
        return word
    again: Callable[..., Any] | None = None
    with suppress(ConfigError):  # a run folder keeps it by its own name, as a partial or a nested function has none
        again = import_callable(describe_callable(found), "env")
    if again is None or again is not found:
        raise ConfigError(
            f"{word} has no name by which a run could find it again: give a class or a function of a module"
        )
    return again
