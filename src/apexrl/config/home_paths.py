"""Paths that begin with ``~``."""

from __future__ import annotations

import os
from pathlib import Path

from apexrl.errors import ConfigError


def expanded(path: str | os.PathLike[str]) -> Path:
    """``path`` with the home folder for ``~`` or ``~user``.

    Raises:
        ConfigError: there is no such user, or nothing says where the home folder is.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{os.fspath(path)}: no home folder is known for {Path(path).parts[0]}") from error
