"""Writing files whole or not at all: a reader sees the old file or the new one, also after a crash or a power cut.

``AppendedFile`` grows by whole pieces. ``SilentStream`` is a text stream whose writes never raise.
"""

from __future__ import annotations

import fcntl
import io
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from apexrl.errors import SnapshotError

_LONGEST_LINE = 1 << 24  # bytes of a last line that are looked through
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


class AppendedFile:
    """A file that grows by whole pieces. After an error, and when its path leads elsewhere, because it was moved or its
    disk mounted again, it is opened anew.

    Args:
        open_: opens it without a buffer, ready for the next piece.
    """

    def __init__(self, open_: Callable[[], io.FileIO]) -> None:
        self._open = open_
        self._file: io.FileIO | None = None

    def write(self, piece: bytes) -> None:
        """Append a piece. OSError: it is not there, or in part, and what ``open_`` opens next has to see to that."""
        if self._file is not None and not _leads_to(self._file):
            self.close()
        if self._file is None:
            self._file = self._open()
        try:
            while piece:
                piece = piece[self._file.write(piece) :]
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """May be called twice, and before more is written."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                file.close()


def open_lines(path: Path) -> io.FileIO:
    """Open a file of lines to append to. A last line that was cut short, by a crash or a full disk, is taken away."""
    file = io.FileIO(path, "a+")
    try:
        size = file.seek(0, os.SEEK_END)
        most = file.seek(max(0, size - _LONGEST_LINE))
        whole = most + file.readall().rfind(b"\n") + 1
        if whole < size:
            file.truncate(whole)
    except OSError:
        file.close()
        raise
    return file


class SilentStream(io.TextIOBase):
    """A text stream that raises nothing: what happened is kept, until ``check`` raises it.

    So whoever draws on a terminal can finish, and be told afterwards that it is gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._error: Exception | None = None

    def check(self) -> None:
        """Raise what has happened since the last call, if anything did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def write(self, text: str, /) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self._error = error
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors


def _leads_to(file: io.FileIO) -> bool:
    """Whether a file's path still leads to it."""
    try:
        return os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


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


def open_plain(path: Path) -> BinaryIO:
    """Open a file that anybody may have put there, to read bytes.

    Raises:
        OSError: it cannot be opened.
        SnapshotError: it is a pipe or a device: reading it might never end.
    """
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise SnapshotError(f"{path} is a pipe or a device where a plain file should be: look who put it there")
    return file


def read_text(path: Path, most: int = 1 << 20) -> str:
    """A text file (UTF-8) that anybody may have written. Raises OSError, SnapshotError as
    ``open_plain``, or ValueError: it has more bytes than that."""
    with open_plain(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is longer than {most} bytes")
    return data.decode()
