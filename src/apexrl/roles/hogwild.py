"""A worker's access to parameters in shared memory: copied before an unroll, changed in place after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from apexrl.links.local.shared_parameters import SharedParameters
from apexrl.protocols import STATISTICS, Context
from apexrl.roles.schedules import Anneal

if TYPE_CHECKING:
    from torch import Tensor


class HogwildParameters:
    """Hogwild (Recht et al. 2011): ``send`` is one step of the optimizer on everybody's parameters, without a lock.

    Args:
        agent: it acts and takes gradients, with a copy.
        twin: another instance, which applies them: from here on its parameters ARE the shared ones.
        statistics: the optimizer's state is shared too; else it is the twin's own.
        anneal: tells the twin, before each of its updates; None: nobody does.
    """

    sent = True
    """``send`` completes at once."""

    def __init__(
        self,
        context: Context,
        agent: Any,
        twin: Any,
        parameters: SharedParameters,
        statistics: bool,
        anneal: Anneal | None = None,
    ) -> None:
        from apexrl.agents.named_vectors import bind, vectors

        self._context = context
        self._agent = agent
        self._twin = twin
        self._anneal = anneal
        self._parameters = parameters
        bind(twin, parameters.arrays, statistics)
        own = {name: vector for name, vector in vectors(agent).items() if STATISTICS not in name}
        self._copies = [(vector, parameters.arrays[name]) for name, vector in own.items()]
        self.version = 0
        """Of the agent's copy: one more than the updates ever made when it was taken; 0: there is none yet."""

    @property
    def newest(self) -> int:
        """The version that a copy taken now would have."""
        return self._context.total("updates") + 1

    def pull(self) -> bool:
        """Take a copy of the parameters as they are now. False: nobody has written the first ones yet."""
        from apexrl.agents.trained_agent import refresh

        if not self._parameters.wait(self._context.patience):
            return False
        self.version = self.newest
        for own, shared in self._copies:
            np.copyto(own, shared)
        refresh(self._agent)
        return True

    def send(self, groups: Mapping[str, Tensor], timeout: float) -> bool:
        """Apply a gradient. Always True: nothing is waited for."""
        if self._anneal is not None:
            self._anneal.tell(self._twin)
            self._anneal.tell(self._agent)  # whose metrics say the step size
        self._twin.apply(groups)
        self._context.count(updates=1)
        return True

    def finish(self, timeout: float) -> bool:
        """Always True: ``send`` leaves nothing under way."""
        return True
