"""The token that hosts share, read from the environment or a file, never from a flag."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from apexrl.config.paths import expanded
from apexrl.errors import ConfigError

TOKEN: Final = "APEXRL_TOKEN"
"""The environment variable of the token."""

_MOST_BYTES = 4096


def shared_token(file: str, make: bool = False) -> str:
    """Like ``read_token``, but empty if neither the environment nor a file gives a token."""
    return read_token(file, make) if file or os.environ.get(TOKEN, "").strip() else ""


def read_token(file: str, make: bool = False) -> str:
    """The token from ``file``, or else from the environment, which is cleared: simulators need no token.

    Args:
        file: path; empty: use the environment.
        make: create a missing file with a new token, readable only by its owner.

    Raises:
        ConfigError: there is no token, or the file cannot be read.
    """
    said = os.environ.pop(TOKEN, "").strip()
    if not file:
        if said:
            return said
        raise ConfigError(
            f"a token that other hosts share is required: set {TOKEN}, or give --token-file FILE"
            + (" (created if missing; copy it to them)" if make else ", copied from the learner's host")
        )
    path = expanded(file)
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
    """Create a file with a new token, readable only by its owner. An existing file stays."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w", encoding="utf-8") as made:
        made.write(secrets.token_urlsafe(32) + "\n")
