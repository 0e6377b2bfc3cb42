"""What roles on Ray print, on its way to the run folder: Ray writes it to files of each node."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError

from apexrl.launch.run_ledger import Ledger

MOST_BYTES: Final = 16 << 10
"""Of one file that travel at once: of more, the newest."""

LAST_SECONDS: Final = 5.0
"""How long the last words of a role that died are waited for."""

Place = tuple[str, int]
"""A file of the node, and up to which byte it was read."""


@dataclass(frozen=True)
class Printed:
    """What was printed since the last look."""

    data: bytes = b""
    left_out: int = 0
    """Bytes that were too many, and stay on the node."""
    places: tuple[Place, ...] = ()
    """Where to go on reading, for a process of that node: this one may end."""


def places() -> tuple[Place, ...]:
    """Where this process's output goes from now on; empty: not to files (Ray rotates them, or it is a terminal)."""
    found: dict[str, int] = {}
    for descriptor in (1, 2):
        with suppress(OSError):
            path, about = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
            if stat.S_ISREG(about.st_mode) and Path(path).is_file():
                found[path] = about.st_size
    return tuple(found.items())


def read(places: Sequence[Place]) -> Printed:
    """What has come since, the newest ``MOST_BYTES`` of each file. A file that has gone has nothing."""
    data, left_out, further = b"", 0, []
    for path, begin in places:
        end = begin
        with suppress(OSError), open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = begin if begin <= size else 0  # it was emptied
            file.seek(max(begin, size - MOST_BYTES))
            left_out += file.tell() - begin
            data += file.read(size - file.tell())
            end = size
        further.append((path, end))
    return Printed(data, left_out, tuple(further))


class OutputGathering:
    """The driver's part: puts what roles printed into ``RUN/logs/ROLE.log``.

    Attributes:
        left_out: bytes that were too many.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.left_out = 0
        self._ledger = ledger
        self._last: dict[Any, tuple[str, float]] = {}  # what ended roles printed last, when it comes -> whose it is
        self._told = False

    def enter(self, role: str, printed: Printed) -> None:
        """Store what a living role has printed."""
        self._store(role, printed)
        if not printed.places and not self._told:
            self._told = True
            self._ledger.tell("what roles print stays on their nodes: Ray rotates their logs (RAY_ROTATION_MAX_BYTES)")

    def ask(self, role: str, memory: Any, places: Sequence[Place]) -> None:
        """Get what a role printed before it died, from a process of its node."""
        if places:
            self._last[memory.read.remote(places)] = role, time.monotonic() + LAST_SECONDS

    def step(self, seconds: float = 0.0) -> None:
        """Store what has come of ended roles; wait so long for it."""
        if not self._last:
            return
        come, _ = ray.wait(list(self._last), num_returns=len(self._last), timeout=seconds, fetch_local=False)
        for reference in come:
            role, _ = self._last.pop(reference)
            with suppress(RayError):  # its node has gone, too
                self._store(role, ray.get(reference, timeout=1.0))
        now = time.monotonic()
        self._last = {reference: one for reference, one in self._last.items() if one[1] > now}

    def _store(self, role: str, printed: Printed) -> None:
        self.left_out += printed.left_out
        if printed.data:
            self._ledger.keep_output(role, printed.data)
