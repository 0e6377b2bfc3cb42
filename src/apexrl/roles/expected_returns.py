"""Compares the returns that an agent expects of an evaluation's episodes with the discounted ones that they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apexrl.protocols import Arrays

if TYPE_CHECKING:
    from apexrl.envs.vector import Stepped

MOST_LEFT = 0.05  # of the discount where an episode was truncated: with more, what would have followed counts too

MOST_LENGTHS = 1_000  # that a message carries beside the returns


class ExpectedReturns:
    """Of the episodes of an evaluation: length, kind of end, expected and observed discounted return.

    Args:
        agent: one with ``expected_returns``; of others nothing is compared.
        gamma: discount per environment step.
        observations: the first ones, name -> [B, …].
    """

    def __init__(self, agent: Any, gamma: float, observations: Arrays) -> None:
        self._ask = getattr(agent, "expected_returns", None)
        self._gamma = gamma
        rows = len(next(iter(observations.values())))
        self._discounted = np.zeros(rows)
        self._weight = np.ones(rows)  # γ^t
        self._length = np.zeros(rows, np.int64)
        self._expected = self._asked(observations, np.ones(rows, np.bool_))
        self._lengths: list[int] = []
        self._terminated: list[bool] = []
        self._compared: list[tuple[float, float]] = []

    def note(self, stepped: Stepped, observations: Arrays, owed: Sequence[int]) -> None:
        """One step of all environments.

        Args:
            observations: that the agent sees after it, name -> [B, …].
            owed: episodes that still count, of every environment, before this step.
        """
        played = stepped.played
        self._discounted[played] += (self._weight * stepped.reward)[played]
        self._weight[played] *= self._gamma
        self._length += played
        for row in np.flatnonzero(stepped.terminated | stepped.truncated).tolist():
            if owed[row]:
                terminated = bool(stepped.terminated[row])
                self._lengths.append(int(self._length[row]))
                self._terminated.append(terminated)
                if self._ask is not None and (terminated or self._weight[row] <= MOST_LEFT):
                    self._compared.append((float(self._expected[row]), float(self._discounted[row])))
        if stepped.starts.any():
            starts = stepped.starts
            self._discounted[starts], self._weight[starts], self._length[starts] = 0.0, 1.0, 0
            self._expected[starts] = self._asked(observations, starts)

    def report(self) -> dict[str, Any]:
        """What a row of kind ``evaluation`` says of it."""
        found: dict[str, Any] = {}
        if self._lengths:
            found["lengths"] = self._lengths[:MOST_LENGTHS]
            found["terminated"] = float(np.mean(self._terminated))
        if self._compared:
            expected, observed = np.mean(self._compared, axis=0)
            found["expected_return"], found["discounted_return"] = float(expected), float(observed)
        return found

    def _asked(self, observations: Arrays, rows: NDArray[np.bool_]) -> NDArray[np.float64]:
        if self._ask is None:
            return np.zeros(int(rows.sum()))
        return np.asarray(self._ask({name: value[rows] for name, value in observations.items()}), np.float64)
