"""Ctrl-C, SIGTERM and SIGHUP while a run goes on."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Final

from apexrl.run import callback_observer

_WISHES: Final = {
    signal.SIGINT: ("interrupted", "Ctrl-C again"),
    signal.SIGTERM: ("told to end by SIGTERM", "a second SIGTERM"),
    signal.SIGHUP: ("the terminal was closed", "SIGTERM"),
}


ONCE_SECONDS: Final = 0.5
"""``timeout`` signals its command and then its whole process group. A terminal signals the group, too, while a parent
may pass the signal on."""


class Interrupts:
    """Counts Ctrl-C, SIGTERM and SIGHUP while a run goes on, and restores their handlers afterwards.

    A call of a callback that takes long is interrupted.

    The same signal within ``ONCE_SECONDS`` of the first counts once, too.

    A signal that is ignored stays so: that is what ``nohup`` asks for, and the shell for a command with ``&``. A closed
    terminal may send SIGHUP several times, from the shell and from the kernel; it counts once, never as the second
    interrupt.
    """

    def __init__(self) -> None:
        self.count = 0
        self.alone = False
        """Whether the run has no process but this one: the second interrupt is raised as KeyboardInterrupt."""
        self._first, self._first_at = signal.SIGINT, 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.count:
            self._first, self._first_at, self.count = signal.Signals(number), now, 1
        elif number == signal.SIGHUP or (number == self._first and now - self._first_at < ONCE_SECONDS):
            return
        else:
            self.count += 1
        if (self.alone and self.count > 1) or callback_observer.interruptible():
            raise callback_observer.CountedInterrupt

    def heeded(self, last: str) -> str:
        """What happened first, that ``last`` is being done, and what would end the run at once."""
        what, again = _WISHES[self._first]
        return f"{what}: {last} ({again} ends at once)"

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than until the first interrupt, which is raised as KeyboardInterrupt."""
        ends = time.monotonic() + seconds
        while not self.count and time.monotonic() < ends:
            time.sleep(min(0.05, seconds))
        if self.count:
            raise KeyboardInterrupt
