"""A DQN whose loss becomes NaN, for tests of what a run does then."""

from __future__ import annotations

from apexrl.agents.dqn import DQN
from apexrl.agents.transition_batch import Transitions
from apexrl.errors import NonFiniteError
from apexrl.protocols import Learned


class Sick(DQN):
    def update(self, prepared: Transitions) -> Learned:
        if self.updates == 40:
            raise NonFiniteError("the TD error of row 3 is nan")
        return super().update(prepared)
