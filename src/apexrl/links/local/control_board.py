"""The control board: workers' heartbeats and counters and the stop word, in one small shared segment.

Every cell is an aligned 8-byte word with one writer: a worker writes its own row; the supervisor writes the header, and
in every row which generation of the worker must leave. There are no locks, and a worker killed at any moment leaves
nothing half-written.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from apexrl._native import Segment
from apexrl.run.env_changes import MOST_BYTES

COUNTERS = (
    "env_steps",
    "episodes",
    "updates",
    "evaluations",
    "weights_pulled",
    "batches",
    "chunks",
    "published",
    "gradients",
    "dropped_messages",
    "aged_steps",
    "stale_gradients",
    "outlier_batches",
    "late_requests",
    "unsent_priorities",
    "failed_checkpoints",
    "host_messages",
    "failed_weights",
    "lag_wait_ms",
    "carried_gradients",
    "lost_gradients",
    "carried_steps",
    "run_env_steps",
    "matches",
    "missed_evaluations",
)
"""What workers count; ``total`` sums a counter over all rows and the resumed run's base. Of ``run_env_steps`` there is
a base alone: on a host that is not the learner's, how many steps the learner says that the whole run has made."""

DROPPED = {
    "messages": "dropped_messages",
    "aged_steps": "aged_steps",
    "stale_gradients": "stale_gradients",
    "outlier_batches": "outlier_batches",
    "late_requests": "late_requests",
    "unsent_priorities": "unsent_priorities",
    "checkpoint_writes": "failed_checkpoints",
    "host_messages": "host_messages",
    "weight_publications": "failed_weights",
    "lost_gradients": "lost_gradients",
    "evaluations": "missed_evaluations",
}
"""Name in ``RunStatus.dropped`` -> its counter. Host messages: episodes and warnings of other hosts that were lost.
Aged steps: older than ``max_policy_lag``. Stale gradients: beyond ``max_gradient_lag``, per slice. Outlier batches: by
``outlier_deviations``. Late requests: of an earlier generation of an environment worker. Unsent priorities: for items
of shards that are lost or behind. Checkpoint writes and weight publications: failed attempts, which are repeated.
Lost gradients: under way between hosts when a connection or a relay ended, per slice. Missed evaluations: of
``eval_period_steps``: periods that passed unseen, and weights that had no room, or no time at the end."""

RUN, STOP, HURRY = 0, 1, 2
"""Values of the stop word: keep running; finish normally; finish at once, without a final evaluation."""

STATES = ("starting", "acting", "learning", "evaluating", "serving", "carrying", "waiting")
"""What a worker reports to be doing; its supervisor sets the other values of ``status.WorkerState``."""

_CELLS = 40  # 8-byte words per row: 320 bytes, so that two workers never share a cache line
_STOP, _HELD_UNTIL, _CHANGES, _CHANGE_BYTES, _CHANGE_CHECK = 0, 1, 2, 3, 4  # header cells
_PID, _GENERATION, _HEARTBEAT, _BUSY, _STATE, _DISMISSED, _FIRST_COUNTER = 0, 1, 2, 3, 4, 5, 8
_COLUMN = {name: _FIRST_COUNTER + i for i, name in enumerate(COUNTERS)}


