"""The traits of a role: what a launcher must know before it starts one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from apexrl.run.status import OTHER_WORK, Work


@dataclass(frozen=True)
class RoleTraits:
    """The traits of a role; the defaults are those of a class that says nothing."""

    name: str = ""
    """The role's name: ``actor`` has the workers ``actor-0``, ``actor-1`` …; empty: its class's, in lower case."""
    work: Work = OTHER_WORK
    """What its progress is counted in."""
    grace_seconds: float = math.inf
    """Seconds from the run's stop after which a worker that has not ended is killed."""
    serial_steps: int | None = None
    """Steps that it makes in a row in serial mode; None: as many as it has work for."""
    serial_limited: bool = False
    """In serial mode the replay's limiter, or its queue, decides how many steps it makes in a row, if there is one."""
    writes_checkpoints: bool = False
    """It writes the run's checkpoints: it gets more time to end, and its failure at the end is the run's failure."""
    writes_replay: bool = False
    """It saves the replay at the end, if the run does."""
    writes_to_folder: bool = False
    """It writes into the run folder, so that each of its generations needs a fence (``run.ownership``)."""

    @property
    def fenced(self) -> bool:
        return self.writes_to_folder or self.writes_checkpoints


def traits_of(factory: Any) -> RoleTraits:
    """The traits that a role's class, or whatever makes the role, declares."""
    return getattr(factory, "traits", RoleTraits())
