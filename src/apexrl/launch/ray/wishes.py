"""What a run wants of a Ray cluster: no part of its configuration. Ray itself is not needed to say it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from apexrl.errors import ConfigError

_FLAGS = ("actor_cpus", "learner_gpus", "replay_shards")  # of the command


@dataclass(frozen=True)
class Wishes:
    """What a run wants of a cluster."""

    address: str = "auto"
    """``auto``: the cluster that this machine belongs to; ``local``: a new one on this machine alone, which ends with
    the run; else HOST:PORT of a cluster's head."""
    actor_cpus: float = 1.0
    """Processors that Ray reserves for each actor; parts of one where simulators wait."""
    learner_cpus: float = 1.0
    """… and for the learner, with the evaluator beside it, which gives way to it."""
    learner_gpus: float = 0.0
    """GPUs for the learner."""
    replay_shards: int = 0
    """Groups of actors with a shard of the replay each; 0: one for each node, and no more than there are actors."""
    shard_cpus: float = 1.0
    """Processors for each shard."""
    wait_seconds: float = 10.0
    """Seconds to wait until all of this can be had (a cluster that grows by itself needs minutes)."""

    def __post_init__(self) -> None:
        """ConfigError: a value is none that could be had; it is named."""
        for entry in fields(self)[1:]:
            name, value = entry.name, getattr(self, entry.name)
            flag = f"--{name.replace('_', '-')}" if name in _FLAGS else f"Wishes {name}"
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ConfigError(f"{flag} must be a number from 0 on, not {value!r}")
            if name in ("learner_cpus", "shard_cpus") and not value:
                raise ConfigError(f"{flag} must be more than 0: without resources of its own there is no place")
            if name == "replay_shards" and value != int(value):
                raise ConfigError(f"{flag} must be a whole number, not {value}")
            if name == "learner_gpus" and value > 1 and value != int(value):
                raise ConfigError(f"{flag} {value:g}: beyond one, Ray gives whole GPUs only")
