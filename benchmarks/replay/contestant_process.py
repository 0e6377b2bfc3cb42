"""The driver's end of a contestant's process: ask, wait, and keep it stopped while others have their turn.

Between its turns a contestant's process group is stopped (SIGSTOP), so no thread or writer of it takes others' time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.replay.contestants import Shape

HOST = Path(__file__).with_name("contestant_server.py")


class Missing(Exception):
    """The contestant's package is not installed in its interpreter."""


class Failed(Exception):
    """The contestant raised, hung or died."""


class Process:
    """One contestant, alone in a process group. Stopped unless it answers a request."""

    def __init__(self, name: str, python: str | None = None, log: Path | None = None) -> None:
        self.name = name
        self._log = log.open("a") if log else None
        self._process = subprocess.Popen(
            [python or sys.executable, str(HOST), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            process_group=0,  # of this session: the kernel ends it, stopped as it is, if the driver is killed
        )
        self._buffer = b""

    def ask(self, timeout: float, do: str, **arguments: Any) -> Any:
        """Send a request and wait for its answer.

        Raises:
            Missing, Failed: see there; after Failed the process is gone.
        """
        assert self._process.stdin is not None
        try:
            os.killpg(self._process.pid, signal.SIGCONT)
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._line(timeout))
            os.killpg(self._process.pid, signal.SIGSTOP)
        except (OSError, Failed) as error:
            self.close()
            raise Failed(f"{self.name}: {error}") from None
        if "missing" in answer:
            raise Missing(f"{self.name}: {answer['missing']}")
        if "error" in answer:
            if self._log:
                self._log.write(answer["traceback"])
            raise Failed(f"{self.name}: {answer['error']}")
        return answer["ok"]

    def open(self, shape: Shape, fill_seconds: float) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask(fill_seconds + 180, "open", shape=asdict(shape), fill_seconds=fill_seconds)
        return answer

    def _line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failed(f"no answer within {timeout:.0f} s: it hangs")
            if select.select([descriptor], [], [], min(left, 1.0))[0]:
                received = os.read(descriptor, 1 << 16)
                self._buffer += received
                if not received:
                    raise Failed(f"its process ended with exit code {self._process.wait()}")
            elif self._process.poll() is not None:
                raise Failed(f"its process ended with exit code {self._process.returncode}")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        """End the process and its writers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
