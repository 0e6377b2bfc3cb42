"""How often a worker may fail before the run gives up on it, and how long it waits before its next life."""

from __future__ import annotations

EARLY_SECONDS = 2.0
"""A failure this soon after a start counts threefold."""

IN_VAIN = 3
"""Lives in a row without any work done, after which a worker is thought to fail always."""

_LONGEST_PAUSE_SECONDS = 5.0


class Patience:
    """One worker's account of failures.

    Args:
        restarts: how many are allowed.
    """

    def __init__(self, restarts: int) -> None:
        self.restarts = restarts
        self.failures = 0
        self.in_vain = 0  # lives in a row that did no work
        self._spent = 0

    def failed(self, lived_seconds: float, worked: bool, killed: bool = False) -> None:
        """Enter the end of a life.

        Args:
            worked: whether it got anything done (an environment step, an update).
            killed: it was killed from outside, which says nothing of the worker itself.
        """
        self.failures += 1
        early = lived_seconds < EARLY_SECONDS and not killed
        self._spent += 3 if early else 1
        if not killed:
            self.in_vain = 0 if worked and not early else self.in_vain + 1

    @property
    def exhausted(self) -> bool:
        """Whether no further restart is allowed."""
        return self._spent > self.restarts

    @property
    def fails_always(self) -> bool:
        return self.in_vain >= IN_VAIN

    @property
    def pause_seconds(self) -> float:
        """Wait before the next life: none at first, then longer with every life in vain."""
        return 0.0 if self.in_vain == 0 else min(_LONGEST_PAUSE_SECONDS, 0.1 * 2.0**self.in_vain)
