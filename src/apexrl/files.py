"""Writing files whole or not at all: a reader sees the old file or the new one, also after a crash or a power cut."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OLD_SECONDS = 86_400.0  # where files cannot be locked, a half-written one as old as this has lost its writer


@contextmanager
def replacing(path: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """A temporary path to write to, in place; on a clean exit it is flushed to the disk and takes ``path``'s place,
    unless ``check``, asked at the last moment, raises."""
    temporary, descriptor = _begin(path)
    try:
        mode = os.fstat(descriptor).st_mode & 0o777
        yield temporary
        temporary.chmod(mode)  # what others may do is the umask's choice, not that of whoever wrote the file
        _sync(temporary)
        check()
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        with suppress(OSError):  # what made the writing fail is told, not this
            temporary.unlink(missing_ok=True)
        os.close(descriptor)


def replace_text(path: Path, text: str, check: Callable[[], None] = lambda: None) -> None:
    """Write a small text file (UTF-8) whole or not at all; ``check`` as for ``replacing``."""
    with replacing(path, check) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(folder: Path) -> None:
    """Remove what ``replacing`` left half-written in processes that were killed, in this container or another."""
    for path in folder.glob(".writing-*"):
        with suppress(OSError):  # somebody else has just removed it, or may not be disturbed
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _abandoned(descriptor):
                    path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)


def _begin(path: Path) -> tuple[Path, int]:
    """A new temporary file and a descriptor that holds a lock on it, which goes with its writer."""
    while True:
        temporary = path.with_name(f".writing-{secrets.token_hex(8)}-{path.name}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if temporary.exists():
                return temporary, descriptor
        except BlockingIOError:
            pass  # ``remove_leftovers`` came in between
        except OSError:
            return temporary, descriptor  # no locks on this file system: there age decides
        os.close(descriptor)


def _abandoned(descriptor: int) -> bool:
    """Whether nobody writes a temporary file any more. If so, nobody else can begin to hold its lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - os.fstat(descriptor).st_mtime > _OLD_SECONDS
    return True


def _sync(path: Path) -> None:
    """Have the kernel put a file's bytes, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
