"""Limits on unfinished and failed handshakes at a gateway, and on log lines about them.

Anyone who reaches the port may connect. So unfinished handshakes are bounded, in total and per address; an address with
many failures is refused for a while; and the first failure is logged at once, later ones in one line per period.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from apexrl.run.status import Level

MOST: Final = 256
"""Unfinished handshakes at a time; each has a thread for at most ``frames.HELLO_SECONDS``."""
MOST_OF_ADDRESS: Final = 128
"""The same from one address: the workers of a large host all connect at once after a restart."""
MOST_FAILURES: Final = 200
"""Failures of one address in a period, after which its connections are closed until the period ends."""
PERIOD_SECONDS: Final = 10.0

_MOST_ADDRESSES = 256  # counted separately in a period
_SHOWN = 4


class HandshakeLimits:
    """Counts handshakes and failures. Thread-safe.

    Args:
        tell: called with messages about failures.
    """

    def __init__(self, tell: Callable[[str, Level], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._lock = threading.Lock()
        self._present: dict[str, int] = {}  # address -> unfinished handshakes
        self._failures: dict[str, int] = {}  # address -> in this period
        self._others = 0  # failures of addresses beyond the limit
        self._untold: dict[str, int] = {}  # address -> failures that are not logged yet
        self._why: dict[str, str] = {}  # address -> reason of the last failure
        self._ends = clock() + PERIOD_SECONDS
        self._told = False  # a line was logged in this period
        self.failed = 0
        """In all."""

    def begin(self, address: str) -> bool:
        """Whether another handshake with that address may begin; if so, ``end`` must follow."""
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
        """Record a failed handshake or a broken protocol."""
        with self._lock:
            self._count(address, why)
            first, self._told = not self._told, True
            if first:
                self._untold.pop(address, None)
        if first:
            self._tell(f"{who} was refused: {why}", "warning")

    def look(self) -> None:
        """Log the failures of a period that has ended. Call it often."""
        with self._lock:
            if self._clock() < self._ends:
                return
            untold, others, why = self._untold, self._others, self._why
            self._failures, self._untold, self._why, self._others = {}, {}, {}, 0
            self._told = bool(untold or others)  # the next line comes a period later
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
