"""A pool of threads in a role, whose size may change while the role works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from apexrl.roles.thread_heartbeat import ThreadHeartbeat

if TYPE_CHECKING:
    from apexrl.links.local.tunable_count import TunableCount

_IDLE_SECONDS = 0.001
_END_SECONDS = 10.0  # for a step under way


class Member(Protocol):
    """The work of one thread."""

    def step(self) -> bool:
        """One turn; False when there was nothing to do (the thread may then wait a little)."""


class ThreadPool:
    """The threads ``NAME-0`` … ``NAME-<count-1>`` of a role. All calls are its main thread's.

    A member is made when its number is first wanted, and rests when it is wanted no longer. Its thread waits for
    nobody longer than its context's patience, and so follows the count within moments.

    Args:
        count: how many there shall be.
        make: makes the member of a number.
        trouble: set when a thread ends by an error.
        stall_timeout: seconds that one step may take; 0: for ever.
    """

    def __init__(
        self,
        name: str,
        count: TunableCount,
        make: Callable[[int], Member],
        trouble: threading.Event,
        stall_timeout: float = 0.0,
    ) -> None:
        self._name = name
        self._count = count
        self._make = make
        self._trouble = trouble
        self._members: list[Member] = []
        self._threads: list[threading.Thread | None] = []
        self._turns: list[ThreadHeartbeat] = []
        self._stall_timeout = stall_timeout
        self._ending = threading.Event()
        self._errors: list[BaseException] = []

    def staff(self) -> None:
        """Start threads that are missing. Raises as ``check``."""
        self.check()
        for number, member in enumerate(self.members()):
            thread = self._threads[number]
            if thread is None or not thread.is_alive():
                name = f"{self._name}-{number}"
                thread = threading.Thread(target=self._work, args=(number, member), name=name, daemon=True)
                self._threads[number] = thread
                self._turns[number].begin(first=True)
                thread.start()

    def members(self) -> list[Member]:
        """The members that work now, also for a caller that steps them without threads."""
        count = self._count.value
        while len(self._members) < count:
            self._members.append(self._make(len(self._members)))
            self._threads.append(None)
            self._turns.append(ThreadHeartbeat(self._stall_timeout))
        return self._members[:count]

    def check(self) -> None:
        """Raise what a thread has ended by, if one has.

        Raises:
            WorkerError: a step takes too long.
        """
        if self._errors:
            raise self._errors[0]
        for thread, turns in zip(self._threads, self._turns, strict=True):
            if thread is not None:
                turns.check(thread)

    def close(self) -> list[str]:
        """Let all threads end. Returns the names of those that did not in time."""
        self._ending.set()
        deadline = time.monotonic() + _END_SECONDS
        threads = [thread for thread in self._threads if thread is not None]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]

    def _work(self, number: int, member: Member) -> None:
        try:
            while number < self._count.value and not self._ending.is_set():
                if not member.step():
                    self._ending.wait(_IDLE_SECONDS)
                self._turns[number].begin()
        except BaseException as error:
            self._errors.append(error)
            self._trouble.set()
