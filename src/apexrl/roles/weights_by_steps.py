"""Weights at equal distances of environment steps, kept until the evaluator has time for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from apexrl.protocols import Context, WeightsReader
from apexrl.spec import Array

MOST_BYTES = 2**30  # of weights that wait


class Candidate(NamedTuple):
    """Weights that may be measured, and how far the run was when they were pulled."""

    version: int
    weights: Mapping[str, Array]
    env_steps: int
    updates: int
    pulled: float = 0.0  # when, of the monotonic clock

    def origin(self) -> dict[str, int]:
        return {"version": self.version, "env_steps": self.env_steps, "updates": self.updates}

    def equals(self, other: Candidate) -> bool:
        """Whether the weights are the same. Versions do not tell: after a restart a learner counts some again."""
        return self.weights.keys() == other.weights.keys() and all(
            np.array_equal(array, other.weights[name]) for name, array in self.weights.items()
        )


def newest(context: Context, reader: WeightsReader, newer_than: int) -> Candidate | None:
    """The newest weights; None: there are none newer."""
    found = reader.latest(newer_than=newer_than)
    if found is None:
        return None
    return Candidate(*found, context.total("env_steps"), context.total("updates"), time.monotonic())


class WeightsBySteps:
    """Takes the newest weights whenever the run has made another ``period`` environment steps.

    Weights that are as they were one period before are not taken again. ``missed_evaluations`` counts the periods that
    pass between two looks, all but one, and those in which the weights that wait already have ``MOST_BYTES``.
    """

    def __init__(self, context: Context, reader: WeightsReader, period: int) -> None:
        self._context = context
        self._reader = reader
        self._period = period
        self._next = self._after(context.total("env_steps"))
        self._taken = self._nbytes = 0  # version and size of those that were taken last
        self._waiting: deque[Candidate] = deque()

    @property
    def waiting(self) -> int:
        """How many weights wait."""
        return len(self._waiting)

    def look(self) -> None:
        """Take weights, if it is time."""
        env_steps = self._context.total("env_steps")
        if env_steps < self._next:
            return
        missed = (env_steps - self._next) // self._period
        self._next = self._after(env_steps)
        if self._waiting and self._nbytes * (len(self._waiting) + 1) > MOST_BYTES:
            missed += 1
        elif (found := newest(self._context, self._reader, self._taken)) is not None:
            self._taken, self._nbytes = found.version, sum(array.nbytes for array in found.weights.values())
            self._waiting.append(found)
        if missed:
            self._context.count(missed_evaluations=missed)

    def take(self) -> Candidate | None:
        """Those that have waited longest; None: none wait."""
        return self._waiting.popleft() if self._waiting else None

    def _after(self, env_steps: int) -> int:
        return (env_steps // self._period + 1) * self._period
