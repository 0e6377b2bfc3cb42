"""Who may write a run folder: its holder, and of each role that writes there the newest life.

``lock`` is locked in the kernel by the process that holds the run, for as long as that process lives, and says who it
is. ``lives.json`` holds the number of the newest life of the run and of each role that writes checkpoints: fencing
tokens. The holder raises a number before the life begins that it is for; whoever meets a higher number than its own
writes nothing any more. So a writer that was cut off, and then replaced, does no harm when it wakes up.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from apexrl.errors import ConfigError, FencedError, HeldError, LinkError, SnapshotError
from apexrl.run.atomic_files import read_text, replace_text

LOCK_FILE: Final = "lock"
LIVES_FILE: Final = "lives.json"

REPLACED: Final = -1.0
"""As the moment until which a run's place on a server is held: another has it."""

_RUN, _KEPT = "run", "kept"  # in lives.json: the newest life of the run as a whole; the one of the first checkpoint
_LOOK_SECONDS = 0.1
_TURN_SECONDS = 0.1  # for another thread's write
_HOLDER_BYTES = 4096
_NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL))
_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """Makes this process the holder of a run folder until ``close``, or until it dies, however it does.

    The lock is one of the open file, where the kernel has those (Linux), and not of the process: closing another
    descriptor of the file does not lose it, and a second thread of this process is refused, too. NFS carries it.

    Args:
        wait_seconds: how long to wait for another holder to end.

    Raises:
        HeldError: another living process holds it; names it.
        ConfigError: the lock file cannot be opened.
    """

    def __init__(self, folder: Path, wait_seconds: float = 0.0) -> None:
        self.path = Path(folder) / LOCK_FILE
        self.trouble = ""
        """Why nothing is locked, where the file system has no locks; for a warning."""
        self._descriptor = -1
        deadline = time.monotonic() + wait_seconds
        while not self._acquire():
            if time.monotonic() >= deadline:
                raise HeldError(
                    f"run {self.path.parent} is being trained by {holder(self.path)}: stop that one, or choose another "
                    "--name"
                )
            time.sleep(_LOOK_SECONDS)
        _locks.add(self)
        self._introduce()

    def close(self) -> None:
        """Let others have it. May be called again."""
        if self._descriptor >= 0:
            try:
                if not self.trouble:
                    os.ftruncate(self._descriptor, 0)  # nobody is there to be named
            except OSError:
                pass  # a file system that has gone away keeps an old name
            self.let_go()

    def let_go(self) -> None:
        """Close the descriptor. In a forked child the parent's lock stays: it ends with the last descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _acquire(self) -> bool:
        """False: another has it."""
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                _lock(self._descriptor)
            except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
                self.let_go()
                return False
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                self.trouble = f"{self.path} cannot be locked ({error.strerror}): nothing keeps a second process away"
            ours, there = os.fstat(self._descriptor), os.stat(self.path)
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise ConfigError(f"the run folder {self.path.parent} is gone") from None
        except OSError as error:
            self.let_go()
            raise ConfigError(f"{self.path} cannot be opened ({error.strerror}): who may write it?") from error
        else:
            if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
                return True
        self.let_go()  # of a file that was removed while we opened it
        return False

    def _introduce(self) -> None:
        """Say in the file who holds it."""
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        who = {"host": os.uname().nodename, "pid": os.getpid(), "since": since, "command": shlex.join(sys.argv)}
        text = json.dumps(who)[: _HOLDER_BYTES - 1] + "\n"
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)
        except OSError:
            pass  # a full disk: it is locked all the same


def holder(lock: Path) -> str:
    """Who holds a run folder, in words, as its lock file says."""
    try:
        who = json.loads(lock.read_text(encoding="utf-8", errors="replace")[:_HOLDER_BYTES])
        return f"process {int(who['pid'])} on host {who['host']} since {who['since']} ({who['command']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has not said its name"


def _lock(descriptor: int) -> None:
    if sys.platform == "linux":  # type, whence, start, length (0: all), process (of an open file's lock: 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _let_go_in_child() -> None:
    """A forked child must not keep its parent's locks alive."""
    for lock in list(_locks):
        lock.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)


