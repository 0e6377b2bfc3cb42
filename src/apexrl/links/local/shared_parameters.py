"""Parameters that several processes update in place: named float32 vectors in one shared segment.

Reads may be torn by design (Recht et al. 2011, Hogwild!, arXiv 1106.5730): a reader gets some values from before a
concurrent write and some from after. There are no locks, so a process killed at any moment blocks no other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl._native import Segment

_LINE = 64  # bytes of a cache line, on which every vector begins
_FILLED = 0  # offset of a word
_SLICE_SECONDS = 0.1  # longest native wait, so that Python can handle signals


class SharedParameters:
    """Vectors of fixed sizes. Picklable to local processes, which then share the memory.

    Args:
        sizes: name -> float32 values.
        shared: between processes; otherwise between roles that take turns in one process.
    """

    def __init__(self, sizes: Mapping[str, int], shared: bool = True) -> None:
        self.sizes = dict(sizes)
        self._offsets: dict[str, int] = {}
        end = _LINE
        for name, size in self.sizes.items():
            self._offsets[name] = end
            end += -(-4 * size // _LINE) * _LINE
        self._attach(Segment(end) if shared else _Memory(end))

    def _attach(self, memory: Any) -> None:
        self._memory = memory
        data = memory.array()  # keeps the memory mapped as long as a vector is used
        self.arrays: dict[str, NDArray[np.float32]] = {
            name: data[offset : offset + 4 * self.sizes[name]].view(np.float32)
            for name, offset in self._offsets.items()
        }
        """Name -> float32 [size], writable: the shared memory itself."""

    def __getstate__(self) -> dict[str, Any]:
        return {"sizes": self.sizes, "offsets": self._offsets, "memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.sizes, self._offsets = state["sizes"], state["offsets"]
        self._attach(state["memory"])

    @property
    def filled(self) -> bool:
        """Whether the vectors hold parameters."""
        return bool(self._memory.load(_FILLED))

    def fill(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Write the first parameters and wake processes that wait for them. Names without a vector here are ignored.
        One process does this; if it dies meanwhile, its successor does it again."""
        for name, array in self.arrays.items():
            array[:] = arrays[name]
        self._memory.ring(_FILLED)

    def wait(self, timeout: float) -> bool:
        """Wait until they are filled; False when ``timeout`` seconds passed first."""
        deadline = time.monotonic() + timeout
        while not self.filled:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._memory.wait(_FILLED, 0, min(left, _SLICE_SECONDS))
        return True


class _Memory:
    """``Segment`` for roles that take turns in one process."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = np.zeros(nbytes, np.uint8)
        self._words = self._bytes[:_LINE].view(np.uint32)

    def array(self) -> NDArray[np.uint8]:
        return self._bytes

    def load(self, offset: int) -> int:
        return int(self._words[offset // 4])

    def ring(self, offset: int) -> None:
        self._words[offset // 4] += 1

    def wait(self, offset: int, seen: int, seconds: float) -> None:
        time.sleep(seconds)
