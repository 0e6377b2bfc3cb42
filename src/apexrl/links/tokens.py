"""The token that hosts share: read from the environment or a file, never from a flag."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from apexrl.errors import ConfigError

TOKEN: Final = "APEXRL_TOKEN"
"""Environment variable that holds it."""

_MOST_BYTES = 4096


def shared_token(file: str, make: bool = False) -> str:
    """As ``read_token``; empty where neither the environment nor a file says one."""
    return read_token(file, make) if file or os.environ.get(TOKEN, "").strip() else ""


def read_token(file: str, make: bool = False) -> str:
    """What ``file`` holds, or else the environment. The variable is taken out of there: simulators need no token.

    Args:
        file: path; empty: the environment says it.
        make: a file that is not there is made, with a new token, for its owner alone.

    Raises:
        ConfigError: there is none, or the file cannot be read.
    """
    said = os.environ.pop(TOKEN, "").strip()
    if not file:
        if said:
            return said
        raise ConfigError(
            f"say the token that other hosts must know: set {TOKEN}, or --token-file FILE"
            + (" (made if it is not there; copy it to them)" if make else ", copied from the learner's host")
        )
    path = Path(file).expanduser()
    try:
        if make:
            _make(path)
        with path.open("rb") as found:
            token = found.read(_MOST_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file} cannot be read: {error}") from None
    if not token:
        raise ConfigError(f"--token-file {file} is empty")
    return token


def _make(path: Path) -> None:
    """A new token in a file of its owner's alone; one that is there stays."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w", encoding="utf-8") as made:
        made.write(secrets.token_urlsafe(32) + "\n")
