"""One replay made of shards in several processes: sampled as if all items lay in one.

An item's probability in one replay is its share of the sum of all powered priorities. Here a shard is chosen by its
share of that sum, and the item by its share of the shard's: the product is the same. A shard's sum is known as of its
last answer; importance weights use the probabilities with which shard and item were really drawn, so they are exact
whatever has changed since.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ClosedError, ConfigError, WaitTimeout
from apexrl.replay.batch import Allocator, ArraySet, Batch, Updated, aligned
from apexrl.replay.layout import Layout
from apexrl.replay.replay import Normalize
from apexrl.replay.sharded.shard import QUEUE_SECONDS, Answer, Drawn, ShardEnd, Written
from apexrl.replay.sharded.shard_keys import ROWS_MAX, Origin, ShardKeys, checked
from apexrl.replay.sharded.shard_limiter import ShardLimiter
from apexrl.replay.sharded.shard_state import Known, Part, Plan
from apexrl.spec import Array

if TYPE_CHECKING:
    from apexrl.replay.served.batch_server import BatchServer

_WAITING_UPDATES = 64  # priority messages that one shard may leave unanswered
_LOOK_SECONDS, _STARVED_SECONDS = 0.1, 0.005  # between looks at a shard that was not drawn from; while items are short
_LOST_SECONDS = 1.0  # between looks whether a lost shard is back


class ShardedReplay:
    """``sample`` and ``update_priorities`` as on one replay, over shards that lie elsewhere. One thread at a time.

    Args:
        ends: of the shards. One that is lost costs its items; it is looked for again and may come back empty.
        capacity: items of all together.
        sampler, min_size, samples_per_insert, insert_band: as for ``Replay``, over all shards together. Shards hear
            with every call how many items they may take in until the next one, so the band is kept as closely as
            calls are frequent. One that lives but takes nothing in for a second, while samples are short and others
            do, cannot give back what it was granted: others may take in as much. If it wakes, what such shards had
            left comes on top of the band, and no more than that.
        stratified: one row from each equal slice of the total, which goes from shard to shard; else independent.
        seed: of the choice of shards.
        ahead: batches asked for before they are wanted.
        layout: of the shards' items; only ``serve`` needs it.
    """

    def __init__(
        self,
        ends: Sequence[ShardEnd],
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
        if not ends:
            raise ConfigError("a sharded replay needs at least one shard")
        self.capacity = capacity
        self.layout = layout
        self.allocator: Allocator = aligned
        self._ends = list(ends)
        self._known = [Known() for _ in ends]
        self._fifo = sampler == "fifo"
        self._min_size = max(1, min(min_size, capacity))
        self._rate = 0.0 if self._fifo else samples_per_insert
        self._limiter = ShardLimiter(self._known, capacity, min_size, self._rate, insert_band)
        self._stratified = stratified
        self._rng = np.random.default_rng(seed)
        self._ahead = ahead
        self._plans: deque[Plan] = deque()
        self._short = math.inf  # since when (monotonic) there have been too few items to ask for a batch
        self._turn = int(self._rng.integers(len(self._ends)))  # of queues that are asked alike
        self._keys = ShardKeys()
        self._counts = dict.fromkeys(("sampled", "applied", "stale", "dropped_updates"), 0)
        self.unsent = 0
        """Priorities that reached no shard: it was lost or is behind, or a sampler before this one gave the keys."""

    def sample(
        self, batch_size: int, beta: float = 0.4, *, normalize: Normalize = "batch", timeout: float = 10.0
    ) -> Batch:
        """Draw ``batch_size`` items; see ``Replay.sample``.

        Raises:
            WaitTimeout: too few items, held back by the limiter, or shards that do not answer, for ``timeout`` seconds.
                What is under way stays so.
        """
        return self._batch(self._next(batch_size, beta, normalize, timeout), beta, normalize)

    def fill(self, arrays: ArraySet, batch_size: int, beta: float, normalize: Normalize, timeout: float) -> None:
        """As ``sample``, into arrays for ``batch_size`` items of this ``layout``."""
        self._batch(self._next(batch_size, beta, normalize, timeout), beta, normalize, arrays)

    def wait(self, timeout: float) -> None:
        """… until something that was asked for has come, at most ``timeout`` seconds."""
        if self._plans and self._plans[0].parts:
            self._gather(self._plans[0], timeout)
        else:
            self._wait_for_a_look(timeout)

    def serve(
        self, learners: int, batch_size: int, beta: float = 0.4, prefetch: int = 2, normalize: Normalize = "batch"
    ) -> BatchServer:
        """Sample for several learners of this host; see ``BatchServer``.

        Raises:
            ConfigError: it is a queue, or nobody said what its items look like.
        """
        from apexrl.replay.served.batch_server import BatchServer

        self.check_served(batch_size, beta, normalize)
        return BatchServer(self, learners, batch_size, beta, prefetch, normalize)

    def check_served(self, batch_size: int, beta: float, normalize: Normalize) -> None:
        """ConfigError: such batches cannot be served."""
        if self._fifo:
            raise ConfigError("shards of a fifo replay cannot be served: give every learner shards of its own")
        if self.layout is None:
            raise ConfigError("a sharded replay needs layout=, which says what its items look like, to be served")
        self.check(batch_size, beta, normalize)

    def save(self, path: str | os.PathLike[str], check: Callable[[], None] = lambda: None) -> None:
        """ConfigError: no process has all of it."""
        raise ConfigError(f"a replay that lies in shards cannot be saved to {os.fspath(path)}: leave out --save-replay")

    def check(self, batch_size: int, beta: float, normalize: Normalize) -> None:
        """ConfigError: there are no such batches."""
        if not isinstance(batch_size, int | np.integer) or not 1 <= batch_size <= ROWS_MAX:
            raise ConfigError(f"batch_size={batch_size!r} must be an integer from 1 to {ROWS_MAX}")
        if normalize not in ("batch", "none"):
            raise ConfigError(f"normalize={normalize!r}: over shards it is 'batch' or 'none'")
        if not 0.0 <= beta <= 100.0:
            raise ConfigError(f"beta={beta} must be a number from 0 on (1: full correction)")
        if self._fifo and batch_size > self.capacity:
            raise ConfigError(f"batch_size={batch_size} is more than the {self.capacity} items that this queue holds")

    def _next(self, batch_size: int, beta: float, normalize: Normalize, timeout: float) -> Plan:
        """A batch all of whose rows have come."""
        self.check(batch_size, beta, normalize)
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            self._listen(now)
            self._plan(int(batch_size), now)
            short = not self._plans or self._plans[0].missing > 0
            self._short = min(self._short, now) if short else math.inf
            patience = QUEUE_SECONDS if self._fifo else _STARVED_SECONDS
            plan = self._whole(max(0.0, min(deadline - now, patience)))
            if plan is not None:
                self._plans.remove(plan)
                if plan.rows != batch_size:  # the caller has changed the size
                    self._limiter.planned -= plan.rows
                    continue
                if self._fifo and self._ahead and not self._plans and self.capacity >= 2 * batch_size:
                    self._begin(int(batch_size))  # comes, if it can be had, while the caller is at this one
                return plan
            if now >= deadline:
                raise WaitTimeout(f"{self._why(int(batch_size))} (waited {timeout:g} s)")
            if not self._plans or not self._plans[0].parts:
                self._look(now, _STARVED_SECONDS)
                self._wait_for_a_look(min(_STARVED_SECONDS, max(0.0, deadline - now)))

    def update_priorities(self, keys: Any, priorities: Any) -> Updated:
        """Send new raw magnitudes |δ| to the shards that the items came from.

        Answers how many were sent, and how many cannot be any more; ``stats`` tells what shards made of them.

        Raises:
            PriorityError: a value is NaN, infinite or negative (the row is named); nothing was sent.
        """
        keys, values = checked(keys, priorities)
        sent = sum(self._send(origin, values[origin.rows]) for origin in self._keys.origins(keys))
        self._counts["stale"] += len(keys) - sent
        self.unsent += len(keys) - sent
        return Updated(sent, len(keys) - sent)

    def __len__(self) -> int:
        """Items, as of the shards' last answers."""
        return sum(one.size for one in self._known)

    def stats(self) -> dict[str, Any]:
        """Counters as of the shards' last answers: size, capacity, inserted, sampled, priorities applied and stale,
        priority messages dropped because a shard was behind, shards lost and the items that they held."""
        inserted = sum(one.inserted for one in self._known)
        sampled = self._counts["sampled"]
        return {
            "size": len(self),
            "capacity": self.capacity,
            "inserted": inserted,
            "observed_samples_per_insert": sampled / inserted if inserted else 0.0,
            "shards": sum(not one.lost for one in self._known),
            **self._counts,
            "lost_shards": sum(one.losses for one in self._known),
            "lost_items": sum(one.lost_items for one in self._known),
        }

    # --- asking

    def _plan(self, size: int, now: float) -> None:
        """Ask for batches until there are ``ahead`` beside the next, and again for what a shard could not give."""
        if self._plans:
            self._ask(self._plans[0])
        while len(self._plans) <= self._ahead and self._may_sample(size):
            if not self._begin(size).parts:
                break
        self._look(now, _LOOK_SECONDS)

    def _begin(self, size: int) -> Plan:
        """A batch more is asked for."""
        plan = Plan(size)
        self._limiter.planned += size
        self._plans.append(plan)
        self._ask(plan)
        return plan

    def _may_sample(self, size: int) -> bool:
        if self._fifo:
            return len(self) - sum(one.asked for one in self._known) > 0 or not self._plans
        return self._limiter.may_sample(size)

    def _ask(self, plan: Plan) -> None:
        """Ask shards for the rows that nobody was asked for."""
        missing = plan.missing
        if missing <= 0:
            return
        if self._fifo:
            counts = self._from_queues(missing).tolist()
            chances = [1.0] * len(counts)
        else:
            masses = np.asarray([0.0 if one.lost else one.mass for one in self._known])
            if not masses.sum() > 0.0:
                return
            counts = self._spread(masses, missing).tolist()
            chances = (masses / masses.sum()).tolist()
        for shard, count in enumerate(counts):
            if count:
                one = self._known[shard]
                one.asked += count
                answer = self._ends[shard].draw(count, self._limiter.until(shard))
                plan.parts.append(Part(shard, count, chances[shard], one.epoch, answer))

    def _from_queues(self, missing: int) -> NDArray[np.int64]:
        """How many of ``missing`` rows come from each queue: of what they hold by its share; of the rest all alike, but
        for those that ran dry. Those that were never heard of may be long in coming."""
        held = np.asarray([0 if one.lost else max(0, one.size - one.asked) for one in self._known])
        counts = np.zeros(len(held), np.int64)
        if total := int(held.sum()):
            counts = np.minimum(held, self._spread(held.astype(float), min(missing, total)))
        for shard in range(len(held)):  # what rounding left
            counts[shard] += min(held[shard] - counts[shard], missing - counts.sum())
        there = [shard for shard, one in enumerate(self._known) if one.life and not one.lost]
        some = [shard for shard in there if not self._known[shard].dry] or there
        for _ in range(missing - int(counts.sum()) if some else 0):
            self._turn += 1
            counts[some[self._turn % len(some)]] += 1
        return counts

    def _spread(self, masses: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        """How many of ``count`` rows come from each shard: on average in proportion to ``masses``, without bias."""
        points = self._rng.random(count)
        points = (points + np.arange(count)) / count if self._stratified else points
        edges = np.cumsum(masses) / masses.sum()
        last = int(np.flatnonzero(masses)[-1])  # rounding must not choose a shard without mass
        chosen = np.minimum(np.searchsorted(edges, points, side="right"), last)
        return np.bincount(chosen, minlength=len(masses))

    def _look(self, now: float, period: float) -> None:
        """Ask shards that were quiet how they stand."""
        for shard, one in enumerate(self._known):
            every = _LOST_SECONDS if one.lost else period
            if one.look is None and now - max(one.heard, one.looked) >= every:
                one.looked = now
                one.look = self._ends[shard].draw(0, self._limiter.until(shard)), one.epoch

    def _send(self, to: Origin, values: NDArray[np.float64]) -> int:
        one = self._known[to.shard]
        if one.lost or one.life != to.life:
            return 0
        if len(one.updates) >= _WAITING_UPDATES:
            self._counts["dropped_updates"] += 1
            return 0
        answer = self._ends[to.shard].update(to.life, to.keys, values)
        one.updates.append((answer, one.epoch, len(to.keys)))
        return len(to.keys)

    # --- hearing

    def _listen(self, now: float) -> None:
        for one in self._known:
            if one.look is not None and one.look[0].ready(0.0):
                (look, epoch), one.look = one.look, None
                self._take(one, look, epoch, now)
                one.judge(self._known, one.looked, self._short)
            while one.updates and one.updates[0][0].ready(0.0):
                answer, epoch, count = one.updates.popleft()
                try:
                    written: Written = answer.take()
                except ClosedError:
                    self._counts["stale"] += count
                    self.unsent += count
                    one.lose(epoch, now)
                    continue
                self._counts["applied"] += written.updated.applied
                self._counts["stale"] += written.updated.stale
                self._limiter.planned += one.enter(written.standing, epoch, now)

    def _wait_for_a_look(self, timeout: float) -> None:
        looks = [one.look[0] for one in self._known if one.look is not None and not one.lost]
        if looks:
            looks[0].ready(timeout)
        else:
            time.sleep(timeout)

    def _whole(self, timeout: float) -> Plan | None:
        """The next batch, if all its rows come within ``timeout`` seconds. Of queues any that is there: what another
        one waits for may be long in coming."""
        if not self._plans:
            return None
        for plan in self._plans if self._fifo else ():
            if self._gather(plan, 0.0):
                return plan
        return self._plans[0] if self._gather(self._plans[0], timeout) else None

    def _gather(self, plan: Plan, timeout: float) -> bool:
        """Take what has come for ``plan``. True: it is whole."""
        deadline = time.monotonic() + timeout
        waiting = []
        for part in plan.parts:
            if not part.answer.ready(max(0.0, deadline - time.monotonic())):
                waiting.append(part)
                continue
            one = self._known[part.shard]
            one.asked -= part.rows
            drawn = self._take(one, part.answer, part.epoch, time.monotonic())
            one.dry = drawn is None or len(drawn.keys) < part.rows
            if drawn is not None and len(drawn.keys):
                plan.got.append((part.shard, part.chance, drawn))
        plan.parts = waiting
        return plan.missing == 0 and not waiting

    def _take(self, one: Known, answer: Answer, epoch: int, now: float) -> Drawn | None:
        """Enter a shard's answer. None: it was lost."""
        try:
            drawn: Drawn = answer.take()
        except ClosedError:
            one.lose(epoch, now)
            return None
        self._limiter.planned += one.enter(drawn.standing, epoch, now)
        return drawn

    # --- giving

    def _batch(self, plan: Plan, beta: float, normalize: Normalize, into: ArraySet | None = None) -> Batch:
        parts = plan.got
        given = {} if into is None else into.named
        names = list(parts[0][2].data)
        data = {name: self._joined([drawn.data[name] for _, _, drawn in parts], given.get(name)) for name in names}
        probabilities = np.concatenate([chance * drawn.probabilities for _, chance, drawn in parts])
        if self._fifo:
            weights = np.ones(plan.rows, np.float32)
        else:
            raw = (max(1, len(self)) * probabilities) ** -beta
            weights = (raw / raw.max() if normalize == "batch" else raw).astype(np.float32)
        self._counts["sampled"] += plan.rows
        keys = self._keys.make(plan.rows, [] if self._fifo else [(shard, drawn) for shard, _, drawn in parts])
        if into is not None:
            into.fixed[0][:], into.fixed[1][:], into.fixed[2][:] = keys, probabilities, weights
        return Batch(data, keys, probabilities, weights)

    def _joined(self, parts: Sequence[Array], whole: Array | None) -> Array:
        """``parts`` one after the other, in ``whole`` if there is one. What came from a shard elsewhere cannot be
        written to (an object store's memory), and the arrays of a batch are the caller's."""
        if whole is None and len(parts) == 1 and self.allocator is aligned and parts[0].flags.writeable:
            return parts[0]
        rows = sum(len(part) for part in parts)
        if whole is None:
            whole = self.allocator((rows, *parts[0].shape[1:]), parts[0].dtype.name)
        at = 0
        for part in parts:
            whole[at : at + len(part)] = part
            at += len(part)
        return whole

    def _why(self, size: int) -> str:
        lost = sum(one.lost for one in self._known)
        away = f", {lost} of {len(self._known)} shards are lost" if lost else ""
        if self._plans and self._plans[0].parts and not (self._fifo and len(self) < size):
            shards = sorted({part.shard for part in self._plans[0].parts})
            return f"shards {shards} have not answered{away}"
        needed = size if self._fifo else self._min_size
        if len(self) < needed:
            return f"the shards hold {len(self)} items, fewer than the {needed} needed to sample{away}"
        return f"the limiter waits for inserts, at {self._rate:g} samples per insert{away}"
