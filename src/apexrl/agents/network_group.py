"""Several networks in training as one: what an actor-critic agent publishes and checkpoints."""

from __future__ import annotations

from typing import Any

from apexrl.agents.trained_network import Trained
from apexrl.protocols import Arrays
from apexrl.spec import Array


class Parts:
    """Trained networks under their names.

    Args:
        trained: each with a name of its own.
    """

    def __init__(self, *trained: Trained[Any]) -> None:
        self._trained = trained

    def weights(self) -> dict[str, Array]:
        """All parameters by name, copied."""
        return {name: array for part in self._trained for name, array in part.weights().items()}

    def load(self, weights: Arrays) -> None:
        """Take parameters as ``weights`` gives them.

        Raises:
            SpecError: they are of other networks.
        """
        for part in self._trained:
            part.load(weights)

    def state_dict(self) -> dict[str, Array]:
        """Parameters, targets and optimizers as flat named arrays."""
        state: dict[str, Array] = {}
        for part in self._trained:
            state |= part.state_dict()
        return state

    def load_state_dict(self, state: Arrays) -> None:
        """Go on exactly where ``state_dict`` was taken.

        Raises:
            SnapshotError: something is missing: the state is of another agent or optimizer.
            SpecError: arrays are of other networks.
        """
        for part in self._trained:
            part.load_state_dict(state)
