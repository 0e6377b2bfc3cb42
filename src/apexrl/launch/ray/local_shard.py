"""A shard on the sampler's own node: sampled in shared memory. Ray is asked only whether it still lives."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import ActorUnavailableError, RayError

from apexrl.replay import Replay
from apexrl.replay.core import Handle
from apexrl.replay.sharded.shard import QUEUE_SECONDS, Answer, LazyDraw, ReadyAnswer, Shard

_PULSE_SECONDS = 0.5  # between questions whether the process is there that holds the memory


def node_id() -> str:
    """Ray's name of the node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


class Lent(NamedTuple):
    """A shard's answer to a draw from its own node: its memory, to draw from directly."""

    replay: Handle  # of the replay, for a process of this node
    generation: str  # of the shard
    rows: int
    until: int | None


class LocalShard:
    """Samples a group's replay in this process, which owns it from now on (``replay.sharded.shard.ShardClient``).

    The memory would outlive the group, with items of actors that are gone. So the shard ends with the process that
    holds its memory.

    Args:
        handle: of that process (``ray_actors.GroupMemory``).
        lent: its replay.

    Raises:
        OwnershipError: another process of this node samples it.
        ClosedError: it has gone, or its memory cannot be reached from here.
    """

    def __init__(self, handle: Any, lent: Lent) -> None:
        self._handle = handle
        self._shard = Shard(Replay.attach(lent.replay), QUEUE_SECONDS, lent.generation)
        self._pulse: Any = None
        self._asked = time.monotonic()

    def alive(self) -> bool:
        """False: the process was lost, as Ray said when it was last asked: at calls, twice a second at most."""
        now = time.monotonic()
        if self._pulse is None:
            if now - self._asked >= _PULSE_SECONDS:
                self._asked = now
                self._pulse = self._handle.ping.remote()
        elif ray.wait([self._pulse], timeout=0.0, fetch_local=False)[0]:
            pulse, self._pulse = self._pulse, None
            try:
                ray.get(pulse)
            except ActorUnavailableError:  # the connection broke; the next question makes another
                return True
            except RayError:
                return False
        return True

    def draw(self, count: int, until: int | None) -> Answer:
        self._shard.admit(until)
        return LazyDraw(self._shard, count)

    def update(self, generation: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> Answer:
        return ReadyAnswer(self._shard.update(generation, keys, priorities))

    def close(self) -> None:
        """Let go of the memory."""
        self._shard.replay.close()
