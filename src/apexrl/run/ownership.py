"""The lock and the fencing tokens of a run folder.

``lock`` is held in the kernel by the process that trains the run, until that process ends, and names it.
``generations.json`` holds fencing tokens: the number of the newest generation of the run, and of each role that writes
checkpoints. The holder raises a number before that generation starts. A writer that finds a higher number than its own
writes nothing any more, so one that was cut off and replaced does no harm when it continues.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
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
from typing import Any, Final, NamedTuple

from apexrl.errors import ConfigError, FencedError, HeldError, LinkError, SnapshotError
from apexrl.run.atomic_files import read_text, replace_text

LOCK_FILE: Final = "lock"
GENERATIONS_FILE: Final = "generations.json"

REPLACED: Final = -1.0
"""Value of ``held_until``: another process has the run's lease."""

_RUN, _KEPT = "run", "kept"  # keys of generations.json: the newest generation of the run; that of the first checkpoint
_LOOK_SECONDS = 0.1
_TURN_SECONDS = 0.1  # for another thread's write
_HOLDER_BYTES = 4096
_COMMAND_CHARACTERS = 2000  # of a holder's command line; the JSON around it must stay whole
_SECRET = re.compile(r"://.*(@|password=).*", re.DOTALL)  # what a URL with a password has behind its scheme
_NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL))
_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """Makes this process the holder of a run folder until ``close``, or until it dies, however it does.

    On Linux the lock belongs to the open file and not to the process: closing another descriptor of the file does not
    release it, and a second thread of this process is refused. It works over NFS.

    Args:
        wait_seconds: how long to wait for another holder to end.
        needed: False: where another holds it, go on without it and say so in ``trouble``.

    Raises:
        HeldError: another living process holds it; names it.
        ConfigError: the lock file cannot be opened.
    """

    def __init__(self, folder: Path, wait_seconds: float = 0.0, needed: bool = True) -> None:
        folder = Path(folder)
        self.path = folder / LOCK_FILE
        self.trouble = ""
        """A warning where the folder is not locked."""
        self._descriptor = -1
        deadline = time.monotonic() + wait_seconds
        while not self._acquire():
            if not needed:
                self.trouble = f"{self.path} is still locked by {holder(folder)}, which has no lease any more"
                return
            if time.monotonic() >= deadline:
                raise HeldError(
                    f"run {folder} is being trained by {holder(folder)}: stop that one, or choose another --name"
                )
            time.sleep(_LOOK_SECONDS)
        _locks.add(self)
        self._introduce()

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._descriptor >= 0:
            try:
                if not self.trouble:
                    os.ftruncate(self._descriptor, 0)  # no holder any more
            except OSError:
                pass  # the file system is gone
            self.let_go()

    def let_go(self) -> None:
        """Close the descriptor. In a forked child the parent keeps its lock, which ends with the last descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _acquire(self) -> bool:
        """False: another process holds it."""
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
                self.trouble = f"{self.path} cannot be locked ({error.strerror}): a second process may write there"
            ours, there = os.fstat(self._descriptor), os.stat(self.path)
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise ConfigError(f"the run folder {self.path.parent} is gone") from None
        except OSError as error:
            self.let_go()
            raise ConfigError(f"{self.path} cannot be opened ({error.strerror}): check its permissions") from error
        else:
            if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
                return True
        self.let_go()  # the file was removed meanwhile
        return False

    def _introduce(self) -> None:
        """Write the holder into the file."""
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        who = {"host": os.uname().nodename, "pid": os.getpid(), "since": since, "command": _command()}
        text = json.dumps(who)[: _HOLDER_BYTES - 1] + "\n"
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)
        except OSError:
            pass  # a full disk: the lock holds all the same


def _command() -> str:
    """This process's command line, as far as others may know it: of a URL with a password the scheme alone."""
    return shlex.join(_SECRET.sub("://…", word) for word in sys.argv)[:_COMMAND_CHARACTERS]


class Holder(NamedTuple):
    """Who holds a run folder, as it says itself in the lock file."""

    host: str
    pid: int
    words: str
    lock: Path

    @property
    def here(self) -> bool:
        """Whether it is a process of this machine. Containers may have the machine's name, and numbers of their own:
        where Linux shows what it has open, the lock is among that."""
        if self.host != os.uname().nodename:
            return False
        try:
            return any(map(self._is_lock, Path(f"/proc/{self.pid}/fd").iterdir()))
        except OSError:
            return sys.platform != "linux"

    def _is_lock(self, opened: Path) -> bool:
        try:
            return opened.samefile(self.lock)
        except OSError:  # a socket, or closed since it was listed
            return False


def introduced(folder: Path) -> Holder | None:
    """The holder of a run folder, or its last one that did not let go; None: it is not known."""
    lock = Path(folder) / LOCK_FILE
    try:
        who = json.loads(lock.read_text(encoding="utf-8", errors="replace")[:_HOLDER_BYTES])
        host, pid = str(who["host"]), int(who["pid"])
        return Holder(host, pid, f"process {pid} on host {host} since {who['since']} ({who['command']})", lock)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def holder(folder: Path) -> str:
    """The holder of a run folder, in words."""
    who = introduced(folder)
    return "an unknown process" if who is None else who.words


def held_elsewhere(folder: Path) -> bool:
    """Whether the holder of a run folder is a process of another host, by its lock file."""
    who = introduced(folder)
    return who is not None and who.host != os.uname().nodename


