"""The limiter of a sharded replay: when to draw the next batch, and how many items each shard may insert."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from apexrl.replay.sharded.shard_state import ShardState


class ShardLimiter:
    """``Replay``'s limiter, for all shards together.

    Args:
        shards: their states.
        capacity: items of all shards together.
        min_size: items before the first batch.
        samples_per_insert: target ratio of sampled to inserted items; 0: no limit.
        insert_band: how far the ratio may drift, as a fraction of ``min_size · samples_per_insert``.
    """

    def __init__(
        self, shards: Sequence[ShardState], capacity: int, min_size: int, samples_per_insert: float, insert_band: float
    ) -> None:
        self._shards = shards
        self._min_size = max(1, min(min_size, capacity))
        self._rate = samples_per_insert
        self._error = insert_band * min_size * samples_per_insert
        self.planned = 0
        """Rows of all batches ever requested, by this sampler and earlier ones."""

    def may_sample(self, size: int) -> bool:
        """Whether another batch may be requested."""
        if sum(one.size for one in self._shards) < self._min_size:
            return False
        if self._rate <= 0.0:
            return True
        self._error = max(self._error, float(size), self._rate)
        inserted = sum(one.inserted for one in self._shards)
        return inserted * self._rate - self.planned - size >= self._min_size * self._rate - self._error

    def until(self, shard: int) -> int | None:
        """How many items a shard's present generation may insert, by what all shards were granted. None: no limit."""
        if self._rate <= 0.0:
            return None
        one = self._shards[shard]
        if one.lost:  # its successor gets a limit with the next call, when it is known
            return 0
        granted = sum(one.granted for one in self._shards)
        unused = granted - sum(one.inserted for one in self._shards)
        room = (self._min_size * self._rate + self._error + self.planned) / self._rate - granted
        size = sum(one.size for one in self._shards)
        room = max(room, float(self._min_size - size - unused))  # after a loss
        share = math.ceil(max(0.0, room) / max(1, sum(not other.lost for other in self._shards)))
        if share and one.limit - (one.inserted - one.before) < share:
            one.grant(share, time.monotonic())
        return one.limit
