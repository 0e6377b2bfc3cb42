"""Loading the newest weights into an agent that acts."""

from __future__ import annotations

from apexrl.protocols import Agent, Context, WeightsReader


class NewestWeights:
    """Loads every newer version of the published weights into an agent.

    Attributes:
        version: that the agent has; 0: none yet.
    """

    def __init__(self, context: Context, agent: Agent, weights: WeightsReader) -> None:
        self._context, self._agent, self._weights = context, agent, weights
        self.version = 0

    def pull(self) -> None:
        newest = self._weights.latest(newer_than=self.version)
        if newest is not None:
            self.version, arrays = newest
            self._agent.load(arrays)
            self._context.count(weights_pulled=1)
