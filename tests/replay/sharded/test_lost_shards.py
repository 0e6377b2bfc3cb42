"""A shard that is lost costs its items and nothing else; words of generations that are over change nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from open_replays import filled

from apexrl.errors import ClosedError, WaitTimeout
from apexrl.replay.sharded.shard import Answer, Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient


class Losable:
    """An end that can lose its shard, and find another one in its place."""

    def __init__(self, make: Callable[[], Shard]) -> None:
        self._make = make
        self.end: LocalClient | None = LocalClient(make())

    def draw(self, count: int, until: int | None) -> Answer:
        return Lost() if self.end is None else self.end.draw(count, until)

    def update(self, *args: Any) -> Answer:
        return Lost() if self.end is None else self.end.update(*args)

    def come_back(self) -> None:
        self.end = LocalClient(self._make())


class Lost:
    def ready(self, timeout: float) -> bool:
        return True

    def take(self) -> Any:
        raise ClosedError("lost")


def test_a_lost_shard_costs_its_items_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.replay.sharded.sharded_replay._LOST_SECONDS", 0.0)
    fragile = Losable(lambda: filled(np.ones(100), 0))
    replay = ShardedReplay([fragile, LocalClient(filled(np.ones(60), 100))], capacity=200, ahead=2)
    before = replay.sample(32, timeout=5.0)
    assert (before.data["number"] < 100).any()
    fragile.end = None
    for _ in range(8):
        batch = replay.sample(32, timeout=5.0)  # whole, as before
    assert (batch.data["number"] >= 100).all()
    np.testing.assert_allclose(batch.probabilities, 1 / 60)
    from_lost = before.data["number"] < 100
    done = replay.update_priorities(before.keys, np.ones(32))
    assert done == ((~from_lost).sum(), from_lost.sum())
    stats = replay.stats()
    assert (stats["size"], stats["lost_shards"], stats["lost_items"], stats["shards"]) == (60, 1, 100, 1)
    fragile.come_back()
    for _ in range(20):
        batch = replay.sample(32, timeout=5.0)
    assert (batch.data["number"] < 100).any()
    stats = replay.stats()
    assert (stats["size"], stats["inserted"], stats["shards"]) == (160, 260, 2)
    assert replay.update_priorities(before.keys, np.ones(32)).stale == from_lost.sum()  # not the new shard's items


def test_a_shard_that_came_back_unseen_is_another_one() -> None:
    fragile = Losable(lambda: filled(np.ones(100), 0))
    replay = ShardedReplay([fragile, LocalClient(filled(np.ones(100), 100))], capacity=200)
    before = replay.sample(32, timeout=5.0)
    fragile.come_back()
    replay.sample(32, timeout=5.0)
    assert replay.update_priorities(before.keys, np.ones(32)).stale > 0
    assert replay.stats()["lost_shards"] == 1


class Held:
    """An end whose answers come when the test says so."""

    def __init__(self, shard: Shard) -> None:
        self.end = LocalClient(shard)
        self.held: list[Later] = []
        self.hold = False

    def draw(self, count: int, until: int | None) -> Answer:
        return self._later(self.end.draw(count, until))

    def update(self, *args: Any) -> Answer:
        return self._later(self.end.update(*args))

    def _later(self, answer: Answer) -> Answer:
        if not self.hold:
            return answer
        self.held.append(Later(answer))
        return self.held[-1]


class Later:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.there = False

    def ready(self, timeout: float) -> bool:
        return self.there

    def take(self) -> Any:
        return self.answer.take()


@pytest.mark.parametrize("lost", [False, True], ids=["an answer", "a loss"])
def test_a_late_word_of_a_life_that_is_over_changes_nothing(lost: bool) -> None:
    one = Held(filled(np.ones(100), 0))
    replay = ShardedReplay([one], capacity=200)
    batch = replay.sample(32, timeout=5.0)
    one.hold = True
    replay.update_priorities(batch.keys, np.ones(32))  # its answer stays under way
    (late,) = one.held
    one.hold, one.end = False, LocalClient(filled(np.ones(60), 100))
    replay._shards[0].poll = None
    replay._poll(time.monotonic() + 1.0, 0.0)
    replay.sample(32, timeout=5.0)
    stats = replay.stats()
    assert (stats["size"], stats["inserted"], stats["lost_shards"], stats["lost_items"]) == (60, 160, 1, 100)
    late.there = True
    if lost:
        late.answer = Lost()
    replay.sample(32, timeout=5.0)
    now = replay.stats()
    names = ("size", "inserted", "shards", "lost_shards", "lost_items")
    assert [now[name] for name in names] == [60, 160, 1, 1, 100]
    assert not replay._shards[0].updates


def test_a_late_answer_does_not_bring_a_lost_shard_back() -> None:
    one = Held(filled(np.ones(100), 0))
    replay = ShardedReplay([one, LocalClient(filled(np.ones(50), 100))], capacity=200)
    batch = replay.sample(32, timeout=5.0)
    one.hold = True
    replay.update_priorities(batch.keys, np.ones(32))
    (late,) = one.held
    known = replay._shards[0]
    known.lose(known.epoch, time.monotonic())
    late.there = True
    replay.sample(32, timeout=5.0)
    assert known.lost
    assert (replay.stats()["size"], replay.stats()["lost_shards"]) == (50, 1)


def test_a_sampler_without_any_shard_waits_and_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    fragile = Losable(lambda: filled(np.ones(100), 0))
    replay = ShardedReplay([fragile], capacity=200)
    replay.sample(8, timeout=5.0)
    fragile.end = None
    turns = []
    listen = replay._read_answers
    monkeypatch.setattr(replay, "_read_answers", lambda now: (turns.append(now), listen(now)))
    with pytest.raises(WaitTimeout, match="1 of 1 shards are lost"):
        replay.sample(8, timeout=0.3)
    assert len(turns) < 200  # each waits 5 ms
