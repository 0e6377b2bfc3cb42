"""What the workers of ``kills.py`` write, what their rows must look like, and the processes that write them.

Every row carries its tag (worker, or stream of a worker, and sequence number) all over, so a row of two origins shows;
sequence numbers have no gaps, so a lost row shows.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from apexrl.replay import Field, Replay

Array = NDArray[Any]
SEQUENCE = 10_000_000  # tags of one sequence: origin · SEQUENCE + number


class Traffic(Protocol):
    """Rows of one kind."""

    name: str
    tag: str
    """The field of a batch that holds the tag."""
    capacity: int

    def make(self, writers: int) -> Replay: ...
    def write(self, replay: Replay, worker: int, rows: float) -> None:
        """Append ``rows`` rows or a little more, as worker number ``worker``."""
        ...

    def wrong(self, data: Mapping[str, Array]) -> int:
        """Items of a batch that are not whole."""
        ...

    def gaps(self, numbers: Array) -> int:
        """Numbers that are missing in the sorted sequence numbers of one origin."""
        ...


class Rows:
    """Small finished transitions, as many at a time as it comes, up to 200."""

    name = "rows"
    tag = "action"
    capacity = 20_000
    fields: ClassVar = {
        "observation": Field((4,), "float32"),
        "action": Field((), "int64"),
        "reward": Field((), "float32"),
        "next_observation": Field((4,), "float32"),
    }

    def make(self, writers: int) -> Replay:
        return Replay(self.capacity, self.fields, writers=writers)

    def write(self, replay: Replay, worker: int, rows: float) -> None:
        writer, rng, number = replay.writer(), np.random.default_rng(worker), 0
        while number < rows:
            count = int(rng.integers(1, 200))
            values = self.values(worker * SEQUENCE + np.arange(number, number + count))
            writer.extend(values, priorities=rng.random(count) + 0.01, timeout=60.0)
            number += count
        writer.close()

    def values(self, tag: Array) -> dict[str, Array]:
        stamp = (tag % 2**24).astype(np.float32)
        wide = np.repeat(stamp[:, None], 4, 1)
        return {"observation": wide, "action": tag, "reward": stamp, "next_observation": wide}

    def wrong(self, data: Mapping[str, Array]) -> int:
        stamp = (data["action"] % 2**24).astype(np.float32)
        bad = (data["action"] < SEQUENCE) | (data["reward"] != stamp)
        for name in ("observation", "next_observation"):
            bad |= (data[name] != stamp[:, None]).any(axis=1)
        return int(bad.sum())

    def gaps(self, numbers: Array) -> int:
        return int(numbers[-1] - numbers[0] + 1 - len(numbers))


class Transitions:
    """Steps of three environments with episodes of 15 steps, stacked in twos, with 2-step returns."""

    name = "transition"
    tag = "action"
    capacity = 5_000
    fields: ClassVar = {"observation": Field((40,), "uint16"), "action": Field((), "int64")}
    _streams, _episode, _n = 3, 15, 2

    def make(self, writers: int) -> Replay:
        streams = self._streams * writers
        return Replay(
            self.capacity, self.fields, kind="transition", stack=2, n_step=self._n, writers=writers, streams=streams
        )

    def write(self, replay: Replay, worker: int, rows: float) -> None:
        writer = replay.writer(streams=self._streams, priority_fn=lambda items: items["reward"] + 0.01)
        rng, number = np.random.default_rng(worker), 0
        origin = worker * self._streams + np.arange(self._streams)
        while number * self._streams < rows:
            end = number % self._episode == self._episode - 2  # then comes the final observation
            terminated = np.full(self._streams, end and number // self._episode % 2 == 0)
            values = {
                "observation": np.full((self._streams, 40), number % 65536, np.uint16),
                "action": origin * SEQUENCE + number,
                "reward": rng.random(self._streams),
                "terminated": terminated,
                "truncated": ~terminated & end,
            }
            writer.append(values, timeout=60.0)
            number += 1
        writer.close()

    def wrong(self, data: Mapping[str, Array]) -> int:
        number = data["action"] % SEQUENCE
        step = number % self._episode
        later = np.minimum(step + self._n, self._episode - 1) - step
        earlier = np.maximum(step - 1, 0) - step
        bad = (data["action"] < SEQUENCE) | (step == self._episode - 1)
        now, then = data["observation"].astype(np.int64), data["next_observation"].astype(np.int64)
        for frames, offset in ((now[:, 0], earlier), (now[:, 1], 0), (then[:, 0], later - 1), (then[:, 1], later)):
            bad |= (frames != ((number + offset) % 65536)[:, None]).any(axis=1)
        ends = step + later == self._episode - 1
        terminated = ends & (number // self._episode % 2 == 0)
        bad |= (data["discount"] == 0.0) != terminated
        return int(bad.sum())

    def gaps(self, numbers: Array) -> int:
        every = np.arange(numbers[0], numbers[-1] + 1)
        return int((every % self._episode != self._episode - 1).sum() - len(numbers))


TRAFFIC: dict[str, Traffic] = {"rows": Rows(), "transition": Transitions()}


def shared(count: int) -> Array:
    """int64 ``[count]`` that forked processes share; zeros."""
    return np.frombuffer(mmap.mmap(-1, 8 * count), np.int64)


def spawn(work: Callable[[], object]) -> int:
    """Fork a process that does ``work``; its pid."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"process {os.getpid()} failed: {error!r}", flush=True)
            os._exit(1)
    return pid


def end(pid: int) -> None:
    """kill -9 and reap."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class Nursery:
    """A process that keeps workers at work: kills one at a random moment and starts another, until it is told to stop.

    Workers are forked from there, where little is mapped: that takes a millisecond or two.
    """

    def __init__(self, write: Callable[[int], object], workers: int, rate: float, seed: int, kills: Array) -> None:
        self._write, self._workers, self._rate, self._random = write, workers, rate, random.Random(seed)
        self._kills = kills
        self._count = 0
        self._reader, self._stop = os.pipe()
        self._pid = spawn(self._run)
        os.close(self._reader)

    def stop(self) -> None:
        """End it and all its workers."""
        os.close(self._stop)
        os.waitpid(self._pid, 0)

    def _run(self) -> None:
        os.close(self._stop)
        os.set_blocking(self._reader, False)
        pids = [self._start() for _ in range(self._workers)]
        while not self._told_to_stop():
            time.sleep(self._random.uniform(0.0, 2.0 / self._rate))
            seat = self._random.randrange(self._workers)
            end(pids[seat])
            self._kills[0] += 1
            pids[seat] = self._start()
        for pid in pids:
            end(pid)

    def _start(self) -> int:
        self._count += 1
        number, parent = self._count, os.getpid()
        return spawn(lambda: self._write_while(number, parent))

    def _write_while(self, number: int, parent: int) -> NoReturn:
        import threading

        def watch() -> None:  # a worker whose nursery was killed ends too
            while os.getppid() == parent:
                time.sleep(1.0)
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
        self._write(number)
        raise RuntimeError("a worker came to an end")

    def _told_to_stop(self) -> bool:
        try:
            return os.read(self._reader, 1) == b""
        except BlockingIOError:
            return False
