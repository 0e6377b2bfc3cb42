"""Settings of environments that change while a run goes on, as in a curriculum: data, checked wherever it is from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from apexrl.errors import ConfigError
from apexrl.run.atomic_files import read_text, replace_text

MOST_BYTES: Final = 4096
"""Of all settings together, as JSON."""
FILE: Final = "env_change.json"
"""In the run folder."""

_NAME = re.compile(r"[A-Za-z]\w{0,99}")
_IMPORTABLE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w./-]*")


class EnvChange(NamedTuple):
    """All that callbacks have changed since the run began; an environment takes it at its next reset."""

    version: int = 0
    """Counts changes, over resumes too; 0: nothing has changed."""
    attributes: Mapping[str, Any] = {}
    """Attribute of the environment, or of a wrapper of it -> value."""
    options: Mapping[str, Any] = {}
    """What ``reset(options=…)`` gets."""


def encoded(change: EnvChange, where: str) -> bytes:
    """JSON.

    Raises:
        ConfigError: it is more than ``MOST_BYTES``, has an attribute with no plain name, or values that are no numbers,
            texts, lists or dicts. The message begins with ``where``.
    """
    for name in change.attributes:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} is no attribute that can be changed")
    _check(change.attributes, where)
    _check(change.options, where)
    try:
        data = json.dumps(change._asdict(), allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: environments take numbers, texts, lists and dicts ({error})") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{where}: {len(data)} bytes of environment settings; {MOST_BYTES} are the most")
    return data


def decoded(data: bytes, where: str) -> EnvChange:
    """The inverse of ``encoded``, of bytes that anybody may have written.

    Raises:
        ConfigError: they are no change.
    """
    try:
        told = json.loads(data)
        change = EnvChange(told["version"], told["attributes"], told["options"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} holds no environment settings ({error})") from None
    maps = isinstance(change.attributes, dict) and isinstance(change.options, dict)
    if not maps or not isinstance(change.version, int) or not 0 <= change.version < 2**53:
        raise ConfigError(f"{where} holds no environment settings")
    encoded(change, where)
    return change


def read(folder: Path) -> EnvChange:
    """The newest change of a run, from its folder.

    Raises:
        ConfigError: the file is none of ours.
    """
    path = folder / FILE
    if not path.is_file():
        return EnvChange()
    try:
        return decoded(read_text(path, MOST_BYTES).encode(), str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): delete it to begin with unchanged environments") from None


def write(folder: Path, data: bytes, check: Any) -> None:
    """Write the newest change, atomically; ``check`` raises FencedError where another process has the run."""
    replace_text(folder / FILE, data.decode(), check)


def _check(value: Any, where: str) -> None:
    """Refuse texts that an environment might import: ``module:name``."""
    if isinstance(value, str) and _IMPORTABLE.fullmatch(value):
        raise ConfigError(f"{where}: {value!r} may name code, which is no setting that can change while a run goes on")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {value} is no finite number")
    if isinstance(value, Mapping):
        for item in value.values():
            _check(item, where)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, where)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r:.60} is none of them")