def held(folder: Path) -> bool:
    """Whether a living process, of whatever host, holds a run folder.

    Raises:
        OSError: the file system knows no locks, or the lock file cannot be read.
    """
    try:
        with open(Path(folder) / LOCK_FILE, "rb") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
                return True
    except FileNotFoundError:
        pass
    return False


def _lock(descriptor: int) -> None:
    if sys.platform == "linux":  # type, whence, start, length (0: all), process (of an open file's lock: 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _let_go_in_child() -> None:
    """Close the parent's locks in a forked child."""
    for lock in list(_locks):
        lock.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)


class Generations:
    """Numbers the generations of a run folder. Only the lock's holder may write; ``newest`` is for everybody."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / GENERATIONS_FILE
        self.run = 0
        """The number of this generation of the run; 0: ``begin`` was not called."""
        self._given: dict[str, int] = {}  # contents that this process has written
        self._writing = threading.Lock()

    def begin(self, least: int = 0) -> int:
        """Start a new generation of the run, which fences all earlier ones.

        Args:
            least: the highest number used by checkpoints, in case the file was lost.
        """
        values = self._read()
        self.run = max(least, *values.values(), 0) + 1
        self._write({_RUN: self.run} | {name: generation for name, generation in values.items() if name == _KEPT})
        return self.run

    @property
    def kept(self) -> bool:
        """Whether a checkpoint was ever written."""
        return _KEPT in self._read()

    def keep(self) -> None:
        """Record that a checkpoint was written: if all are missing later, the run is not started anew.

        Raises:
            FencedError: another process has started a newer generation of the run.
        """
        if not self.kept:
            with self._turn():
                self._write({**self._mine(), _KEPT: self.run})

    def grant(self, name: str) -> int:
        """Number a new generation of the role's slot ``name``; its earlier ones are fenced.

        Raises:
            FencedError: the run itself has a newer generation.
            OSError: the number cannot be stored and must not be used.
        """
        with self._turn():
            values = self._mine()
            number = max((*values.values(), *self._read().values()), default=0) + 1
            self._write({**values, name: number})
            return number

    def hold(self) -> None:
        """Restore the file after a fenced process has replaced it: one that checked before it was fenced.

        Raises:
            FencedError: this process is the fenced one.
            OSError, SnapshotError: the file cannot be read.
        """
        if self._mine() != self._read():
            with self._turn():
                self._write(self._mine())

    def newest(self, name: str) -> int:
        """The newest generation of ``name`` or of the run, whichever is higher."""
        values = self._read()
        return max(values.get(name, 0), values.get(_RUN, 0))

    @property
    def newest_run(self) -> int:
        """The newest generation of the run; 0: none has begun."""
        return self._read().get(_RUN, 0)

    def check(self) -> None:
        """Raise FencedError if another process has started a newer generation of the run."""
        newest = self.newest_run
        if newest > self.run > 0:
            raise FencedError(
                f"{self.path.parent} has been taken over by another process (generation {newest} of the run, this is "
                f"generation {self.run}): this one writes nothing there any more"
            )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one thread at a time change the file.

        Raises:
            TimeoutError: another thread's write hangs.
        """
        if not self._writing.acquire(timeout=_TURN_SECONDS):
            raise TimeoutError(errno.ETIMEDOUT, "another write takes too long", str(self.path))
        try:
            yield
        finally:
            self._writing.release()

    def _mine(self) -> dict[str, int]:
        """The contents that the file should have. Raises FencedError if it belongs to another process."""
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
                f"{self.path} cannot be read ({error}): delete it while no process trains this run"
            ) from error

    def _write(self, values: dict[str, int]) -> None:
        replace_text(self.path, json.dumps(values) + "\n", self.check)
        self._given = values


class Fence:
    """Checks whether one generation of a role may write into the run folder: before a write, and before its rename.

    Args:
        name: of the role's slot.
        generation: its number from ``Generations``; 0: none.
        held_until: the time, by ``lease_clock``, until which the run's lease (on the Redis server; on Ray, with the
            driver) is surely held; 0: it needs none; ``REPLACED``: another process has it.
    """

    def __init__(self, folder: Path, name: str, generation: int, held_until: Callable[[], float] = lambda: 0.0) -> None:
        self.generation = generation
        self._name = name
        self._generations = Generations(folder)
        self._held_until = held_until

    @property
    def paused(self) -> bool:
        """Whether the lease may be lost and may come back."""
        until = self._held_until()
        return until > 0 and lease_clock() > until

    def check(self) -> None:
        """Return if this generation may write.

        Raises:
            LinkError: another process has the run's lease, or may have it.
            FencedError: a newer generation writes here.
            OSError: the folder cannot be read.
        """
        if self._held_until() == REPLACED:
            raise LinkError("another learner has this run's lease on the server")
        newest = self._generations.newest(self._name)
        if newest > self.generation:
            raise FencedError(
                f"{self._name} has a newer generation ({newest}, this is {self.generation}): this one writes nothing "
                f"into {self._generations.path.parent} any more"
            )
        if self.paused:
            raise LinkError(
                "the run's lease has expired: the Redis server (on Ray, the driver) has not answered in time, and "
                "another learner may hold it"
            )


def lease_clock() -> float:
    """Seconds, equal in all processes of a machine, that also count while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC)
