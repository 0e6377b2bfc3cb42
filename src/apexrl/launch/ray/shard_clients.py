"""Learners' clients of shards that are Ray actors: calls go from process to process, and no batch passes the driver."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util import list_named_actors

from apexrl.errors import ClosedError, OwnershipError
from apexrl.launch.ray.local_shard import Lent, LocalShard, node_id
from apexrl.replay.sharded.bundled_batches import BundledBatches
from apexrl.replay.sharded.shard import Answer, DrawResult
from apexrl.replay.sharded.sharded_replay import ShardedReplay

_AHEAD = 2  # batches asked for before they are wanted: a call to another node is under way for longer than an update
_SEARCH_SECONDS = 0.5  # between looks for actors of shards that were lost, or have yet to come


def samplers(shards: int, namespace: str, options: Sequence[Mapping[str, Any]]) -> list[Sampler]:
    """One of each replay, whose shards are every ``len(options)``-th (``topologies.ray_cut``).

    Args:
        options: of ``ShardedReplay``, for each.
    """
    names = [f"shard-{k}" for k in range(shards)]
    return [Sampler(names[own :: len(options)], namespace, one) for own, one in enumerate(options)]


class Sampler:
    """Stands for the replay among a learner's ports; arrives in its process as a ``ShardedReplay``, of which it takes
    ``BundledBatches`` unless it is a queue.

    Args:
        names: of the shards; their actors are called by ``generation_name``.
        namespace: theirs.
        options: of ``ShardedReplay``.
    """

    def __init__(self, names: Sequence[str], namespace: str, options: Mapping[str, Any]) -> None:
        self._arguments = (list(names), namespace, dict(options))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_sharded, self._arguments)


def _sharded(names: list[str], namespace: str, options: dict[str, Any]) -> ShardedReplay | BundledBatches:
    listing = Listing(namespace)
    replay = ShardedReplay([ShardClient(name, namespace, listing) for name in names], ahead=_AHEAD, **options)
    return replay if options.get("sampler") == "fifo" else BundledBatches(replay, options.get("seed", 0))


def generation_name(shard: str, generation: int) -> str:
    """What the actor of a shard is called in its generation 0, 1, …: Ray may remember whoever had a name before."""
    return f"{shard}.{generation}"


class Listing:
    """The generations of a run's shards that Ray knows of, shared by all clients of a process."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._generations: dict[str, list[int]] = {}
        self._looked = -1e9

    def generations(self, shard: str) -> list[int]:
        """The newest first."""
        now = time.monotonic()
        if now - self._looked >= _SEARCH_SECONDS:
            self._looked, self._generations = now, {}
            with suppress(RayError):
                for actor in list_named_actors(all_namespaces=True):
                    name, _, generation = actor["name"].rpartition(".")
                    if actor["namespace"] == self._namespace and generation.isdigit():
                        self._generations.setdefault(name, []).append(int(generation))
        return sorted(self._generations.get(shard, []), reverse=True)


class ShardClient:
    """A shard that a named Ray actor holds (``sharded.shard.ShardClient``). One that turns out to be on this node is
    sampled here; others are called."""

    def __init__(self, name: str, namespace: str, listing: Listing | None = None) -> None:
        self._name = name
        self._namespace = namespace
        self._listing = listing or Listing(namespace)
        self._handle: Any = None
        self._near: LocalShard | None = None
        self._reach: str | None = None  # the node whose shards' memory this process can reach; "": none's
        self._searched = -1e9

    def draw(self, count: int, until: int | None) -> Answer:
        near = self._here()
        if near is not None:
            return near.draw(count, until)
        if self._reach is None:
            self._reach = node_id()
        return self._call("draw", count, until, self._reach)

    def update(self, generation: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> Answer:
        near = self._here()
        return (
            self._call("update", generation, keys, priorities)
            if near is None
            else near.update(generation, keys, priorities)
        )

    def adopt(self, lent: Lent, handle: Any) -> DrawResult:
        """Sample the shard of ``handle``, which is on this node, in this process from now on.

        Raises:
            ClosedError: it has gone, or another one still samples it.
        """
        if handle is not self._handle:
            raise ClosedError("this shard was lost")
        if self._near is None:
            try:
                self._near = LocalShard(handle, lent)
            except OwnershipError as error:
                raise ClosedError(str(error)) from None
            except ClosedError:  # if it has not gone, as where its process is in another container
                self._reach = ""
                raise
        drawn: DrawResult = self._near.draw(lent.rows, lent.until).take()
        return drawn

    def forget(self, handle: Any) -> None:
        """The actor of ``handle`` was lost. A newer generation of the shard stays known."""
        if self._handle is handle:
            self._handle, self._reach = None, None
            if self._near is not None:
                self._near.close()
                self._near = None

    def _here(self) -> LocalShard | None:
        if self._near is not None and not self._near.alive():
            self.forget(self._handle)
        return self._near

    def _call(self, method: str, *arguments: Any) -> Answer:
        if self._handle is None and not self._find():
            return ShardAnswer(self, None, None)
        try:
            return ShardAnswer(self, self._handle, getattr(self._handle, method).remote(*arguments))
        except RayError:
            self.forget(self._handle)
            return ShardAnswer(self, None, None)

    def _find(self) -> bool:
        now = time.monotonic()
        if now - self._searched < _SEARCH_SECONDS:
            return False
        self._searched = now
        for generation in self._listing.generations(self._name):
            with suppress(ValueError, RayError):  # it has gone meanwhile
                self._handle = ray.get_actor(generation_name(self._name, generation), self._namespace)
                return True
        return False


class ShardAnswer:
    """The answer of a call to a Ray actor; ``reference`` None: there is no actor."""

    def __init__(self, end: ShardClient, handle: Any, reference: Any) -> None:
        self._end = end
        self._handle = handle  # of whom was called
        self._reference = reference

    def ready(self, timeout: float) -> bool:
        if self._reference is None:
            return True
        return bool(ray.wait([self._reference], timeout=timeout)[0])

    def take(self) -> Any:
        if self._reference is None:
            raise ClosedError("this shard is not there")
        try:
            answer = ray.get(self._reference)
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except GetTimeoutError:
            raise
        except (RayActorError, RayError) as error:  # it died, or its node with what it had answered
            self._end.forget(self._handle)
            raise ClosedError(f"this shard was lost: {str(error).splitlines()[0]}") from None
        return self._end.adopt(answer, self._handle) if isinstance(answer, Lent) else answer
