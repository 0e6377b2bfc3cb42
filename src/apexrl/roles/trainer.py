"""GA3C's trainer threads: take unrolls from one queue, and train one model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from apexrl.config import Config
from apexrl.errors import WaitTimeout
from apexrl.protocols import Context
from apexrl.roles.batch_source import Ready
from apexrl.roles.policy_lag import AgeLimit
from apexrl.roles.shared_model import SharedModel
from apexrl.roles.update_pace import UpdatePace

if TYPE_CHECKING:
    from apexrl.replay import Batch, Replay


class TrainingBatches:
    """Batches of as many unrolls as wait, for several threads of which one takes at a time.

    There are at most ``batch_size`` unrolls in a batch and at least ``training_min_batch``, for which it waits (GA3C's
    TRAINING_MIN_BATCH_SIZE; there in steps). In between sizes go by halves, so that few different ones come up and
    their arrays are used again.
    """

    def __init__(self, context: Context, config: Config, replay: Replay) -> None:
        self._replay = replay
        self._patience = context.patience
        self._sizes = batch_sizes(config.wiring.training_min_batch, config.learner.batch_size)
        self._pace = UpdatePace(context, config.learner.updates_per_second)
        self._turn = threading.Lock()

    def next(self) -> Batch | None:
        """A batch; None: another thread is at it, ``updates_per_second`` says wait, or too few unrolls wait."""
        if not self._turn.acquire(timeout=self._patience):
            return None
        try:
            if not self._pace.due():
                return None
            waiting = len(self._replay)
            size = next((size for size in self._sizes if size <= waiting), self._sizes[-1])
            batch = self._replay.sample(size, timeout=self._patience, outstanding=True)
            self._pace.spend()
            return batch
        except WaitTimeout:
            return None
        finally:
            self._turn.release()

    def done(self, batch: Batch) -> None:
        """It was learned from: items of a batch that was not count as lost when this process dies."""
        self._replay.done(len(batch))


def batch_sizes(least: int, most: int) -> list[int]:
    """Sizes of batches from ``most`` down to ``least``, by halves."""
    sizes = [most]
    while sizes[-1] // 2 >= least:
        sizes.append(sizes[-1] // 2)
    return sizes if sizes[-1] == least else [*sizes, least]


class Trainer:
    """One thread's part: takes a batch, and makes an update of the model by it.

    Args:
        number: among the trainers.
        max_policy_lag: 0: no limit.
    """

    def __init__(self, model: SharedModel, number: int, batches: TrainingBatches, max_policy_lag: int) -> None:
        self._model = model
        self._agent = model.instance(number, learns=True)
        self._prepare: Callable[[Any], Any] = getattr(self._agent, "prepare", lambda batch: batch)
        self._batches = batches
        self._ages = AgeLimit(max_policy_lag, 0, model.item) if max_policy_lag else None

    def step(self) -> bool:
        """One update. False: there is no batch yet."""
        batch = self._batches.next()
        if batch is None:
            return False
        fresh = None
        if self._ages is not None:
            self._ages.version = self._model.version
            fresh = self._ages(batch)
        self._agent.updates = self._model.updates  # γ may go by them
        self._model.learn(self._agent, Ready(batch, self._prepare(batch), fresh))
        self._batches.done(batch)
        return True
