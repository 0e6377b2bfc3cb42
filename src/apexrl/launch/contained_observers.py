"""Observers whose errors do not end a run: failures are reported to the other observers, and counted."""

from __future__ import annotations

import queue
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apexrl.errors import ApexrlError
from apexrl.run.callbacks import Steering
from apexrl.run.status import Level, Observer, RunStatus

if TYPE_CHECKING:
    from apexrl.config import Config

MOST_WAITING: Final = 512
"""Calls that wait for an observer which writes; statuses get half of the room, what happens only once all of it."""
CLOSE_SECONDS: Final = 20.0
"""How long the end of a run waits for the writes of observers."""

_STUCK_SECONDS = 10.0  # of one call, after which it is told
_WELL_SECONDS = 30.0  # without an error, after which an observer is said to work again
_AGAIN_SECONDS = 60.0  # between two accounts of the same observer's trouble


class Contained:
    """An observer whose errors do not end the run.

    One that ``writes`` is called from a thread of its own from ``started`` to ``finished``: a write that does not
    return, to a terminal that was stopped or a disk that is away, halts nobody. The others are called at once.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.writes: str = getattr(observer, "writes", "")
        self.trouble = False
        """Whether its latest calls failed."""
        self._forgiven = bool(self.writes) or getattr(observer, "ours", False)
        self._dropped = self._failed = 0  # one writer each: the caller's thread, and that which calls the observer
        self._lost_before = 0  # when the present trouble began
        self._failed_at = self._told_at = float("-inf")
        self._news: deque[tuple[str, Level]] = deque(maxlen=8)
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._calling_since: float | None = None

    @property
    def lost(self) -> int:
        """Calls that failed, or were not made because too many waited."""
        return self._dropped + self._failed

    def steer(self, steering: Steering) -> None:
        """Let an observer act on the run that asks for that."""
        if hasattr(self.observer, "steer"):
            self.observer.steer(steering)

    def started(self, config: Config, folder: Path) -> None:
        if self.writes and self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"observer: {self.writes}", daemon=True)
            self._thread.start()
        self._do("started", config, folder)

    def update(self, status: RunStatus) -> bool | str | None:
        answer: bool | str | None = self._do("update", status)
        return answer

    def event(self, kind: str, values: dict[str, Any]) -> None:
        self._do("event", kind, values)

    def message(self, text: str, level: Level = "info") -> None:
        self._do("message", text, level)

    def finished(self, summary: dict[str, Any]) -> None:
        if self._thread is None:
            self._do("finished", summary)
        else:
            self._calls.put(("finished", (summary,)))
            self._calls.put(None)

    def settle(self, deadline: float) -> None:
        """After ``finished``: wait until all is written, at most to ``deadline``, in monotonic seconds."""
        if self._thread is None:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            self._thread = None
        else:
            self._begin_trouble(f"{self.writes} took nothing more: what was left to write is lost")
            self._dropped += self._calls.qsize()

    def news(self, now: float) -> list[tuple[str, Level]]:
        """Reports of its trouble since the last call."""
        since = self._calling_since
        if since is not None and now - since > _STUCK_SECONDS:
            self._failed_at = now
            self._begin_trouble(
                f"{self.writes}: nothing was taken for {now - since:.0f} s, as if the terminal were stopped or the "
                "disk away. The run goes on without"
            )
        elif self.trouble and now - self._failed_at > _WELL_SECONDS:
            self.trouble = False
            self._news.append((f"{self._name} works again; {self.lost - self._lost_before} reports were lost", "info"))
        told: list[tuple[str, Level]] = getattr(self.observer, "take_news", list)()
        while self._news:
            told.append(self._news.popleft())
        return told

    @property
    def _name(self) -> str:
        return self.writes or f"observer {type(self.observer).__qualname__}"

    def _do(self, name: str, *args: Any) -> Any:
        if self._thread is None:
            return self._call(name, *args)
        if self._calls.qsize() < (MOST_WAITING // 2 if name == "update" else MOST_WAITING):
            self._calls.put((name, args))
        else:
            self._dropped += 1
        return None

    def _work(self) -> None:
        """The thread."""
        while (call := self._calls.get()) is not None:
            self._calling_since = time.monotonic()
            self._call(call[0], *call[1])
            self._calling_since = None

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self.observer, name)(*args)
        except Exception as error:
            storage = isinstance(error, OSError) and not isinstance(error, ApexrlError)
            if not storage and not self._forgiven:
                raise
            self._failed_at = time.monotonic()
            if storage:
                self._begin_trouble(f"{self._name}: {error}. The run goes on, and it is tried again")
            else:
                where = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
                self._begin_trouble(f"{self._name}: {what}. The run goes on; please report this mistake of apexrl's")
            self._failed += 1
            return None

    def _begin_trouble(self, text: str) -> None:
        if self.trouble:
            return
        self.trouble = True
        self._lost_before = self.lost
        if time.monotonic() - self._told_at > _AGAIN_SECONDS:
            self._told_at = time.monotonic()
            self._news.append((text, "warning"))


def contained(observers: Iterable[Observer]) -> list[Contained]:
    """Each of ``observers``, contained once."""
    return [one if isinstance(one, Contained) else Contained(one) for one in observers]


def tell(observers: Sequence[Contained], text: str, level: Level = "info") -> None:
    """Show a text to the user; on standard error if all observers that write are in trouble."""
    for observer in observers:
        observer.message(text, level)
    writers = [observer for observer in observers if observer.writes]
    if level != "info" and writers and all(observer.trouble for observer in writers):
        complain(text)


def pass_on_news(observers: Sequence[Contained], now: float) -> None:
    """Report every observer's trouble to the others."""
    for observer in observers:
        for text, level in observer.news(now):
            tell([other for other in observers if other is not observer], text, level)


def finish(observers: Sequence[Contained], summary: Mapping[str, Any]) -> None:
    """Tell all that the run is over, and wait for their writes."""
    for observer in observers:
        observer.finished(dict(summary))
    deadline = time.monotonic() + CLOSE_SECONDS
    for observer in observers:
        observer.settle(deadline)
    for observer in observers:  # nobody else listens any more
        for text, _ in observer.news(time.monotonic()):
            complain(text)


def complain(text: str) -> None:
    """Write to standard error, unless that would block."""
    with suppress(OSError, ValueError, TypeError):
        if select.select([], [sys.stderr], [], 0.0)[1]:
            print(f"apexrl: {text}", file=sys.stderr, flush=True)
