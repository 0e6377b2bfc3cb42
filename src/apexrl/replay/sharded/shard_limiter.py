"""Samples per insert over several shards: when the next batch may be drawn, and how much each shard may take in."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from apexrl.replay.sharded.shard_state import Known


class ShardLimiter:
    """As ``Replay``'s limiter, for all shards together.

    Args:
        known: of every shard.
        capacity: items of all together.
        min_size: items before the first batch.
        samples_per_insert: 0: no coupling.
        insert_band: how far the two may drift apart, as a fraction of ``min_size · samples_per_insert``.
    """

    def __init__(
        self, known: Sequence[Known], capacity: int, min_size: int, samples_per_insert: float, insert_band: float
    ) -> None:
        self._known = known
        self._min_size = max(1, min(min_size, capacity))
        self._rate = samples_per_insert
        self._error = insert_band * min_size * samples_per_insert
        self.planned = 0
        """Rows of all batches ever asked for, and of those that samplers before this one were given."""

    def may_sample(self, size: int) -> bool:
        """Whether another batch may be asked for."""
        if sum(one.size for one in self._known) < self._min_size:
            return False
        if self._rate <= 0.0:
            return True
        self._error = max(self._error, float(size), self._rate)
        inserted = sum(one.inserted for one in self._known)
        return inserted * self._rate - self.planned - size >= self._min_size * self._rate - self._error

    def until(self, shard: int) -> int | None:
        """Up to how many items a shard's present life may take in. What others were granted counts, if not idle."""
        if self._rate <= 0.0:
            return None
        one = self._known[shard]
        if one.lost:  # whoever comes in its place is told with the next call, when it is known
            return 0
        granted = sum(one.granted for one in self._known)
        unused = granted - sum(one.inserted for one in self._known)
        room = (self._min_size * self._rate + self._error + self.planned) / self._rate - granted
        size = sum(one.size for one in self._known)
        room = max(room, float(self._min_size - size - unused))  # after a loss
        share = math.ceil(max(0.0, room) / max(1, sum(not other.lost for other in self._known)))
        if share and one.limit - (one.inserted - one.before) < share:
            one.grant(share, time.monotonic())
        return one.limit
