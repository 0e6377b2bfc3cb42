"""Limits on a learner: updates per second, and a step size that is annealed."""

from __future__ import annotations

import time
from typing import Any

from apexrl.config import Config
from apexrl.errors import AgentError
from apexrl.protocols import Context

_CATCH_UP_SECONDS = 1.0


class UpdatePace:
    """``updates_per_second``; 0 lets the learner run."""

    def __init__(self, context: Context, updates_per_second: float) -> None:
        self._context = context
        self._pace = updates_per_second
        self._due_at = context.clock()

    def due(self) -> bool:
        """Whether an update may begin; waits for it as long as the context's patience allows."""
        if not self._pace:
            return True
        wait = self._due_at - self._context.clock()
        if wait > 0:
            time.sleep(min(wait, self._context.patience))
        return wait <= self._context.patience

    def spend(self) -> None:
        """An update has its batch, or is made. One that found none has spent no time of those that follow."""
        if self._pace:
            self._due_at = max(self._due_at, self._context.clock() - _CATCH_UP_SECONDS) + 1.0 / self._pace


class Anneal:
    """``--anneal``: tells an agent, before each of its updates, which part of the run's environment steps are made.

    They are counted over the whole run, with all resumes and hosts, whenever an update begins. So the step size is the
    same function of experience at any speed, and a resumed run continues with the step size that it had.
    """

    def __init__(self, context: Context, config: Config) -> None:
        self._context = context
        self._budget = config.stop.env_steps if config.agent.anneal else 0

    def tell(self, agent: Any) -> None:
        """Before an update.

        Raises:
            AgentError: it is to be told and has no ``anneal``.
        """
        if not self._budget:
            return
        if not callable(getattr(agent, "anneal", None)):
            raise AgentError(f"--anneal needs an agent with anneal(progress), which {type(agent).__name__} has not")
        agent.anneal(min(1.0, self._context.total("env_steps") / self._budget))
