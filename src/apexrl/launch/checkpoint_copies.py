"""Copies each checkpoint of a run into an object store, in a thread of its own: no role waits for it."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apexrl.config.paths import expanded
from apexrl.errors import ConfigError, LinkError, SnapshotError
from apexrl.links.backoff import Backoff
from apexrl.run import checkpoint, checkpoint_store
from apexrl.run.checkpoint_store import RunCopies
from apexrl.run.object_store import ObjectStore
from apexrl.run.observers import IdleObserver
from apexrl.run.ownership import Generations, RunLock
from apexrl.run.status import Level, RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

LAST_SECONDS: Final = 120.0
"""How long the end of a run waits for its last copy."""

_LOOK_SECONDS: Final = 1.0
_MIRROR_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 10.0
_PAUSES: Final = (1.0, 60.0)  # after failures
_PROGRESS: Final = ("env_steps", "updates", "episodes", "best_eval_return")


class CheckpointCopies(IdleObserver):
    """An observer that keeps a copy of a run's newest checkpoints, best weights, settings, and saved replay.

    At most one copy is under way, and the newest state of the folder is what is copied next: a store that is slow, or
    away, makes copies fewer and older, and costs the run nothing.

    Args:
        url: below which the copies of every run have a folder of its name.
        last_seconds: of waiting for the last copy, at the end of the run.

    Attributes:
        dropped: ``checkpoint_copies``: attempts that failed.

    Raises:
        ConfigError: it is no URL that can be written to here.
    """

    ours = True

    def __init__(self, url: str, last_seconds: float = LAST_SECONDS) -> None:
        self.dropped = {"checkpoint_copies": 0}
        self._url = url
        self._store = ObjectStore(url)
        self._last_seconds = last_seconds
        self._progress: dict[str, float | None] = {}
        self._news: deque[tuple[str, Level]] = deque(maxlen=8)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._copied: dict[str, tuple[int, int]] = {}
        self._ends = 0.0  # monotonic seconds
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Raise LinkError if nothing can be written there now."""
        self._store.check()

    def started(self, config: Config, folder: Path) -> None:
        self._store = ObjectStore(self._url, folder.name)
        generation = Generations(folder).newest("")
        self._thread = threading.Thread(
            target=self._keep, args=(folder, generation), name="checkpoint copies", daemon=True
        )
        self._thread.start()

    def update(self, status: RunStatus) -> None:
        progress = {name: getattr(status, name) for name in _PROGRESS}
        self._progress = {**progress, "wall_seconds": status.elapsed_seconds}

    def event(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "checkpoint":
            self._wake.set()

    def finished(self, summary: dict[str, Any]) -> None:
        """Waits for the last copy, with summary and log."""
        self._ends = time.monotonic() + self._last_seconds
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(self._last_seconds + 1.0)
            if self._thread.is_alive():
                self._news.append((f"{self._store.shown} took no last copy within {self._last_seconds:g} s", "warning"))

    def take_news(self) -> list[tuple[str, Level]]:
        """What to tell the user since the last call."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def _keep(self, folder: Path, generation: int) -> None:
        """The thread."""
        backoff, failures = Backoff(*_PAUSES), 0
        copies: RunCopies | None = None
        while True:
            last = self._closing.is_set()
            try:
                if Generations(folder).newest("") > generation:
                    return  # another process has the run
                copies = copies or RunCopies(self._store, folder, generation)
                stamp = copies.stamp()
                if (last or stamp != self._copied) and stamp:
                    copies.copy(self._progress, last)
                    self._copied = stamp
                if failures:
                    self._news.append((f"{self._store.shown} has a copy again, after {failures} attempts", "info"))
                    failures = 0
                    backoff.reset()
                if last:
                    return
                pause = _LOOK_SECONDS
            except (LinkError, OSError, SnapshotError) as error:
                self.dropped["checkpoint_copies"] += 1
                failures += 1
                if failures == 1:
                    text = f"the newest checkpoint could not be copied: {error}. The run goes on, and it is tried again"
                    self._news.append((text, "warning"))
                pause = backoff.next()
            if last and time.monotonic() + pause > self._ends:
                self._news.append((f"{self._store.shown} has no copy of the run's end", "warning"))
                return
            if last:
                time.sleep(pause)
                continue
            self._wake.clear()
            if not self._closing.is_set():
                self._wake.wait(pause)


class Mirror:
    """Keeps a run folder up to date with its copies, in a thread, until ``close``."""

    def __init__(self, url: str, folder: Path) -> None:
        self.trouble = ""
        """Why the newest copy was not brought; empty: no problem."""
        self._url, self._folder = url, folder
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="mirror of checkpoints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until nothing is written any more; what is written later is no other than what is there."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    def finish(self, tell: Callable[[str, Level], None]) -> None:
        """Close it, and bring what is newer once more. A store that is away only costs what it would have brought."""
        self.close()
        try:
            for text in bring_newer(self._url, self._folder):
                tell(text, "info")
        except (LinkError, OSError, SnapshotError) as error:
            tell(f"the newest copy could not be brought ({error}): going on from what is here", "warning")

    def _keep(self) -> None:
        backoff = Backoff(*_PAUSES)
        while not self._closing.is_set():
            try:
                bring_newer(self._url, self._folder)
                self.trouble, pause = "", _MIRROR_SECONDS
                backoff.reset()
            except (LinkError, OSError, SnapshotError) as error:
                self.trouble, pause = str(error), backoff.next()
            self._closing.wait(pause)


def restore_run(url: str, out: str) -> Path:
    """Bring the newest copy of a run into its folder below ``out``; answers that folder.

    Args:
        url: of the run's copies; it ends with the run's name.

    Raises:
        ConfigError: there is none, or it is no such URL.
        HeldError: another process trains the run there.
        LinkError, SnapshotError: as of ``bring_newer``.
    """
    store = ObjectStore(url)
    below, _, name = url.rstrip("/").rpartition("/")
    if not re.fullmatch(r"[\w.+=@-]{1,100}", name):
        raise ConfigError(f"{store.shown} does not end with the name of a run")
    folder = expanded(out) / name
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {folder}: {error.strerror or error}") from error
    with closing(RunLock(folder)):
        bring_newer(below, folder)
    if not (folder / "config.toml").exists():
        shutil.rmtree(folder)
        raise ConfigError(f"{store.shown} holds no copy of a run: --checkpoint-url URL of a run makes URL/NAME")
    return folder


def bring_newer(url: str, folder: Path) -> list[str]:
    """Bring the newest copy below ``url`` into a run folder, unless that has a checkpoint as new; says what was done.

    Raises:
        LinkError: the store does not answer.
        SnapshotError: no copy is whole.
        OSError: the folder cannot be written.
    """
    known = None
    if (folder / "config.toml").exists():
        there = checkpoint.latest(folder / "checkpoints")
        known = (None if there is None else checkpoint.numbers_of(there)) or (0, 0)
    store = ObjectStore(url, folder.name)
    restored = checkpoint_store.restore(store, folder, known)
    if restored is None:
        return []
    return [f"{folder} was brought from {store.shown}", *(f"not used: {reason}" for reason in restored.skipped)]
