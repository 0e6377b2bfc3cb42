"""The status of a run on Ray: a record for ``apexrl status``, and metrics among Ray's own.

The driver writes both once a second. A named actor in the run's namespace holds the record, so it lives as long as the
driver. Every node can ask for it, without the run folder.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.metrics import Counter, Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from apexrl.run.atomic_files import replace_text
from apexrl.run.folder import RunFolder
from apexrl.run.metric_catalogue import metric_of
from apexrl.run.metrics import RateMeter
from apexrl.run.status import RunStatus

if TYPE_CHECKING:
    from apexrl.launch.ray.ray_slots import ActorGroup

NOTICE = "apexrl-run"
AUTH_MODE = "RAY_AUTH_MODE"  # whether this process shows clusters its token; Ray sets it for local ones
"""Name of the actor that holds a run's record, in every run's namespace."""

_PERIOD_SECONDS = 1.0
_remote: Any = ray.remote

_GAUGES = ("env_steps_per_second", "updates_per_second", "replay_size", "policy_lag_mean", "train_return",
           "eval_return", "weights_version", "workers")  # fmt: skip
_COUNTERS = ("env_steps", "updates", "episodes", "inserted", "sampled", "lost_items", "restarts")
_MEANINGS = {
    "workers": "workers that live",
    "inserted": "items inserted into shards",
    "sampled": "items sampled from shards",
    "lost_items": "items that were lost with a shard or by one",
}
"""Of what is on Ray alone; the others' are those of every run."""


@dataclass(frozen=True)
class GroupRecord:
    """A group on one node: that of the learner, or a shard with its actors."""

    name: str
    host: str
    """Name of the node; empty: it has none yet."""
    state: str
    """``up``, ``starting``; without resources: ``waiting`` for the first, ``lost`` after it."""
    workers: tuple[str, ...]
    restarts: int
    """Times that its memory was begun anew; those of workers are in the status."""
    size: int = 0
    """Items; the learner's node has no shard."""
    capacity: int = 0
    inserted_per_second: float = 0.0
    sampled_per_second: float = 0.0


@dataclass(frozen=True)
class Record:
    """A run on a cluster at one moment."""

    name: str
    """Of its folder."""
    folder: str
    host: str
    """Where the driver is, and its process."""
    pid: int
    at: float
    """Seconds since 1970, by the driver's clock."""
    status: RunStatus
    groups: tuple[GroupRecord, ...] = ()


class Notice:
    """Holds the newest record (an actor)."""

    def __init__(self) -> None:
        self._record: Record | None = None

    def put(self, record: Record) -> None:
        self._record = record

    def get(self) -> Record | None:
        return self._record


class RayMetrics:
    """Publishes a run's metrics on its cluster, to which this process is connected.

    Args:
        namespace: of the run's named actors.
    """

    def __init__(self, namespace: str, folder: RunFolder) -> None:
        context = ray.get_runtime_context()
        self._ray_path, self._check = folder.ray_path, folder.generations.check
        self._folder = folder.path.resolve()
        self._where = {"address": context.gcs_address, "namespace": namespace, "auth": os.environ.get(AUTH_MODE, "")}
        # Beside the driver, whose end is its end; it has nothing to lose, so Ray may start it again.
        here = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True)
        self._notice = (
            _remote(Notice)
            .options(num_cpus=0, name=NOTICE, namespace=namespace, max_restarts=-1, scheduling_strategy=here)
            .remote()
        )
        self._meters = Meters(self._folder.name)
        self._rates: dict[str, tuple[RateMeter, RateMeter]] = {}
        self._sent: Any = None
        self._told_at = -math.inf

    def write(self) -> None:
        """Write ``ray.json``, by which ``apexrl status RUN`` finds the cluster."""
        replace_text(self._ray_path, json.dumps(self._where) + "\n", self._check)

    def tick(self, now: float, status: RunStatus, groups: Sequence[ActorGroup], sums: Mapping[str, int]) -> None:
        """Tell how things stand, if it is time. ``now``: seconds, of any clock; ``sums``: ``inserted`` and ``sampled``
        items of all shards and all their generations."""
        if now - self._told_at < _PERIOD_SECONDS:
            return
        self._told_at = now
        with suppress(RayError):  # a picture of the run shall not end it
            self._tell(now, status, groups, sums)

    def _tell(self, now: float, status: RunStatus, groups: Sequence[ActorGroup], sums: Mapping[str, int]) -> None:
        self._meters.set(status, sums)
        record = Record(
            name=self._folder.name,
            folder=str(self._folder),
            host=platform.node(),
            pid=os.getpid(),
            at=time.time(),
            status=status,
            groups=tuple(self._group(now, group) for group in groups),
        )
        if self._sent is None or ray.wait([self._sent], timeout=0.0)[0]:  # who is slow misses some
            self._sent = self._notice.put.remote(record)

    def close(self) -> None:
        """Nobody finds the run any more. May be called again."""
        with suppress(RayError, ValueError):
            if ray.is_initialized():
                ray.kill(self._notice, no_restart=True)

    def _group(self, now: float, group: ActorGroup) -> GroupRecord:
        inserted, sampled = self._rates.setdefault(group.name, (RateMeter(), RateMeter()))
        done = {name: group.sums[name] + group.look.replay.get(name, 0) for name in ("inserted", "sampled")}
        return GroupRecord(
            name=group.name,
            host=group.where.host if group.up and group.where is not None else "",
            state="up"
            if group.up
            else "starting"
            if group.memory is not None
            else "lost"
            if group.starts
            else "waiting",
            workers=tuple(slot.name for slot in group.slots),
            restarts=group.restarts,
            size=group.look.replay.get("size", 0),
            capacity=group.capacity,
            inserted_per_second=inserted.add(now, done["inserted"]),
            sampled_per_second=sampled.add(now, done["sampled"]),
        )