class ControlBoard:
    """A header row and one row per worker. Picklable to any local process while its creator lives."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._attach(Segment((workers + 1) * _CELLS * 8 + MOST_BYTES))

    def _attach(self, segment: Segment) -> None:
        self._segment = segment
        memory = segment.view()  # keeps the memory mapped as long as it is used
        self._change = memory[(self.workers + 1) * _CELLS * 8 :]
        self._ints: memoryview[int] = memory.cast("q")
        self._floats: memoryview[float] = memory.cast("d")

    def __getstate__(self) -> tuple[int, Any]:
        return self.workers, self._segment

    def __setstate__(self, state: tuple[int, Any]) -> None:
        self.workers, segment = state
        self._attach(segment)

    @property
    def stop(self) -> int:
        """``RUN``, ``STOP`` or ``HURRY``."""
        return int(self._ints[_STOP])

    @stop.setter
    def stop(self, word: int) -> None:
        self._ints[_STOP] = word

    @property
    def held_until(self) -> float:
        """Until when the checkpoint writer's lease, with a Redis server or Ray's driver, is certainly valid, by
        ``ownership.lease_clock``. 0: no lease is needed. ``ownership.REPLACED``: another process has it."""
        return float(self._floats[_HELD_UNTIL])

    @held_until.setter
    def held_until(self, seconds: float) -> None:
        self._floats[_HELD_UNTIL] = seconds

    @property
    def env_changes(self) -> int:
        """Number of times that ``set_env_change`` was called."""
        return int(self._ints[_CHANGES])

    def env_change(self) -> bytes:
        """The newest settings of environments (``run.env_changes``); empty: there are none, or they are being written
        at this moment."""
        number = self._ints[_CHANGES]
        data = bytes(self._change[: self._ints[_CHANGE_BYTES]])
        return data if self._ints[_CHANGE_CHECK] == crc32(data, number) else b""

    def set_env_change(self, data: bytes) -> None:
        """Tell workers of new settings of environments. One thread writes."""
        number = self._ints[_CHANGES] + 1
        self._change[: len(data)] = data
        self._ints[_CHANGE_BYTES] = len(data)
        self._ints[_CHANGE_CHECK] = crc32(data, number)  # not all processors keep the order of writes
        self._ints[_CHANGES] = number

    def set_base(self, counter: str, value: int) -> None:
        """Start a counter's total at ``value``, the count of the run before it was resumed."""
        self._ints[_COLUMN[counter]] = value

    def total(self, counter: str) -> int:
        """A counter summed over the base and all rows."""
        column = _COLUMN[counter]
        return int(sum(self._ints[column : (self.workers + 1) * _CELLS : _CELLS]))

    def row(self, worker: int) -> WorkerRow:
        """The row of one worker, 0 … workers-1."""
        if not 0 <= worker < self.workers:
            raise IndexError(f"worker {worker} of {self.workers}")
        return WorkerRow(self._ints, self._floats, (worker + 1) * _CELLS)


class WorkerRow:
    """One worker's cells. The worker writes them; the supervisor reads them, and clears them between generations."""

    __slots__ = ("_base", "_floats", "_ints")

    def __init__(self, ints: memoryview[int], floats: memoryview[float], base: int) -> None:
        self._ints = ints
        self._floats = floats
        self._base = base

    def begin(self, pid: int, generation: int) -> None:
        """Start a new generation: keep the counters, reset the rest. ``pid`` 0: no process."""
        self._ints[self._base + _PID] = pid
        self._ints[self._base + _GENERATION] = generation
        self._ints[self._base + _STATE] = 0
        self._floats[self._base + _BUSY] = 0.0

    def dismiss(self, generation: int) -> None:
        """Ask this generation of the worker, and no later one, to finish normally while the run continues."""
        self._ints[self._base + _DISMISSED] = generation + 1

    def dismissed(self, generation: int) -> bool:
        return bool(self._ints[self._base + _DISMISSED] == generation + 1)

    def count(self, counter: str, increment: int) -> None:
        self._ints[self._base + _COLUMN[counter]] += increment

    def counter(self, name: str) -> int:
        return int(self._ints[self._base + _COLUMN[name]])

    @property
    def pid(self) -> int:
        return int(self._ints[self._base + _PID])

    @property
    def generation(self) -> int:
        return int(self._ints[self._base + _GENERATION])

    @property
    def heartbeat(self) -> float:
        """``time.monotonic()`` of the last sign of life, in seconds; 0.0 before the first."""
        return float(self._floats[self._base + _HEARTBEAT])

    @heartbeat.setter
    def heartbeat(self, seconds: float) -> None:
        self._floats[self._base + _HEARTBEAT] = seconds

    @property
    def busy_since(self) -> float:
        """``time.monotonic()`` at which the environment call in progress began, in seconds; 0.0 outside of one."""
        return float(self._floats[self._base + _BUSY])

    @busy_since.setter
    def busy_since(self, seconds: float) -> None:
        self._floats[self._base + _BUSY] = seconds

    @property
    def state(self) -> str:
        return STATES[self._ints[self._base + _STATE]]

    @state.setter
    def state(self, name: str) -> None:
        self._ints[self._base + _STATE] = STATES.index(name)
