"""Many processes on one replay: the learner's process starts writers, which wait until they are called.

A writer either inserts without pause or keeps a schedule: its n-th chunk is due at ``start + n · interval``, it sleeps
until then, and a chunk that comes late does not move the next one's time. Writers that are not called sleep in a read.
"""

from __future__ import annotations

import multiprocessing
import time
from ctypes import c_int64, c_uint8
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.replay.contestants import Contestant, Shape
from benchmarks.replay.timed_contestant import Player

SETTLE_SECONDS = 0.5
JOIN_SECONDS = 30.0


class Window(NamedTuple):
    """What was done in one window."""

    batches_per_second: float
    inserts_per_second: float
    torn_rows: int
    checked_rows: int


class Rig:
    """One learner, here, and ``shape.writers`` writer processes, idle until a window calls some of them."""

    def __init__(self, player: Player, contestant: Contestant, shape: Shape) -> None:
        context: Any = multiprocessing.get_context(contestant.start)
        self._player = player
        self._shape = shape
        self._running = context.RawValue(c_uint8, 0)
        self._counts = context.RawArray(c_int64, shape.writers)
        self._lines: list[Connection] = []
        for index in range(shape.writers):
            ours, theirs = context.Pipe()
            arguments = (contestant, shape, index, theirs, self._running, self._counts)
            context.Process(target=_write, args=arguments, daemon=True).start()
            theirs.close()
            self._lines.append(ours)
        for line in self._lines:
            line.recv()  # it has data and is connected

    def window(self, writers: int, pace: float, seconds: float) -> Window:
        """Sample and update for ``seconds`` while ``writers`` insert, together ``pace`` a second (0: unpaced)."""
        player = self._player
        player.settle()
        self._running.value = 1
        start = time.perf_counter()
        interval = writers * self._shape.chunk / pace if pace else 0.0
        called = self._lines[:writers]
        for index, line in enumerate(called):
            line.send((start + interval * index / writers, interval))
        self._learn(start + SETTLE_SECONDS)
        start, inserted = time.perf_counter(), sum(self._counts)
        batches = self._learn(start + seconds)
        elapsed, inserted = time.perf_counter() - start, sum(self._counts) - inserted
        wrong, checked = player.torn()
        self._running.value = 0
        for line in called:
            if not line.poll(JOIN_SECONDS):
                raise TimeoutError(f"a writer still inserts {JOIN_SECONDS:.0f} s after it was told to pause")
            line.recv()
        return Window(batches / elapsed, inserted / elapsed, wrong, checked)

    def _learn(self, until: float) -> int:
        batches = 0
        while time.perf_counter() < until:
            self._player.loop()
            batches += 1
        return batches


def _write(contestant: Contestant, shape: Shape, index: int, line: Connection, running: Any, counts: Any) -> None:
    player = Player(contestant, shape, seed=index + 1)
    line.send("ready")
    while True:
        try:
            due, interval = line.recv()
        except EOFError:
            return
        while running.value:
            if interval:
                time.sleep(max(0.0, due - time.perf_counter()))
                due += interval
            player.insert()
            counts[index] += shape.chunk
        line.send("paused")
