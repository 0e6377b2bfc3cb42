"""Which workers of a run are in trouble, the worst first. For a thousand of them nobody reads a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

from apexrl.run.status import WorkerStatus

Trouble = Literal["dead", "silent", "stalled", "slow", "stale", "dropping", "restarted"]
"""The worst first. ``dead``: no process works there. ``silent``: no sign of life. ``stalled``: it hangs, or makes
nothing while others of its role do. ``slow``: below half of its role's median. ``stale``: it gets no new weights.
``dropping``: it has lost experience or messages. ``restarted``: it was, and works."""

SILENT_SECONDS: Final = 10.0
"""Without a sign of life."""
SLOW_SHARE: Final = 0.5
"""Of the median rate of its role, below which a worker is slow."""
LEAST_PEERS: Final = 3
"""Workers of a role, below which none is compared with the others."""

_GONE: Final = ("failed", "restarting")
_BEGINNING: Final = ("starting", "stopped")


class Troubled(NamedTuple):
    """A worker in trouble."""

    worker: WorkerStatus
    trouble: Trouble
    share: float
    """Its rate over the median of its role; 1 where nothing is to compare with."""


def medians(workers: Sequence[WorkerStatus]) -> dict[str, float]:
    """Role -> the median rate of its workers at work; roles of which there are too few to compare are left out."""
    rates: dict[str, list[float]] = {}
    for worker in workers:
        if worker.state not in (*_GONE, *_BEGINNING):
            rates.setdefault(worker.role, []).append(worker.rate)
    return {role: statistics.median(found) for role, found in rates.items() if len(found) >= LEAST_PEERS}


def in_trouble(workers: Sequence[WorkerStatus], known: Mapping[str, Trouble] = MappingProxyType({})) -> list[Troubled]:
    """Those in trouble, the worst first.

    Args:
        known: worker's name -> a trouble of its that no status tells.
    """
    usual, order = medians(workers), get_args(Trouble)
    found = []
    for worker in workers:
        median = usual.get(worker.role, 0.0)
        share = worker.rate / median if median > 0.0 else 1.0
        troubles = [one for one in (known.get(worker.name), _trouble(worker, share)) if one is not None]
        if troubles:
            found.append(Troubled(worker, min(troubles, key=order.index), share))
    return sorted(found, key=lambda one: (order.index(one.trouble), -one.worker.restarts, one.share, one.worker.name))


def _trouble(worker: WorkerStatus, share: float) -> Trouble | None:
    if worker.state in _GONE:
        return "dead"
    if worker.heartbeat_age_seconds > SILENT_SECONDS:
        return "silent"
    if worker.state == "hung" or (share == 0.0 and worker.state not in _BEGINNING):
        return "stalled"
    if share < SLOW_SHARE and worker.state not in _BEGINNING:
        return "slow"
    return "restarted" if worker.restarts else None
