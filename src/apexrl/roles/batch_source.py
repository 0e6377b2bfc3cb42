"""Sources of the learner's batches: sampled on demand, or ahead of time by a thread."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import WaitTimeout
from apexrl.protocols import Agent, Context
from apexrl.roles.goal_relabelling import GoalRelabelling
from apexrl.roles.policy_lag import AgeLimit
from apexrl.roles.thread_heartbeat import ThreadHeartbeat

if TYPE_CHECKING:
    from apexrl.replay import Batch, Replay, ServedBatches


class Ready(NamedTuple):
    """A sampled batch, and what the agent made of it."""

    batch: Batch
    prepared: Any
    fresh: NDArray[np.bool_] | None = None
    """Which steps are young enough to be learned from, as ``AgeLimit`` says it; None: all."""


class UnsentPriorities:
    """Counts priorities that never reached the shards of a sharded replay."""

    def __init__(self, context: Context, replay: Any) -> None:
        self._context = context
        self._replay = replay
        self._counted = 0

    def count(self) -> None:
        """Count those since the last call."""
        unsent = getattr(self._replay, "unsent", 0)
        if unsent > self._counted:
            self._context.count(unsent_priorities=unsent - self._counted)
            self._counted = unsent


class DirectBatches:
    """Samples and prepares in the learner's own thread.

    Args:
        beta: says the exponent of importance weights of the next batch.
        patience: seconds that ``next`` waits for the replay.
        ages: marks steps that are too old to be learned from; None: no step is.
        several: batches wait for the learner beside the one that it is at. Of a queue, all of them count as lost if
            this process dies before ``done``; else, the last one alone does.
        horizon: says ``n_step`` and ``gamma`` of the next batch; nothing: they are the replay's.
        goals: puts the goals that the replay has drawn into a batch; None: it draws none.
    """

    def __init__(
        self,
        replay: Replay | ServedBatches,
        agent: Agent,
        batch_size: int,
        beta: Callable[[], float],
        patience: float,
        ages: AgeLimit | None = None,
        several: bool = False,
        horizon: Callable[[], Mapping[str, Any]] = dict,
        goals: GoalRelabelling | None = None,
    ) -> None:
        self._replay = replay
        self._horizon = horizon
        self._done: Callable[[int], None] | None = getattr(replay, "done", None) if several else None
        self._sampling: dict[str, Any] = {} if self._done is None else {"outstanding": True}
        # Without one, update() takes the batch as it was sampled.
        self._prepare: Callable[[Any], Any] = getattr(agent, "prepare", lambda batch: batch)
        self._batch_size = batch_size
        self._beta = beta
        self._patience = patience
        self._ages = ages
        self._goals = goals

    def next(self, wait: bool = True) -> Ready | None:
        """A batch, or None while the replay holds too little or its limiter says wait."""
        timeout = self._patience if wait else 0.0
        try:
            horizon = self._horizon()
            batch = self._replay.sample(
                self._batch_size, beta=self._beta(), timeout=timeout, **self._sampling, **horizon
            )
        except WaitTimeout:
            return None
        if self._goals is not None:
            self._goals(batch, **horizon)
        fresh = None if self._ages is None else self._ages(batch)
        return Ready(batch, self._prepare(batch), fresh)

    def done(self, ready: Ready) -> None:
        """(``several``) The learner has used it."""
        if self._done is not None:
            self._done(len(ready.batch))

    def write_back(self, keys: NDArray[np.uint64], priorities: NDArray[np.float32]) -> None:
        """Hand priorities to the replay.

        Raises:
            PriorityError, SpecError: it does not take them.
        """
        self._replay.update_priorities(keys, priorities)

    def close(self) -> None:
        """Close the environment that says what goals are worth, if there is one."""
        if self._goals is not None:
            self._goals.close()


class PrefetchedBatches:
    """Samples and prepares ``ahead`` batches in a thread. No other thread samples.

    An error there is raised by the next call here. On CUDA the host's part (draw, gather, starting the copy) runs while
    the device is at an update.
    """

    def __init__(
        self, direct: DirectBatches, ahead: int, patience: float, stall_timeout: float = 0.0, device: str = "cpu"
    ) -> None:
        self._direct = direct
        self._device = device
        self._turns = ThreadHeartbeat(stall_timeout)
        self._patience = patience
        self._ready: queue.Queue[Ready] = queue.Queue(maxsize=ahead)
        self._taken: Ready | None = None
        self._write_backs: deque[tuple[NDArray[np.uint64], NDArray[np.float32]]] = deque()
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._guarded, args=(self._fetch,), name="prefetch", daemon=True)
        self._thread.start()

    def next(self, wait: bool = True) -> Ready | None:
        """A batch, or None when none came within the learner's patience."""
        if self._taken is not None:  # who asks for the next is through with the last
            self._direct.done(self._taken)
            self._taken = None
        try:
            self._taken = self._ready.get(wait, self._patience)
        except queue.Empty:
            if self._error is not None:
                raise self._error from None
            self._turns.check(self._thread)
        return self._taken

    def write_back(self, keys: NDArray[np.uint64], priorities: NDArray[np.float32]) -> None:
        """Leave priorities for the thread. There are never more than batches in flight, which are bounded.

        Raises:
            PriorityError, SpecError: as the replay would, but here, where it is known which update made them.
        """
        from apexrl.replay.priorities import checked

        checked(keys, priorities)
        self._write_backs.append((np.array(keys), priorities))  # a view would hold the whole batch

    def close(self) -> None:
        """Stop the thread; batches sampled ahead are dropped."""
        self._closing = True
        self._thread.join(timeout=10.0)
        while self._write_backs and not self._thread.is_alive():
            self._direct.write_back(*self._write_backs.popleft())
        if not self._thread.is_alive():
            self._direct.close()

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            self._error = error

    def _fetch(self) -> None:
        if self._device.startswith("cuda:"):
            import torch

            torch.cuda.set_device(self._device)  # each thread begins with the first one, and would take up memory there
        waiting: Ready | None = None
        self._turns.begin(first=True)
        while not self._closing:
            while self._write_backs:
                self._direct.write_back(*self._write_backs.popleft())
            waiting = waiting or self._direct.next()
            self._turns.begin()
            if waiting is None:
                continue
            try:
                self._ready.put(waiting, timeout=0.01)
            except queue.Full:
                continue
            waiting = None
