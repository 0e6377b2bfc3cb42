"""Loading the newest weights into an agent that acts."""

from __future__ import annotations

from typing import Final

from apexrl.protocols import Agent, Context, WeightsReader

VERSION_BITS: Final = 40
"""Of a number on a weights board. Above them a host counts the learners that went on from an earlier version than the
one before had published: numbers of a board only rise."""


def version_of(number: int) -> int:
    """The version of weights with this number on a board."""
    return number & ((1 << VERSION_BITS) - 1)


class NewestWeights:
    """Loads every newer version of the published weights into an agent.

    Attributes:
        version: that the agent has; 0: none yet.
    """

    def __init__(self, context: Context, agent: Agent, weights: WeightsReader) -> None:
        self._context, self._agent, self._weights = context, agent, weights
        self.version = self._number = 0

    def pull(self) -> None:
        newest = self._weights.latest(newer_than=self._number)
        if newest is not None:
            self._number, arrays = newest
            self.version = version_of(self._number)
            self._agent.load(arrays)
            self._context.count(weights_pulled=1)
