"""How busy this machine is: its processors and its memory, of all programs together. Linux only."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_IDLE: Final = (3, 4)  # idle, and waiting for a disk: places in the first line of /proc/stat, after its name
_COUNTED: Final = 8  # what follows is counted under user, too


class MachineLoad:
    """Two small files are read at each ``sample``.

    Args:
        proc: the folder of the kernel's files.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._before: tuple[int, int] | None = None
        self._newest: dict[str, float] = {}
        self._sampled_at = -math.inf

    def lately(self, now: float) -> dict[str, float]:
        """The newest ``sample``; a new one is taken once a second.

        Args:
            now: seconds, of any clock.
        """
        if now - self._sampled_at >= 1.0:
            self._sampled_at, self._newest = now, self.sample()
        return self._newest

    def sample(self) -> dict[str, float]:
        """``machine/cpu``, the share of all processors' time that was used since the last call, and
        ``machine/memory_used`` and ``machine/memory_bytes``, in bytes. What cannot be read is left out."""
        found: dict[str, float] = {}
        with suppress(OSError, ValueError, IndexError):
            now = self._ticks()
            if self._before is not None and now[1] > self._before[1]:
                used, all_ = now[0] - self._before[0], now[1] - self._before[1]
                found["machine/cpu"] = round(min(1.0, max(0.0, used / all_)), 4)
            self._before = now
        with suppress(OSError, ValueError, KeyError, IndexError):
            lines = (self._proc / "meminfo").read_text(encoding="ascii").splitlines()
            sizes = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines[:5]}
            found["machine/memory_used"] = float(sizes["MemTotal"] - sizes["MemAvailable"])
            found["machine/memory_bytes"] = float(sizes["MemTotal"])
        return found

    def _ticks(self) -> tuple[int, int]:
        """Ticks of all processors since the machine was started: used, and in all."""
        with (self._proc / "stat").open(encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1 : 1 + _COUNTED]]
        return sum(ticks) - sum(ticks[place] for place in _IDLE), sum(ticks)
