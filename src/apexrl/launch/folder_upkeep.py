"""Periodic reads and writes of the run folder while the run goes on."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from apexrl.errors import FencedError, SnapshotError
from apexrl.launch import role_logs
from apexrl.run import actor_order, worker_list
from apexrl.run.actor_order import ActorNumbers
from apexrl.run.folder import RunFolder
from apexrl.run.observers import IdleObserver
from apexrl.run.status import Level, RunStatus


class Upkeep(IdleObserver):
    """An observer that keeps the logs of roles short, notes that there is a checkpoint, and writes small files, again
    where they could not be written. As it ``writes``, it is called in a thread: a folder that hangs halts nobody."""

    writes = "the upkeep of the run folder"

    def __init__(self, folder: RunFolder) -> None:
        self.failed = 0
        """Attempts to write a note."""
        self.looking = False
        """Whether a ``look`` is under way."""
        self.fenced: FencedError | None = None
        """Once another process has started a newer generation of the run."""
        self.ordered_actors = 0
        """How many actors the folder asks for; 0: it does not."""
        self.actors: ActorNumbers | None = None
        """How many there are; None: nobody has said it."""
        self._folder = folder
        self._unwritten: dict[str, Callable[[], object]] = {}  # notes
        self._news: deque[tuple[str, Level]] = deque(maxlen=64)

    def news(self) -> list[tuple[str, Level]]:
        """Reports since the last call."""
        told = []
        while self._news:
            told.append(self._news.popleft())
        return told

    def update(self, status: RunStatus) -> None:
        self._write_again()
        worker_list.write(self._folder.path, status.workers, self._folder.generations.check, self.actors)
        for log in (self._folder.path / "logs").glob("*.log"):
            role_logs.bound(log)

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """``note``: let ``write`` write the small file ``what``. ``checkpoint``: there is one. ``look``: whether the
        folder is still this process's, and how many actors it asks for. ``output``: append ``data`` to the log of
        ``role``."""
        if kind == "note":
            self._note(values["what"], values["write"])
        elif kind == "checkpoint":
            self._try(self._folder.generations.keep)  # or it is noted with the next one
        elif kind == "output":
            logs = self._folder.path / "logs"
            logs.mkdir(exist_ok=True)
            with (logs / f"{values['role']}.log").open("ab") as log:
                log.write(values["data"])
        elif kind == "look":
            self._try(self._folder.generations.hold)
            self.ordered_actors = actor_order.read(self._folder.path)
            self.looking = False

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._write_again()
        worker_list.remove(self._folder.path, self._folder.generations.check)

    def _write_again(self) -> None:
        for what, write in list(self._unwritten.items()):
            self._note(what, write)

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except FencedError as error:
            self.fenced = error
        except (OSError, SnapshotError):
            pass

    def _note(self, what: str, write: Callable[[], object]) -> None:
        try:
            write()
        except FencedError as error:
            self.fenced = error
        except (OSError, SnapshotError) as error:
            self.failed += 1
            if what not in self._unwritten:
                text = f"{what} could not be written: {error}. The run goes on, and it is tried again"
                self._news.append((text, "warning"))
            self._unwritten[what] = write
        else:
            if self._unwritten.pop(what, None) is not None:
                self._news.append((f"{what} could be written again", "info"))


def write_summary(
    folder: RunFolder, summary: Mapping[str, Any], tell: Callable[[str, Level], None], deadline: float
) -> bool:
    """Write the summary, or ``tell`` it whole where that cannot be done until ``deadline`` (monotonic seconds).

    Returns:
        False: it cannot be written.
    """
    while True:
        try:
            folder.write_summary(summary)
            return True
        except FencedError as fenced:
            tell(str(fenced), "warning")
            return True
        except (OSError, SnapshotError) as error:
            if time.monotonic() >= deadline:
                where, words = folder.summary_path, json.dumps(summary, default=str)
                tell(f"{where} could not be written: {error}. The summary: {words}", "warning")
                return False
        time.sleep(0.25)
