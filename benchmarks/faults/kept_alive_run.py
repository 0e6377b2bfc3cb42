"""A run kept alive as systemd would keep it, and what an observer outside of it sees of it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from apexrl.errors import SnapshotError
from apexrl.run import checkpoint
from apexrl.run.metrics import read_rows
from benchmarks.lib import processes

Mark = tuple[int, int]
"""Life and learner updates of a checkpoint."""
_NUMBERED = re.compile(r"generation-(\d+)-update-(\d+)\.safetensors")

PROGRESS_SECONDS = 90.0
"""A run without an environment step for so long, though nothing keeps it, hangs."""
END_SECONDS = 120.0
"""From Ctrl-C to the end; longer is a hang."""

RUN_FLAGS = (
    "--stop-at-return",
    "1000",
    "--checkpoint-seconds",
    "2",
    "--eval-period-seconds",
    "5",
    "--learner-threads",
    "1",
)


class Checkpoints:
    """Watches a run's checkpoints from outside: counts those that were complete once and are not covered any more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.best_of_generation: dict[int, int] = {}  # generation -> most updates of a complete checkpoint
        self.lost: list[str] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Compare what is there with what was there."""
        present = sorted(marks(self.folder))
        if not present:
            if self.best_of_generation and self.folder.is_dir() and any(self.folder.iterdir()):
                self._note("no numbered checkpoint is left")
            return  # the folder may be away for now
        newest = present[-1]
        known = max(self.best_of_generation.items(), default=(0, 0))
        if newest < known:
            self._note(f"{known} was there, the newest is now {newest}")
        for generation, updates in present:
            before = [most for other, most in self.best_of_generation.items() if other < generation]
            if generation not in self.best_of_generation and before and updates < max(before):
                self._note(f"generation {generation} went back from {max(before)} to {updates} updates")
            self.best_of_generation[generation] = max(updates, self.best_of_generation.get(generation, 0))

    def _note(self, what: str) -> None:
        if what not in self.lost:
            self.lost.append(what)

    def _watch(self) -> None:
        while not self._closing.wait(0.2):
            with suppress(OSError):  # the disk is away
                self.look()


def marks(folder: Path) -> list[Mark]:
    """Of the complete numbered checkpoints in ``folder``."""
    found = (_NUMBERED.fullmatch(path.name) for path in folder.glob("generation-*"))
    return [(int(match[1]), int(match[2])) for match in found if match]


class Service:
    """``apexrl`` with ``--resume-or-start``, started again whenever it ends by anything but success.

    Args:
        words: of the command, without ``apexrl``.
        run: its run folder.
        log: what it says goes there, of all generations.
        nohup: SIGHUP is ignored from the beginning.
        terminal: it runs on a pseudo-terminal of its own, which ``hang_up`` closes.
        before: called in each child before it becomes the command.
        restart: whether it is started again.
    """

    def __init__(
        self,
        words: Sequence[str],
        run: Path,
        log: Path,
        *,
        nohup: bool = False,
        terminal: bool = False,
        before: Callable[[], None] = lambda: None,
        restart: bool = True,
        cwd: Path | None = None,
    ) -> None:
        self.run, self.log = run, log
        self.mark = uuid.uuid4().hex
        self.codes: list[int] = []
        self.starts = 0
        self.restart = restart
        self._words = [sys.executable, "-m", "apexrl.cli", *words]
        self._nohup, self._terminal, self._before, self._cwd = nohup, terminal, before, cwd
        self._shared = shared()
        self._master = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self.start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.starts += 1
        output: Any = self.log.open("ab")
        slave = -1
        if self._terminal:
            self._master, slave = pty.openpty()
            threading.Thread(target=_drain, args=(self._master, self.log), daemon=True).start()
        try:
            self._process = subprocess.Popen(
                self._words,
                stdin=slave if self._terminal else subprocess.DEVNULL,
                stdout=slave if self._terminal else output,
                stderr=slave if self._terminal else output,
                start_new_session=True,
                preexec_fn=self._prepare,
                env={**os.environ, processes.MARK: self.mark, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
                cwd=self._cwd,
            )
        finally:
            output.close()
            if slave >= 0:
                os.close(slave)

    def hang_up(self) -> None:
        """Close the terminal, as a dropped ssh connection does."""
        master, self._master = self._master, -1
        os.close(master)

    def steps(self) -> int:
        """Environment steps that the run's log tells of; 0 before the first."""
        with suppress(OSError):
            rows = [row for row in read_rows(self.run / "metrics.jsonl") if row.get("kind") == "status"]
            return int(rows[-1]["env_steps"]) if rows else 0
        return 0

    def goes_on(self, seconds: float = PROGRESS_SECONDS) -> bool:
        """Whether the log tells of more steps within this time."""
        before = self.steps()
        return wait(lambda: self.steps() > before, seconds)

    def workers(self) -> dict[int, str]:
        """Living processes of the run -> what they are: ``main``, ``fork server``, or the role's name, cut short."""
        found: dict[int, str] = {}
        parents: dict[int, int] = {}
        for pid in processes.marked(self.mark):
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        servers = {parents[pid] for pid, name in found.items() if name.startswith("apexrl-")}
        named = {}
        for pid, name in found.items():
            if pid == self.pid:
                named[pid] = "main"
            elif name.startswith("apexrl-"):
                named[pid] = name.removeprefix("apexrl-").rstrip("-0123456789")
            elif pid in servers:
                named[pid] = "fork server"
        return named

    def interrupt(self) -> bool:
        """Ctrl-C, and no more restarts; False: it did not end in time."""
        self._stop_keeping()
        if self.running:
            os.kill(self.pid, signal.SIGINT)
        return wait(lambda: not self.running, END_SECONDS)

    def remains(self) -> list[str]:
        """What is left of it ten seconds after its end; nothing of it lives afterwards."""
        self._stop_keeping()
        left = [f"process {pid}" for pid in processes.gone(self.mark, 10.0)]
        processes.reap(self.mark)
        return left + sorted(shared() - self._shared)

    def _stop_keeping(self) -> None:
        self._closing.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._closing.wait(0.2):
            assert self._process is not None
            code = self._process.poll()
            if code is None:
                continue
            self.codes.append(code)
            if code == 0 or not self.restart:
                return
            if not self._closing.wait(0.5):
                self.start()

    def _prepare(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in a background shell
        if self._nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if self._terminal:
            import fcntl
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self._before()


def wait(true: Callable[[], bool], seconds: float) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def shared() -> set[str]:
    """Names in /dev/shm."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def readable(run: Path) -> bool:
    """Whether a resume would find a checkpoint that can be read."""
    try:
        return checkpoint.load_latest(run / "checkpoints") is not None
    except SnapshotError:
        return False


def summary(run: Path) -> dict[str, Any]:
    """Empty: there is none."""
    try:
        found: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _drain(master: int, log: Path) -> None:
    with log.open("ab") as file, suppress(OSError):
        while chunk := os.read(master, 65536):
            file.write(chunk)
