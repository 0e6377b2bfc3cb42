"""The restart budget of a worker: how often it may fail, and how long it waits before it starts again.

The budget is a rate, as in systemd (StartLimitBurst per StartLimitIntervalSec) and in Erlang's supervisors (intensity
per period): a worker has ``restarts`` to spend, and every ``REFILL_SECONDS`` of useful work give one back. Kubernetes
forgets a container's crashes after the same ten minutes.
"""

from __future__ import annotations

from typing import Literal

EARLY_SECONDS = 2.0
"""A failure this soon after a start counts threefold."""

USEFUL_SECONDS = 60.0
"""After this long at work, a worker that was killed is restarted at once."""

IN_VAIN = 3
"""Generations in a row without any work done, after which a worker counts as one that always fails."""

REFILL_SECONDS = 600.0
"""Seconds of useful work that give one restart back."""

_LONGEST_PAUSE_SECONDS = 5.0
_LONGEST_KILLED_PAUSE_SECONDS = 60.0  # where kills cost nothing, this alone bounds how often they are answered

Ending = Literal["failed", "killed", "vanished"]
"""How a generation ended: by itself (error, exit, crash, stall); by a signal from outside or the loss of its node;
unknown."""


def ending_of(status: int) -> Ending:
    """By an exit ``status``, or minus a signal's number: SIGKILL, SIGTERM and SIGHUP come from outside."""
    return "killed" if status in (-9, -15, -1) else "failed"


class RestartBudget:
    """The restart budget of one worker.

    Args:
        restarts: how many are allowed, as long as none is given back.
    """

    def __init__(self, restarts: int) -> None:
        self.restarts = restarts
        self.failures = 0
        self.in_vain = 0  # generations in a row that did no work
        self._spent = 0.0
        self._cut_short = 0  # generations in a row that were killed before they had worked for a useful time

    def ended(self, lived_seconds: float, worked: bool, how: Ending = "failed") -> None:
        """Enter the end of a generation that was not asked to end.

        Args:
            worked: whether it got anything done (an environment step, an update).
        """
        self.failures += how != "killed"
        if worked:
            self._spent = max(0.0, self._spent - lived_seconds / REFILL_SECONDS)
        early = lived_seconds < EARLY_SECONDS
        if how == "failed":
            self._spent += 3 if early else 1
            self.in_vain = 0 if worked and not early else self.in_vain + 1
            self._cut_short = 0
        else:
            self._spent += how == "vanished"
            self._cut_short = 0 if worked and lived_seconds >= USEFUL_SECONDS else self._cut_short + 1

    def forgive(self) -> None:
        """Allow one more generation to a worker that was given up."""
        self._spent = min(self._spent, float(self.restarts))
        self.in_vain = min(self.in_vain, IN_VAIN - 1)

    @property
    def exhausted(self) -> bool:
        """Whether no further restart is allowed."""
        return self._spent > self.restarts

    @property
    def fails_always(self) -> bool:
        return self.in_vain >= IN_VAIN

    @property
    def pause_seconds(self) -> float:
        """Wait before the next generation: none at first, then longer with every generation in vain."""
        kills = max(0, self._cut_short - 1)  # the first one is answered at once
        return max(
            min(_LONGEST_PAUSE_SECONDS, 0.1 * 2.0 ** min(self.in_vain, 20)) if self.in_vain else 0.0,
            min(_LONGEST_KILLED_PAUSE_SECONDS, 0.1 * 2.0 ** min(kills, 20)) if kills else 0.0,
        )

    @property
    def account(self) -> str:
        """Why it is exhausted, in words."""
        often = f"failed {self.failures} times, and {self.restarts} restarts are allowed"
        return f"{often} (early failures count 3; {REFILL_SECONDS / 60:g} minutes of work give one back)"
