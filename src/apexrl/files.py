"""Writing files whole or not at all: a reader sees the old file or the new one, also after a crash or a power cut."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NUMBERS = itertools.count()  # two threads may write one path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; on a clean exit it is flushed to the disk and takes ``path``'s place."""
    temporary = path.with_name(f".writing-{os.getpid()}-{next(_NUMBERS)}-{path.name}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode & 0o777
        yield temporary
        temporary.chmod(mode)  # what others may do is the umask's choice, not that of whoever wrote the file
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a small text file (UTF-8) whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(folder: Path) -> None:
    """Remove what ``replacing`` left half-written in processes that were killed."""
    for path in folder.glob(".writing-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and int(pid) != os.getpid() and not _alive(int(pid)):
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have the kernel put a file's bytes, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
