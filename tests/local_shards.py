"""Shards of a replay in the process that draws from them."""

from __future__ import annotations

from typing import Any

from apexrl.replay.sharded.shard import ReadyAnswer, Shard


class LocalClient:
    """What ``ShardedReplay`` asks, of a shard in this process."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def draw(self, count: int, until: int | None) -> ReadyAnswer:
        return ReadyAnswer(self._shard.draw(count, until))

    def update(self, generation: str, keys: Any, priorities: Any) -> ReadyAnswer:
        return ReadyAnswer(self._shard.update(generation, keys, priorities))
