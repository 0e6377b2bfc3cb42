"""Callbacks that a command line names: of an installed package, or ``module:name``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from apexrl.config.outside import imported, installed
from apexrl.config.settings import did_you_mean
from apexrl.errors import ConfigError
from apexrl.run.callback_observer import CallbackObserver


def named_callbacks(names: Sequence[str]) -> list[CallbackObserver]:
    """What calls the callbacks of these names; a class is called without arguments.

    Raises:
        ConfigError: there is no such module or name, or what it names is no callback.
    """
    return [CallbackObserver(_callback(name)) for name in names]


def _callback(name: str) -> Any:
    offered = installed("callbacks")
    if ":" not in name and name not in offered:
        known = f" Installed packages offer: {', '.join(offered)}{did_you_mean(name, offered)}" if offered else ""
        raise ConfigError(f"--callback {name!r} is no callback: write module:name of your own.{known}")
    where = name if ":" in name else offered[name].value
    module_name, _, found_name = where.partition(":")
    if not (found_name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError(f"--callback {name!r} is no callback: write module:name of your own.")
    found = imported(f"--callback {name!r}", where)
    if found is None:
        near = did_you_mean(found_name, vars(sys.modules[module_name]))
        raise ConfigError(f"--callback {name!r}: module {module_name} has no {found_name!r}{near}")
    try:
        return found() if isinstance(found, type) else found
    except TypeError as error:
        raise ConfigError(
            f"--callback {name!r}: {found_name} cannot be made without arguments ({error}): name a callback that is "
            f"made already, such as `watch = {found_name}(…)` of the same module"
        ) from error
