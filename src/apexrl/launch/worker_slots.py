"""A worker's slot as its supervisor sees it: workers come and go; seed, ε and counters stay with the slot."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from apexrl.launch.restart_budget import ending_of
from apexrl.launch.resumed_from import Base
from apexrl.launch.slot_state import SlotState
from apexrl.launch.stall_dump import START, hung_call, stood_still
from apexrl.links.local import worker_messages
from apexrl.links.local.control_board import STATES, ControlBoard
from apexrl.links.local.role_context import WorkerIdentity
from apexrl.links.local.stall_detector import StallDetector
from apexrl.run.status import WorkerState, WorkerStatus
from apexrl.shared import available_memory
from apexrl.topologies.program import Node

# Seconds from the run's stop to the kill
_HURRIED_SECONDS = 5.0
_CHECKPOINT_SECONDS, _HURRIED_CHECKPOINT_SECONDS = 120.0, 30.0  # of a role that writes checkpoints
_REPLAY_SECONDS = 1800.0  # of a role that writes the replay
_END_BYTES = 4000  # of a log, that are shown


def slot_seed(seed: int, role: str, index: int, generation: int, resumed_at: int = 0, lease: int = 0) -> int:
    """The seed of one generation of one slot: distinct for all, and the same in every run with this ``seed``.

    Args:
        generation: of the worker, on this host.
        resumed_at: environment steps at which a resumed run goes on, so that it meets no seed twice; updates where it
            makes no steps.
        lease: generation of the lease under which this host has the slot; 0 when the slot is its own.
    """
    entropy = [seed, zlib.crc32(role.encode()), index, generation, resumed_at] + [lease] * (lease > 0)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])


def identity(
    seed: int, role: str, index: int, generation: int, base: Base, folder: Path, number: int = 0, lease: int = 0
) -> WorkerIdentity:
    """Who serves in a slot in one of its generations; arguments as of ``slot_seed``.

    Args:
        base: what a resumed run had reached.
        number: of this generation among those that write into the run folder; 0: it does not write.
    """
    own = slot_seed(seed, role, index, generation, base.env_steps or base.updates, lease)
    return WorkerIdentity(f"{role}-{index}", role, index, generation, own, folder, number)


class Slot(SlotState):
    """One worker of a program, over all its generations."""

    def __init__(self, node: Node, index: int, lease: int, board: ControlBoard, row: int, folder: Path) -> None:
        super().__init__(node, index)
        self.lease = lease
        self.row_number = row
        self.row = board.row(row)
        self.ticket = -1  # of the present generation at the fork server
        self.alive = False
        self.stalled = False  # it hangs outside of environment calls
        self.pid = 0  # of the present generation, once it is born
        self.channel: socket.socket | None = None
        self.log_path = folder / "logs" / f"{self.name}.log"
        self._born_at = 0.0
        self._oom_kills_at_birth = 0
        self._starved = False  # the kernel killed the last generation for lack of memory
        self._call, self._loop = StallDetector(), StallDetector()

    def begin(self, now: float) -> tuple[socket.socket, int | OSError]:
        """Begin a generation.

        Returns:
            The worker's end of the channel, and a descriptor of its log, or why that cannot be opened. The caller
            closes both.
        """
        self.end_channel()
        self.generation += 1
        self.restarts += not self._left
        self.alive, self.hung, self.stalled = True, "", False
        self.errors = []
        self._born_at = now
        self._work_at_birth = self.work_done
        self._oom_kills_at_birth = available_memory.oom_kills()
        self._call, self._loop = StallDetector(), StallDetector()
        self.row.begin(0, self.generation)
        self.row.heartbeat = now
        self.channel, theirs = worker_messages.channel()
        try:
            self.log_path.parent.mkdir(exist_ok=True)
            return theirs, os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            return theirs, error

    def receive(self) -> list[worker_messages.Message]:
        """Messages of the worker since the last call."""
        heard = worker_messages.receive(self.channel) if self.channel is not None else []
        self.errors += [message.values for message in heard if message.kind == "error"]
        return heard

    def end(self, now: float, status: int, unborn: str = "") -> None:
        """Record this generation's end: exit ``status`` (minus a signal's number); ``unborn``: why it never began."""
        self._left, self.leaving_since = self.leaving_since is not None, None
        self.alive = False
        self.pid = 0
        self.row.begin(0, self.generation)
        worked = self.work_done > self._work_at_birth
        self._starved = status == -9 and not self.hung and available_memory.oom_kills() > self._oom_kills_at_birth
        if not self._left:
            how = "failed" if self.hung or self._starved else ending_of(status)
            self.patience.ended(now - self._born_at, worked, how)
        self.last_error = "" if self._left and status == 0 else unborn or self.why(status)
        self.restart_at = now + self.patience.pause_seconds

    def dismiss(self, now: float) -> None:
        """Ask the present worker, if there is one, to end cleanly, and start no other until ``call``."""
        self.resting = True
        if self.alive:
            self.row.dismiss(self.generation)
            self.leaving_since = now

    def call(self) -> None:
        """Let a worker serve here again. One that is leaving ends first."""
        self.resting = False

    def end_channel(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def grace(self, hurry: bool, saves_replay: bool) -> float:
        """Seconds from the run's stop in which the worker may end."""
        traits = self.node.traits
        if saves_replay and (traits.writes_checkpoints or traits.writes_replay):
            return _REPLAY_SECONDS
        if traits.writes_checkpoints:
            return _HURRIED_CHECKPOINT_SECONDS if hurry else _CHECKPOINT_SECONDS
        return _HURRIED_SECONDS if hurry else traits.grace_seconds

    @property
    def at_work(self) -> bool:
        """Whether a worker has made its first step and is not asked to leave."""
        return self.alive and self.leaving_since is None and self.row.state != STATES[0]

    @property
    def work_done(self) -> int:
        return self.row.counter(self.node.traits.work.counter)

    def hangs(self, now: float, stall_timeout: float) -> bool:
        """Whether the environment call in progress has taken longer than it may, or the loop does not go on; ``hung``
        then says so. To be asked at every tick.

        Args:
            stall_timeout: 0: the loop may stand still.
        """
        limit, since = self.node.env_timeout, self.row.busy_since
        starting = self.row.state == STATES[0]
        called = self._call.look(since, now, since > 0.0)
        still = self._loop.look(self.row.heartbeat, now, limit is None or not since)  # a call has a limit of its own
        if limit is not None and called > limit:
            self.hung = hung_call(limit)
        elif stall_timeout and still > stall_timeout * (START if starting else 1.0):
            self.hung = stood_still(stall_timeout, starting, self.pid)
            self.stalled = True
        return bool(self.hung)

    def status(self, now: float) -> WorkerStatus:
        state: WorkerState
        if self.gone:
            state = "failed" if self.last_error else "stopped"
        elif not self.alive:
            state = "restarting"
        elif self.hung:
            state = "hung"
        else:
            state = self.row.state  # type: ignore[assignment]  # STATES is a subset of WorkerState
        return WorkerStatus(
            name=self.name,
            role=self.node.name,
            index=self.index,
            pid=self.pid or None,
            state=state,
            restarts=self.restarts,
            rate=self._rate.add(now, self.work_done),
            heartbeat_age_seconds=max(0.0, now - self.row.heartbeat),
            work=self.node.traits.work,
        )

    def why(self, status: int) -> str:
        """Why this worker ended, for a human."""
        if self.hung:
            return self.hung + (f"\n{self.log_end()}" if self.stalled else "")
        if self.errors:
            return str(self.errors[-1]["traceback"]).rstrip()
        if self._starved:
            return "the kernel killed it for lack of memory (a machine's or a cgroup's): give it more, or ask for less"
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
        end = self.log_end()
        return how + (f"; {end}" if end and status != -9 else "")

    def log_end(self) -> str:
        """The end of the log in a few words of introduction; empty if there is none."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _END_BYTES))
                tail = file.read().decode(errors="replace").strip()
        except OSError:
            return ""
        return f"the end of {self.log_path}:\n{tail}" if tail else ""


def staff(slots: Sequence[Slot], count: int, now: float) -> None:
    """Let ``count`` workers of one role serve: the lowest slots are called first, and the highest dismissed, but before
    them those who fail always."""
    called = [slot for slot in slots if not slot.resting]
    resting = sorted((slot for slot in slots if slot.resting), key=_worst_last)
    for slot in resting[: max(0, count - len(called))]:
        slot.call()
    for slot in sorted(called, key=_worst_last)[count:]:
        slot.dismiss(now)


def _worst_last(slot: Slot) -> tuple[bool, int]:
    return slot.patience.fails_always, slot.index
