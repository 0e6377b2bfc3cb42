"""Contexts of roles: over shared memory between processes, or inline in one process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from apexrl.links.local import worker_messages
from apexrl.links.local.control_board import COUNTERS, HURRY, RUN, ControlBoard, WorkerRow
from apexrl.run.env_changes import EnvChange, decoded
from apexrl.run.ownership import Fence

_HEARTBEAT_SECONDS = 0.2
_NO_CALL = nullcontext()  # in one process, no other process watches a call


@dataclass(frozen=True)
class WorkerIdentity:
    """Who a worker is, in one of its generations."""

    name: str
    """``role-index``."""
    role: str
    index: int
    generation: int
    seed: int
    folder: Path
    """The run folder."""
    folder_generation: int = 0
    """Its number among the generations that write into the run folder (``run.ownership``); 0: it does not write."""


class _Identified:
    """The identity of a role's worker, as ``protocols.Context`` shows it."""

    def __init__(self, worker: WorkerIdentity, held_until: Callable[[], float] = lambda: 0.0) -> None:
        self.name, self.role, self.index = worker.name, worker.role, worker.index
        self.generation, self.seed, self.folder = worker.generation, worker.seed, worker.folder
        self.fence = Fence(worker.folder, worker.name, worker.folder_generation, held_until)


class SharedContext(_Identified):
    """A worker process's context (``protocols.Context``): the control board, and a socket to the supervisor."""

    patience = 0.1

    def __init__(
        self,
        worker: WorkerIdentity,
        board: ControlBoard,
        row: int,
        channel: socket.socket,
    ) -> None:
        super().__init__(worker, lambda: board.held_until)
        self._board = board
        self._row = board.row(row)
        self._channel = channel
        self._env_calls = _EnvCalls(self._row)
        self._next_beat = 0.0
        self._change = 0, EnvChange()  # as of which call of ``ControlBoard.set_env_change``

    def clock(self) -> float:
        return time.monotonic()

    def should_stop(self) -> bool:
        now = time.monotonic()
        if now >= self._next_beat:
            self._row.heartbeat = now
            self._next_beat = now + _HEARTBEAT_SECONDS
        return self._board.stop != RUN or self._row.dismissed(self.generation)

    def hurried(self) -> bool:
        return self._board.stop == HURRY

    def count(self, **increments: int) -> None:
        for counter, increment in increments.items():
            self._row.count(counter, increment)

    def total(self, counter: str) -> int:
        return self._board.total(counter)

    def send(self, kind: str, **values: Any) -> None:
        if not worker_messages.send(self._channel, kind, values):
            self._row.count("dropped_messages", 1)

    def env_change(self) -> EnvChange:
        told = self._board.env_changes
        if told != self._change[0] and (data := self._board.env_change()):
            self._change = told, decoded(data, "the control board")
        return self._change[1]

    def env_call(self) -> _EnvCall:
        return _EnvCall(self._env_calls)

    def show(self, state: str) -> None:
        """Write to the board what this worker is doing."""
        self._row.state = state


class _EnvCalls:
    """Publishes when the oldest environment call in progress began, so that the supervisor can see one that hangs.

    Calls may be made in several threads.
    """

    def __init__(self, row: WorkerRow) -> None:
        self._row = row
        self._lock = threading.Lock()
        self._began: dict[_EnvCall, float] = {}  # oldest first

    def begin(self, call: _EnvCall) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._began:
                self._row.busy_since = now
            self._began[call] = now

    def end(self, call: _EnvCall) -> None:
        with self._lock:
            del self._began[call]
            self._row.busy_since = next(iter(self._began.values()), 0.0)


class _EnvCall:
    """One environment call."""

    __slots__ = ("_calls",)

    def __init__(self, calls: _EnvCalls) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        self._calls.begin(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.end(self)


class InlineRun:
    """Shared by the inline contexts of one process: counters, the stop flag, the receiver of messages.

    Args:
        steps_per_second: of ``clock_counter``, which count as one second of the roles' clock.
        real_time: the roles have threads of their own, may wait, and use the real clock.
    """

    def __init__(
        self,
        receive: Callable[[str, str, dict[str, Any]], None],
        steps_per_second: float,
        real_time: bool = False,
    ) -> None:
        self.real_time = real_time
        self.totals = dict.fromkeys(COUNTERS, 0)
        self.stopping = False
        self.hurried = False
        self.receive = receive
        self.clock_counter = "env_steps"
        self.steps_per_second = steps_per_second
        self.env_change = EnvChange()

    def set_env_change(self, data: bytes) -> None:
        self.env_change = decoded(data, "the run")


class InlineContext(_Identified):
    """The context (``protocols.Context``) of a role that takes turns with the others in one process."""

    def __init__(
        self,
        run: InlineRun,
        worker: WorkerIdentity,
    ) -> None:
        super().__init__(worker)
        self._run = run
        self.patience = 0.1 if run.real_time else 0.0
        self.counts = dict.fromkeys(COUNTERS, 0)

    def clock(self) -> float:
        run = self._run
        return time.monotonic() if run.real_time else run.totals[run.clock_counter] / run.steps_per_second

    def should_stop(self) -> bool:
        return self._run.stopping

    def hurried(self) -> bool:
        return self._run.hurried

    def count(self, **increments: int) -> None:
        for counter, increment in increments.items():
            self._run.totals[counter] += increment
            self.counts[counter] += increment

    def total(self, counter: str) -> int:
        return self._run.totals[counter]

    def send(self, kind: str, **values: Any) -> None:
        self._run.receive(self.name, kind, values)

    def env_change(self) -> EnvChange:
        return self._run.env_change

    def env_call(self) -> AbstractContextManager[None]:
        return _NO_CALL
