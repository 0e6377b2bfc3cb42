"""What a supervisor or a driver keeps of a worker's slot over all generations of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apexrl.errors import WorkerError
from apexrl.launch.restart_budget import RestartBudget
from apexrl.run.metrics import RateMeter
from apexrl.topologies.program import Node


class SlotState:
    """A slot's identity, its restart budget, and how its last worker ended."""

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index
        self.name = f"{node.name}-{index}"
        self.patience = RestartBudget(node.restarts)
        self.generation = -1
        self.gone = False  # given up on, or ended cleanly
        self.resting = False  # nobody is to serve here at present
        self.leaving_since: float | None = None  # monotonic seconds at which the present generation was asked to end
        self.restarts = 0  # generations that followed upon a failure
        self.restart_at = 0.0  # monotonic seconds of the next start, while there is no worker
        self.errors: list[dict[str, Any]] = []  # the `error` messages of this generation
        self.last_error = ""
        self.hung = ""  # why it is to be killed, if it hangs
        self.kill_at = 0.0  # monotonic seconds, if it hangs: until then its stacks are written
        self._rate = RateMeter()
        self._work_at_birth = 0
        self._left = True  # whether the last generation ended because it was asked to, or there was none

    @property
    def headline(self) -> str:
        """How the last worker ended, in one line."""
        text = str(self.errors[-1]["error"]) if self.errors and not self.hung else self.last_error
        return (text.splitlines() or [""])[0]

    @property
    def account(self) -> str:
        """How the last worker ended: the headline and the text, unless that begins with the headline."""
        headline, text = self.headline, self.last_error
        return text if text.startswith(headline) else f"{headline}\n{text}"

    @property
    def exhausted_account(self) -> str:
        """Why it is not restarted any more."""
        return f"{self.patience.account}. The last time: {self.account}"

    def role_failure(self, role: Sequence[SlotState]) -> WorkerError | None:
        """The error that ends the run if all workers of the ``role`` fail always; None: some do not."""
        if not all(other.patience.fails_always for other in role):
            return None
        who = f"all {len(role)} {self.node.name}s fail always; {self.name}" if len(role) > 1 else self.name
        return WorkerError(f"{who} failed {self.patience.in_vain} times in a row: {self.account}")