class Meters:
    """A run's metrics among Ray's: ``apexrl_NAME`` with the tag ``run``.

    Ray exports them from the driver's node, in Prometheus' format, where ``ray[default]`` is installed.
    """

    def __init__(self, run: str) -> None:
        tags = {"run": run}
        self._gauges = {
            name: Gauge(f"apexrl_{name}", _meaning(name), ("run",)).set_default_tags(tags) for name in _GAUGES
        }
        self._counters = {
            name: Counter(f"apexrl_{name}", _meaning(name), ("run",)).set_default_tags(tags) for name in _COUNTERS
        }
        self._counted = dict.fromkeys(_COUNTERS, 0)

    def set(self, status: RunStatus, sums: Mapping[str, int]) -> None:
        """Everything as of now; what is not known yet stays untold."""
        gauges = {
            "env_steps_per_second": status.env_steps_per_second,
            "updates_per_second": status.updates_per_second,
            "replay_size": status.replay_size,
            "policy_lag_mean": status.policy_lag.mean,
            "train_return": status.train_return,
            "eval_return": status.eval_return,
            "weights_version": status.weights_version,
            "workers": sum(worker.pid is not None for worker in status.workers),
        }
        for name, value in gauges.items():
            if value is not None and math.isfinite(value):
                self._gauges[name].set(value)
        totals = {
            "env_steps": status.env_steps,
            "updates": status.updates,
            "episodes": status.episodes,
            "inserted": sums["inserted"],
            "sampled": sums["sampled"],
            "lost_items": status.dropped.get("lost_items", 0),
            "restarts": sum(status.restarts.values()),
        }
        for name, total in totals.items():
            if (more := total - self._counted[name]) > 0:
                self._counters[name].inc(more)
                self._counted[name] = total


def _meaning(name: str) -> str:
    return _MEANINGS.get(name) or metric_of(name).description


def records(seconds: float) -> tuple[dict[str, Record], int]:
    """Of the runs on the cluster with which this process is connected, by namespace; and how many runs did not answer
    within ``seconds``, or not in a way that this version of apexrl understands."""
    asked: dict[str, Any] = {}
    for actor in list_named_actors(all_namespaces=True):
        if actor["name"] == NOTICE:
            with suppress(ValueError, RayError):  # it has ended meanwhile
                asked[actor["namespace"]] = ray.get_actor(NOTICE, actor["namespace"]).get.remote()
    if not asked:
        return {}, 0
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)
    found: dict[str, Record] = {}
    silent = 0
    for namespace, reference in asked.items():
        try:
            record = ray.get(reference, timeout=0.1)
        except RayError:
            record = None
        if isinstance(record, Record):
            found[namespace] = record
        else:
            silent += 1
    return found, silent
