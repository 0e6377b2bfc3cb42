"""The contestants of a run, each in its process, taking turns."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.replay.contestant_process import Failed, Missing, Process
from benchmarks.replay.contestants import Shape

HEADROOM = 1.3  # memory of a contestant over that of its rows
PATIENCE = 90.0  # seconds beyond what was asked for, before a contestant counts as hanging


class Crew:
    """The contestants of one part. Who fails is named, and keeps the figures that it has."""

    def __init__(self, options: argparse.Namespace, names: list[str], shape: Shape) -> None:
        self.infos: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self._processes: dict[str, Process] = {}
        self._stack = ExitStack()
        needed = HEADROOM * len(names) * shape.capacity * shape.row.nbytes
        if needed > available_memory():
            raise SystemExit(
                f"{len(names)} contestants with {shape.capacity:,} {shape.rows} rows each need about "
                f"{needed / 2**30:.0f} GiB, and {available_memory() / 2**30:.0f} are free: give fewer --contestants or "
                f"a smaller --capacity"
            )
        options.out.mkdir(parents=True, exist_ok=True)
        try:
            for name in names:
                process = Process(name, options.python.get(name), options.out / "replay.log")
                self._stack.callback(process.close)
                print(f"{name} fills {shape.capacity:,} {shape.rows} rows …", flush=True)
                try:
                    self.infos[name] = process.open(shape, options.fill_seconds)
                    self._processes[name] = process
                except (Missing, Failed) as error:
                    self._drop(name, process, f"left out: {error}")
        except BaseException:
            self._stack.close()
            raise
        for name, info in self.infos.items():
            if info["filled"] < shape.capacity:
                self.notes.append(
                    f"{name} held {info['filled']:,} rows, all that it took in {options.fill_seconds:g} s"
                )
        if not self.infos:
            raise SystemExit("no contestant is there: " + "; ".join(self.notes))

    def _drop(self, name: str, process: Process, note: str) -> None:
        process.close()
        self._processes.pop(name, None)
        self.notes.append(note)
        print(note, flush=True)

    def turns(
        self, number: int, seconds: float, do: str, among: set[str] | None = None, **arguments: Any
    ) -> Iterator[tuple[str, Any]]:
        """(name, answer) of everybody, in alternating order."""
        names = [name for name in self._processes if among is None or name in among]
        for name in names if number % 2 == 0 else names[::-1]:
            process = self._processes[name]
            try:
                yield name, process.ask(seconds + PATIENCE, do, seconds=seconds, **arguments)
            except Failed as error:
                self._drop(name, process, f"stopped in round {number + 1}: {error}")

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def available_memory() -> float:
    """Bytes that can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def memcpy() -> float:
    """Bytes per second of copying 64 MiB: how fast the machine is just now."""
    source = np.ones(64 << 20, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return source.nbytes / median(times)
