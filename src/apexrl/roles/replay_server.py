"""The replay role: owns a replay and serves its batches to several learners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apexrl.config import Config
from apexrl.protocols import Context
from apexrl.roles import checkpointing
from apexrl.roles.batch_source import UnsentPriorities
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work

if TYPE_CHECKING:
    from apexrl.replay import BatchServer

_LONGEST_WAIT_SECONDS = 0.1


class ReplayServer:
    """Gorila's global replay (Nair et al. 2015, §3), or that of several learners side by side.

    When it dies, its successor makes sum tree and order again from shared memory: items and learners stay.
    """

    traits = RoleTraits("replay", Work("batches", "batches/s", "serving"), writes_replay=True, writes_to_folder=True)

    def __init__(self, context: Context, *, config: Config, batches: BatchServer) -> None:
        self._context = context
        self._server = batches
        self._keep = config.learner.save_replay
        self._timeout = min(context.patience, _LONGEST_WAIT_SECONDS)
        self._served = 0
        self._unsent = UnsentPriorities(context, batches.replay)

    def step(self) -> bool:
        """Sample what learners miss, write back what they sent. False: there was nothing to do."""
        worked = self._server.step(self._timeout)
        served = self._server.stats()["batches"]
        if served != self._served:
            self._context.count(batches=served - self._served)
            self._served = served
        self._unsent.count()
        return worked

    def close(self) -> None:
        """The last priorities, and the replay when it is to be kept. Learners may still be at their last batches."""
        self._server.step(0.0)
        self._unsent.count()
        if self._keep:
            checkpointing.save_replay(self._context, self._server.replay)
