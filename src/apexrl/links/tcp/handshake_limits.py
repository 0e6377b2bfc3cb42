"""Who says hello to an inference gateway: how many at once, how often in vain, and what is told of it.

Anybody who reaches the port may knock. So the connections of whom nobody knows yet are bounded, in all and from one
address; an address that failed often waits; and the log gets the first failure at once and then one line a period.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from apexrl.run.status import Level

MOST: Final = 256
"""Connections that say hello at once; each has a thread, for ``wire.HELLO_SECONDS`` at most."""
MOST_OF_ADDRESS: Final = 128
"""… from one address: the workers of a large host come all at once after a restart."""
MOST_FAILURES: Final = 200
"""Of one address in one period: what then comes from there is closed unheard until the period is over."""
PERIOD_SECONDS: Final = 10.0

_MOST_ADDRESSES = 256  # with a count of their own, in a period
_SHOWN = 4


class HandshakeLimits:
    """For any number of threads.

    Args:
        tell: told what failed.
    """

    def __init__(self, tell: Callable[[str, Level], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._lock = threading.Lock()
        self._present: dict[str, int] = {}  # address -> connections that say hello
        self._failures: dict[str, int] = {}  # address -> in this period
        self._others = 0  # failures of addresses for which there was no room
        self._untold: dict[str, int] = {}  # address -> failures that no line has told
        self._why: dict[str, str] = {}  # address -> of the last one
        self._ends = clock() + PERIOD_SECONDS
        self._told = False  # a line, in this period
        self.failed = 0
        """In all."""

    def begin(self, address: str) -> bool:
        """Whether one more connection from there may say hello now; if so, ``end`` must follow."""
        with self._lock:
            present = self._present.get(address, 0)
            if sum(self._present.values()) >= MOST or present >= MOST_OF_ADDRESS:
                why = "too many connections that have not said hello"
            elif self._failures.get(address, 0) >= MOST_FAILURES:
                why = "too many failures before"
            else:
                self._present[address] = present + 1
                return True
            self._count(address, why)
            return False

    def end(self, address: str) -> None:
        with self._lock:
            self._present[address] -= 1
            if not self._present[address]:
                del self._present[address]

    def fail(self, address: str, who: str, why: str) -> None:
        """Somebody from there was not let in, or was cut off again."""
        with self._lock:
            self._count(address, why)
            first, self._told = not self._told, True
            if first:
                self._untold.pop(address, None)
        if first:
            self._tell(f"{who} was refused: {why}", "warning")

    def look(self) -> None:
        """At the end of a period, tell what happened in it. To be called often."""
        with self._lock:
            if self._clock() < self._ends:
                return
            untold, others, why = self._untold, self._others, self._why
            self._failures, self._untold, self._why, self._others = {}, {}, {}, 0
            self._told = bool(untold or others)  # the next line comes a period later, too
            self._ends = self._clock() + PERIOD_SECONDS
        if not (untold or others):
            return
        most = sorted(untold, key=lambda address: -untold[address])
        parts = [f"{untold[address]} from {address} ({why[address]})" for address in most[:_SHOWN]]
        if rest := others + sum(untold[address] for address in most[_SHOWN:]):
            parts.append(f"{rest} from others")
        total = others + sum(untold.values())
        self._tell(f"{total} more connections refused within {PERIOD_SECONDS:g} s: {', '.join(parts)}", "warning")

    def _count(self, address: str, why: str) -> None:
        self.failed += 1
        if address not in self._failures and len(self._failures) >= _MOST_ADDRESSES:
            self._others += 1
            return
        self._failures[address] = self._failures.get(address, 0) + 1
        self._untold[address] = self._untold.get(address, 0) + 1
        self._why[address] = why
