"""Where a run listens for workers of other hosts, and their token: from the environment or a file, never a flag."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from apexrl.errors import ConfigError
from apexrl.links.tcp.tls import ServerTls

TOKEN: Final = "APEXRL_TOKEN"
"""Environment variable that holds it."""

_MOST_BYTES = 4096


@dataclass(frozen=True)
class Gate:
    """Where environment workers of other hosts ask. No part of a configuration: the token is written nowhere."""

    listen: str
    """HOST:PORT; an empty host: this machine alone; 0.0.0.0: all its addresses; an IPv6 address stands in brackets."""
    token: str = field(repr=False)
    """That whoever asks must know."""
    tls: ServerTls | None = None
    """How this run shows who it is; None: without TLS."""

    @property
    def address(self) -> tuple[str, int]:
        """(host, port). Raises ValueError when ``listen`` is no such thing."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(self.listen)
        bare = host.removeprefix("[").removesuffix("]")
        if (":" in bare) != (host != bare):
            raise ValueError(self.listen)
        return bare or "127.0.0.1", int(port)


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
