"""Many processes on one replay: unpaced writers in processes of their own, and one learner that samples and updates.

Each contestant's rig lives in a process of its own, so that rigs can take turns and one that hangs can be ended.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from ctypes import c_int64, c_uint8
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from replay_contestants import ROWS, Apexrl, Contestant, Cpprb, torn

PAUSE, RUN, STOP = 0, 1, 2
SETTLE_SECONDS = 0.5


@dataclass(frozen=True)
class Shape:
    """What a rig does."""

    rows: str
    capacity: int
    batch: int
    chunk: int
    writers: int
    uniform: bool


class Window(NamedTuple):
    """What was done in one window."""

    batches_per_second: float
    inserts_per_second: float
    torn_rows: int
    checked_rows: int


MAKERS: dict[str, Callable[[Shape], Contestant]] = {
    "apexrl": lambda shape: Apexrl(ROWS[shape.rows], shape.capacity, shape.writers, shape.uniform),
    "cpprb": lambda shape: Cpprb(ROWS[shape.rows], shape.capacity, processes=True, uniform=shape.uniform),
}


class Rig:
    """A running rig. Paused until a window is asked for."""

    def __init__(self, contestant: str, shape: Shape) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(contestant, shape, theirs))
        self._process.start()
        theirs.close()
        self.name: str = self._receive(180.0)

    def window(self, seconds: float) -> Window:
        self._pipe.send(seconds)
        return Window(*self._receive(seconds + 30.0))

    def close(self) -> None:
        if self._process.is_alive():
            self._pipe.send(0.0)
        self._process.join(10.0)
        self._process.kill()

    def _receive(self, timeout: float) -> Any:
        if not self._pipe.poll(timeout):
            self._process.kill()
            raise TimeoutError(f"the rig did not answer within {timeout:.0f} s: it hangs")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(contestant: str, shape: Shape, pipe: Connection) -> None:
    """The learner's process: makes the replay, fills it, starts the writers, and measures when asked."""
    context = multiprocessing.get_context("fork")  # both contestants can be inherited
    state = context.RawValue(c_uint8, PAUSE)
    counts = context.RawArray(c_int64, shape.writers)
    writers = []
    try:
        replay = MAKERS[contestant](shape)
        rng = np.random.default_rng(0)
        for chunk in replay.chunks(shape.capacity // 100, 1, rng) * 100:
            replay.insert(chunk, rng.random(len(chunk["reward"]), np.float32))
        writers = [
            context.Process(target=_write, args=(replay, shape, index, state, counts), daemon=True)
            for index in range(shape.writers)
        ]
        for process in writers:
            process.start()
        pipe.send(replay.name)
        while seconds := pipe.recv():
            state.value = RUN
            window = _measure(replay, shape, counts, seconds)
            state.value = PAUSE
            pipe.send(tuple(window))
    except EOFError:
        pass
    except Exception as error:
        pipe.send(RuntimeError(f"{contestant}: {error}\n{traceback.format_exc()}"))
    finally:
        state.value = STOP
        for process in writers:
            process.join(2.0)
            process.kill()


def _write(replay: Contestant, shape: Shape, index: int, state: Any, counts: Any) -> None:
    rng = np.random.default_rng(index + 1)
    chunks = replay.chunks(shape.chunk, 16, rng)
    priorities = [rng.random(shape.chunk, np.float32) for _ in chunks]
    turn = 0
    parent = os.getppid()
    while state.value != STOP and os.getppid() == parent:
        if state.value == PAUSE:
            time.sleep(0.005)
            continue
        for _ in range(8):
            turn = (turn + 1) % len(chunks)
            replay.insert(chunks[turn], priorities[turn])
            counts[index] += shape.chunk


def _measure(replay: Contestant, shape: Shape, counts: Any, seconds: float) -> Window:
    rng = np.random.default_rng()
    magnitudes = [rng.random(shape.batch, np.float32) for _ in range(16)]

    def learn(until: float) -> int:
        batches = 0
        while time.perf_counter() < until:
            keys, _ = replay.sample(shape.batch)
            if not shape.uniform:
                replay.update(keys, magnitudes[batches % 16])
            batches += 1
        return batches

    learn(time.perf_counter() + SETTLE_SECONDS)
    start, inserted = time.perf_counter(), sum(counts)
    batches = learn(start + seconds)
    end, inserted = time.perf_counter(), sum(counts) - inserted
    wrong = checked = 0
    for _ in range(8):
        _, batch = replay.sample(shape.batch)
        wrong, checked = wrong + torn(batch), checked + shape.batch
    return Window(batches / (end - start), inserted / (end - start), wrong, checked)
