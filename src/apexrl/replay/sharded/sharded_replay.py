"""A replay whose items are in shards of several processes, sampled like one replay.

In one replay, an item's probability is its share of the sum of all powered priorities. Here a shard is chosen by its
share of that sum, and the item by its share of the shard's sum: the product is the same. A shard's sum is that of its
last answer. Importance weights use the probabilities with which shard and item were actually drawn, so they are exact
even if the sums have changed since.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ClosedError, ConfigError, WaitTimeout
from apexrl.replay.batch import Allocator, ArraySet, Batch, Updated, aligned, joined
from apexrl.replay.batch_keys import BatchKeys, SourceKeys, SourceRows, check_batch
from apexrl.replay.core import Normalize
from apexrl.replay.deadline import deadline_after
from apexrl.replay.layout import Layout
from apexrl.replay.priorities import checked
from apexrl.replay.served.batch_server import BatchServer
from apexrl.replay.served.batch_sources import ShardedSource
from apexrl.replay.sharded.shard import QUEUE_SECONDS, Answer, DrawResult, ShardClient, UpdateResult
from apexrl.replay.sharded.shard_limiter import ShardLimiter
from apexrl.replay.sharded.shard_state import BatchPlan, DrawRequest, ShardState

_WAITING_UPDATES = 64  # priority messages that one shard may leave unanswered
_POLL_SECONDS, _STARVED_SECONDS = 0.1, 0.005  # between polls of a shard that was not drawn from; while items are short
_LOST_SECONDS = 1.0  # between polls of a lost shard


class ShardedReplay:
    """``sample`` and ``update_priorities`` as on one replay, over shards in other processes. One thread at a time.

    Args:
        clients: of the shards. A lost shard costs its items; it is polled, and may come back empty.
        capacity: items of all shards together.
        sampler, min_size, samples_per_insert, insert_band: as for ``Replay``, over all shards together. Every call
            tells a shard how many items it may insert until the next one, so the band is as tight as calls are
            frequent. A shard that inserts nothing for a second, while items are short and others insert, is idle:
            what it was granted is granted to others. If it then resumes, its unused grant comes on top of the band.
        stratified: draw one row from each equal slice of the total, across shards; else independently.
        seed: of the choice of shards.
        ahead: batches to request in advance.
        layout: of the shards' items; only ``serve`` needs it.
    """

    def __init__(
        self,
        clients: Sequence[ShardClient],
        *,
        capacity: int,
        sampler: str = "prioritized",
        min_size: int = 0,
        samples_per_insert: float = 0.0,
        insert_band: float = 0.1,
        stratified: bool = True,
        seed: int = 0,
        ahead: int = 0,
        layout: Layout | None = None,
    ) -> None:
        if not clients:
            raise ConfigError("a sharded replay needs at least one shard")
        if sampler not in ("prioritized", "uniform", "fifo"):
            raise ConfigError(f"shards are sampled with 'prioritized', 'uniform' or 'fifo', not sampler={sampler!r}")
        self.capacity = capacity
        self.layout = layout
        self.allocator: Allocator = aligned
        self._clients = list(clients)
        self._shards = [ShardState() for _ in clients]
        self._fifo = sampler == "fifo"
        self._min_size = max(1, min(min_size, capacity))
        self._rate = 0.0 if self._fifo else samples_per_insert
        self._limiter = ShardLimiter(self._shards, capacity, min_size, self._rate, insert_band)
        self._stratified = stratified
        self._rng = np.random.default_rng(seed)
        self._ahead = ahead
        self._plans: deque[BatchPlan] = deque()
        self._short_since = math.inf  # monotonic time since which there are too few items to request a batch
        self._next_shard = int(self._rng.integers(len(self._clients)))  # fifo: for rows that no shard is known to hold
        self._keys = BatchKeys()
        self._counts = dict.fromkeys(("sampled", "applied", "stale", "dropped_updates"), 0)
        self.unsent = 0
        """Priorities that reached no shard: it is lost or behind, or the keys are those of an earlier sampler."""

    def sample(
        self, batch_size: int, beta: float = 0.4, *, normalize: Normalize = "batch", timeout: float = 10.0
    ) -> Batch:
        """Draw ``batch_size`` items; see ``Replay.sample``.

        Raises:
            WaitTimeout: too few items, held back by the limiter, or shards that do not answer, for ``timeout`` seconds.
                Requests that are under way stay valid.
        """
        return self._batch(self._next(batch_size, beta, normalize, timeout), beta, normalize)

    def fill(self, arrays: ArraySet, batch_size: int, beta: float, normalize: Normalize, timeout: float) -> None:
        """Like ``sample``, into arrays for ``batch_size`` items of this ``layout``."""
        self._batch(self._next(batch_size, beta, normalize, timeout), beta, normalize, arrays)

    def wait(self, timeout: float) -> None:
        """Wait until a requested answer has arrived, at most ``timeout`` seconds."""
        if self._plans and self._plans[0].requests:
            self._gather(self._plans[0], timeout)
        else:
            self._wait_for_poll(timeout)

    def serve(
        self, learners: int, batch_size: int, beta: float = 0.4, prefetch: int = 2, normalize: Normalize = "batch"
    ) -> BatchServer:
        """Sample for several learners of this host; see ``BatchServer``.

        Raises:
            ConfigError: the sampler is fifo, or ``layout`` was not given.
        """
        return BatchServer(self, learners, batch_size, beta, prefetch, normalize)

    def batch_source(self) -> ShardedSource:
        if self._fifo:
            raise ConfigError("shards of a fifo replay cannot be served: give each learner its own shards")
        if self.layout is None:
            raise ConfigError("serving a sharded replay needs layout=, the layout of its items: give it one")
        return ShardedSource(self, self.layout)

    def save(self, path: str | os.PathLike[str], check: Callable[[], None] = lambda: None) -> None:
        """ConfigError: no process holds all items."""
        raise ConfigError(f"a sharded replay cannot be saved to {os.fspath(path)}: leave out --save-replay")

    def check_batch(self, batch_size: int, beta: float, normalize: Normalize) -> None:
        """ConfigError: there are no such batches."""
        check_batch(batch_size, beta, normalize, "sharded")
        if self._fifo and batch_size > self.capacity:
            raise ConfigError(
                f"batch_size={batch_size} is more than the {self.capacity} items that this fifo replay holds"
            )

    def _next(self, batch_size: int, beta: float, normalize: Normalize, timeout: float) -> BatchPlan:
        """A batch whose rows have all arrived."""
        self.check_batch(batch_size, beta, normalize)
        deadline = deadline_after(timeout)
        while True:
            now = time.monotonic()
            self._read_answers(now)
            self._plan(int(batch_size), now)
            short = not self._plans or self._plans[0].missing > 0
            self._short_since = min(self._short_since, now) if short else math.inf
            patience = QUEUE_SECONDS if self._fifo else _STARVED_SECONDS
            plan = self._complete(max(0.0, min(deadline - now, patience)))
            if plan is not None:
                self._plans.remove(plan)
                if plan.rows != batch_size:  # the caller changed batch_size
                    self._limiter.planned -= plan.rows
                    continue
                if self._fifo and self._ahead and not self._plans and self.capacity >= 2 * batch_size:
                    self._request_batch(int(batch_size))  # may arrive while the caller uses this one
                return plan
            if now >= deadline:
                raise WaitTimeout(f"{self._why(int(batch_size))} (waited {timeout:g} s)")
            if not self._plans or not self._plans[0].requests:
                self._poll(now, _STARVED_SECONDS)
                self._wait_for_poll(min(_STARVED_SECONDS, max(0.0, deadline - now)))

    def update_priorities(self, keys: Any, priorities: Any) -> Updated:
        """Send new raw magnitudes |δ| to the shards that the items came from.

        Answers how many were sent and how many are stale; ``stats`` says how many the shards applied.

        Raises:
            PriorityError: a value is NaN, infinite or negative (the row is named); nothing was sent.
        """
        keys, values = checked(keys, priorities)
        sent = sum(self._send(one, values[one.rows]) for one in self._keys.by_source(keys))
        self._counts["stale"] += len(keys) - sent
        self.unsent += len(keys) - sent
        return Updated(sent, len(keys) - sent)

    def __len__(self) -> int:
        """Number of items, from the shards' last answers."""
        return sum(one.size for one in self._shards)

    def stats(self) -> dict[str, Any]:
        """Counters from the shards' last answers: size, capacity, inserted, sampled, priorities applied and stale,
        priority messages dropped because a shard was behind, shards lost, and the items that those held."""
        inserted = sum(one.inserted for one in self._shards)
        sampled = self._counts["sampled"]
        return {
            "size": len(self),
            "capacity": self.capacity,
            "inserted": inserted,
            "observed_samples_per_insert": sampled / inserted if inserted else 0.0,
            "shards": sum(not one.lost for one in self._shards),
            **self._counts,
            "lost_shards": sum(one.losses for one in self._shards),
            "lost_items": sum(one.lost_items for one in self._shards),
        }

    # --- requests

    def _plan(self, size: int, now: float) -> None:
        """Request the next batch and ``ahead`` more, and rows again that a shard could not give."""
        if self._plans:
            self._request(self._plans[0])
        while len(self._plans) <= self._ahead and self._may_sample(size):
            if not self._request_batch(size).requests:
                break
        self._poll(now, _POLL_SECONDS)

    def _request_batch(self, size: int) -> BatchPlan:
        plan = BatchPlan(size)
        self._limiter.planned += size
        self._plans.append(plan)
        self._request(plan)
        return plan

    def _may_sample(self, size: int) -> bool:
        if self._fifo:
            return len(self) - sum(one.requested for one in self._shards) > 0 or not self._plans
        return self._limiter.may_sample(size)

    def _request(self, plan: BatchPlan) -> None:
        """Request the missing rows of ``plan``."""
        missing = plan.missing
        if missing <= 0:
            return
        if self._fifo:
            counts = self._from_queues(missing).tolist()
            probabilities = [1.0] * len(counts)
        else:
            masses = np.asarray([0.0 if one.lost else one.mass for one in self._shards])
            if not masses.sum() > 0.0:
                return
            counts = self._spread(masses, missing).tolist()
            probabilities = (masses / masses.sum()).tolist()
        for shard, count in enumerate(counts):
            if count:
                one = self._shards[shard]
                one.requested += count
                answer = self._clients[shard].draw(count, self._limiter.until(shard))
                plan.requests.append(DrawRequest(shard, count, probabilities[shard], one.epoch, answer))

    def _from_queues(self, missing: int) -> NDArray[np.int64]:
        """(fifo) How many of ``missing`` rows to request from each shard.

        First in proportion to the items that shards are known to hold; the rest from all live shards in turn. A shard
        that gave less than requested is left out of the turns until it gives all of a request.
        """
        held = np.asarray([0 if one.lost else max(0, one.size - one.requested) for one in self._shards])
        counts = np.zeros(len(held), np.int64)
        if total := int(held.sum()):
            counts = np.minimum(held, self._spread(held.astype(float), min(missing, total)))
        for shard in range(len(held)):  # left by rounding
            counts[shard] += min(held[shard] - counts[shard], missing - counts.sum())
        live = [shard for shard, one in enumerate(self._shards) if one.generation and not one.lost]
        turns = [shard for shard in live if not self._shards[shard].dry] or live
        for _ in range(missing - int(counts.sum()) if turns else 0):
            self._next_shard += 1
            counts[turns[self._next_shard % len(turns)]] += 1
        return counts

    def _spread(self, masses: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        """How many of ``count`` rows to draw from each shard: in expectation exactly proportional to ``masses``."""
        points = self._rng.random(count)
        points = (points + np.arange(count)) / count if self._stratified else points
        edges = np.cumsum(masses) / masses.sum()
        last = int(np.flatnonzero(masses)[-1])  # rounding must not choose a shard without mass
        chosen = np.minimum(np.searchsorted(edges, points, side="right"), last)
        return np.bincount(chosen, minlength=len(masses))

    def _poll(self, now: float, period: float) -> None:
        """Request the status of shards that have not answered for ``period`` seconds."""
        for shard, one in enumerate(self._shards):
            every = _LOST_SECONDS if one.lost else period
            if one.poll is None and now - max(one.answered_at, one.polled_at) >= every:
                one.polled_at = now
                one.poll = self._clients[shard].draw(0, self._limiter.until(shard)), one.epoch

    def _send(self, to: SourceRows, values: NDArray[np.float64]) -> int:
        one = self._shards[to.source]
        if one.lost or one.generation != to.generation:
            return 0
        if len(one.updates) >= _WAITING_UPDATES:
            self._counts["dropped_updates"] += 1
            return 0
        answer = self._clients[to.source].update(to.generation, to.keys, values)
        one.updates.append((answer, one.epoch, len(to.keys)))
        return len(to.keys)

    # --- answers

    def _read_answers(self, now: float) -> None:
        for one in self._shards:
            if one.poll is not None and one.poll[0].ready(0.0):
                (poll, epoch), one.poll = one.poll, None
                self._take(one, poll, epoch, now)
                one.update_idle(self._shards, one.polled_at, self._short_since)
            while one.updates and one.updates[0][0].ready(0.0):
                answer, epoch, count = one.updates.popleft()
                try:
                    written: UpdateResult = answer.take()
                except ClosedError:
                    self._counts["stale"] += count
                    self.unsent += count
                    one.lose(epoch, now)
                    continue
                self._counts["applied"] += written.updated.applied
                self._counts["stale"] += written.updated.stale
                self._limiter.planned += one.enter(written.status, epoch, now)

    def _wait_for_poll(self, timeout: float) -> None:
        polls = [one.poll[0] for one in self._shards if one.poll is not None and not one.lost]
        if polls:
            polls[0].ready(timeout)
        else:
            time.sleep(timeout)

    def _complete(self, timeout: float) -> BatchPlan | None:
        """The next batch, if all its rows arrive within ``timeout`` seconds. Fifo: any batch that is complete, because
        the first may wait for a slow shard."""
        if not self._plans:
            return None
        for plan in self._plans if self._fifo else ():
            if self._gather(plan, 0.0):
                return plan
        return self._plans[0] if self._gather(self._plans[0], timeout) else None

    def _gather(self, plan: BatchPlan, timeout: float) -> bool:
        """Read the answers that have arrived for ``plan``. True: it is complete."""
        deadline = deadline_after(timeout)
        waiting = []
        for request in plan.requests:
            if not request.answer.ready(max(0.0, deadline - time.monotonic())):
                waiting.append(request)
                continue
            one = self._shards[request.shard]
            one.requested -= request.rows
            drawn = self._take(one, request.answer, request.epoch, time.monotonic())
            one.dry = drawn is None or len(drawn.keys) < request.rows
            if drawn is not None and len(drawn.keys):
                plan.got.append((request.shard, request.probability, drawn))
        plan.requests = waiting
        return plan.missing == 0 and not waiting

    def _take(self, one: ShardState, answer: Answer, epoch: int, now: float) -> DrawResult | None:
        """Record a shard's answer. None: the shard was lost."""
        try:
            drawn: DrawResult = answer.take()
        except ClosedError:
            one.lose(epoch, now)
            return None
        self._limiter.planned += one.enter(drawn.status, epoch, now)
        return drawn

    # --- batches

    def _batch(self, plan: BatchPlan, beta: float, normalize: Normalize, into: ArraySet | None = None) -> Batch:
        parts = plan.got
        given = {} if into is None else into.named
        names = list(parts[0][2].data)
        data = {
            name: joined([drawn.data[name] for _, _, drawn in parts], given.get(name), self.allocator) for name in names
        }
        probabilities = np.concatenate([chance * drawn.probabilities for _, chance, drawn in parts])
        if self._fifo:
            weights = np.ones(plan.rows, np.float32)
        else:
            raw = (max(1, len(self)) * probabilities) ** -beta
            weights = (raw / raw.max() if normalize == "batch" else raw).astype(np.float32)
        self._counts["sampled"] += plan.rows
        kept = [] if self._fifo else [SourceKeys(shard, one.status.generation, one.keys) for shard, _, one in parts]
        keys = self._keys.make(plan.rows, kept)
        if into is not None:
            into.fixed[0][:], into.fixed[1][:], into.fixed[2][:] = keys, probabilities, weights
        return Batch(data, keys, probabilities, weights)

    def _why(self, size: int) -> str:
        lost = sum(one.lost for one in self._shards)
        away = f", {lost} of {len(self._shards)} shards are lost" if lost else ""
        if self._plans and self._plans[0].requests and not (self._fifo and len(self) < size):
            shards = sorted({request.shard for request in self._plans[0].requests})
            return f"shards {shards} have not answered{away}"
        needed = size if self._fifo else self._min_size
        if len(self) < needed:
            return f"the shards hold {len(self)} items, fewer than the {needed} needed to sample{away}"
        return f"the limiter waits for inserts, at {self._rate:g} samples per insert{away}"