class Lives:
    """Numbers the lives of a run folder; for the holder of its lock, but ``newest``, which anybody may ask."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / LIVES_FILE
        self.run = 0
        """The number of this life of the run; 0: ``begin`` was not called."""
        self._given: dict[str, int] = {}  # what this one has written there
        self._writing = threading.Lock()

    def begin(self, least: int = 0) -> int:
        """A new life of the run: from now on everybody of an earlier one is fenced.

        Args:
            least: a number that is taken, as checkpoints show, where the file was lost.
        """
        values = self._read()
        self.run = max(least, *values.values(), 0) + 1
        self._write({_RUN: self.run} | {name: life for name, life in values.items() if name == _KEPT})
        return self.run

    @property
    def kept(self) -> bool:
        """Whether a checkpoint was ever written."""
        return _KEPT in self._read()

    def keep(self) -> None:
        """Note that a checkpoint was written: should they all be missing one day, the run does not begin anew.

        Raises:
            FencedError: another process has begun a newer life of the run.
        """
        if not self.kept:
            with self._turn():
                self._write({**self._mine(), _KEPT: self.run})

    def grant(self, name: str) -> int:
        """The number of a new life of the role's slot ``name``; its earlier ones are fenced.

        Raises:
            FencedError: the run itself has a newer life.
            OSError: it cannot be written down: nobody may live by it.
        """
        with self._turn():
            values = self._mine()
            number = max((*values.values(), *self._read().values()), default=0) + 1
            self._write({**values, name: number})
            return number

    def hold(self) -> None:
        """Put right what a fenced process has written: one that looked, stood still, and then put its file in place.

        Raises:
            FencedError: this process is the fenced one.
            OSError, SnapshotError: nobody can tell.
        """
        if self._mine() != self._read():
            with self._turn():
                self._write(self._mine())

    def newest(self, name: str) -> int:
        """The newest life of ``name``, or of the run, which puts an end to all before."""
        values = self._read()
        return max(values.get(name, 0), values.get(_RUN, 0))

    def check(self) -> None:
        """FencedError: another process has begun a newer life of the run."""
        newest = self._read().get(_RUN, 0)
        if newest > self.run > 0:
            raise FencedError(
                f"{self.path.parent} has been taken over by another process (life {newest} of the run, this is life "
                f"{self.run}): this one writes nothing there any more"
            )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Threads change the file by turns.

        Raises:
            TimeoutError: another's write of it hangs.
        """
        if not self._writing.acquire(timeout=_TURN_SECONDS):
            raise TimeoutError(errno.ETIMEDOUT, "a write of it takes long", str(self.path))
        try:
            yield
        finally:
            self._writing.release()

    def _mine(self) -> dict[str, int]:
        """What the file should say. FencedError: it is another's."""
        self.check()
        return self._given if self.run else self._read()

    def _read(self) -> dict[str, int]:
        try:
            values: dict[str, Any] = json.loads(read_text(self.path))
            return {str(name): int(number) for name, number in values.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise SnapshotError(
                f"{self.path} cannot be read ({error}): delete it when nobody trains this run"
            ) from error

    def _write(self, values: dict[str, int]) -> None:
        replace_text(self.path, json.dumps(values) + "\n", self.check)
        self._given = values


class Fence:
    """What one life of a role asks before it writes into the run folder, and again before a file takes its place.

    Args:
        name: of the role's slot.
        life: its number, which ``Lives`` gave; 0: none was given.
        held_until: the moment, by ``lease_clock``, until which this life's place (on a server; on Ray, with the driver)
            is surely its own; 0: it needs none; ``REPLACED``: another has it.
    """

    def __init__(self, folder: Path, name: str, life: int, held_until: Callable[[], float] = lambda: 0.0) -> None:
        self.life = life
        self._name = name
        self._lives = Lives(folder)
        self._held_until = held_until

    @property
    def paused(self) -> bool:
        """Whether this life's place may be lost, and may come back."""
        until = self._held_until()
        return until > 0 and lease_clock() > until

    def check(self) -> None:
        """Return where this life may write.

        Raises:
            LinkError: this life's place may be another's by now, or is.
            FencedError: a newer life writes here.
            OSError: nobody can tell.
        """
        if self._held_until() == REPLACED:
            raise LinkError("another learner has this run's place on the server")
        newest = self._lives.newest(self._name)
        if newest > self.life:
            raise FencedError(
                f"{self._name} has a newer life ({newest}, this is life {self.life}): this one writes nothing into "
                f"{self._lives.path.parent} any more"
            )
        if self.paused:
            raise LinkError(
                "who keeps this run's place (the Redis server; on Ray, the driver) has not answered for as long as it "
                "is kept, and another learner may have it"
            )


def lease_clock() -> float:
    """Seconds, the same in all processes of a machine, that go on while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC)
