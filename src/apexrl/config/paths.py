"""Paths as people write them: with ``~``, and from the working folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from apexrl.errors import ConfigError

_start: Path | None = None


@contextmanager
def start_folder() -> Iterator[None]:
    """Within, ``absolute`` counts from the working folder of now, which environments and callbacks may change.

    One within another changes nothing.
    """
    global _start
    if _start is not None:
        yield
        return
    with suppress(OSError):  # it was deleted: absolute paths need none
        _start = Path.cwd()
    try:
        yield
    finally:
        _start = None


def absolute(path: Path) -> Path:
    """``path`` from the root.

    Raises:
        OSError: it is relative, and the working folder is gone.
    """
    return path if path.is_absolute() else (_start or Path.cwd()) / path


def from_here(path: Path) -> Path:
    """``path`` from the working folder, where it lies below that."""
    try:
        return path.relative_to(_start or Path.cwd())
    except (ValueError, OSError):
        return path


def expanded(path: str | os.PathLike[str]) -> Path:
    """``path`` with the home folder for ``~`` or ``~user``.

    Raises:
        ConfigError: there is no such user, or nothing says where the home folder is.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{os.fspath(path)}: no home folder is known for {Path(path).parts[0]}") from error
