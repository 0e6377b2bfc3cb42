"""How many processor cores the environments of one actor may use."""

from __future__ import annotations

import os

from apexrl.config import Config


def own_cores(config: Config) -> int:
    """Cores of this machine for each of the run's actors, at least 1; all of them where roles take turns."""
    return max(1, len(os.sched_getaffinity(0)) // (1 if config.serial else max(1, config.actor.actors)))
