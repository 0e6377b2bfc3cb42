"""A shard in the sampler's own process, asked ahead: what it gives is drawn when it is looked for."""

from __future__ import annotations

import time

import numpy as np
import pytest
from open_replays import filled, kept

from apexrl.errors import ClosedError, WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import LazyDraw, Shard


def queue(items: int, patience: float) -> Shard:
    replay = kept(Replay(200, {"number": Field((), "int64")}, sampler="fifo", writers=1))
    shard = Shard(replay, patience)
    add(shard, items)
    return shard


def add(shard: Shard, items: int) -> None:
    if items:
        shard.replay.writer().extend({"number": np.arange(items)})


def test_items_are_as_of_when_they_are_looked_for() -> None:
    shard = filled(np.ones(100), 0)
    early = LazyDraw(shard, 64)
    first = shard.draw(100)
    keys = np.unique(first.keys)
    only = first.data["number"][np.flatnonzero(first.keys == keys[0])[0]]
    values = np.zeros(len(keys))
    values[0] = 1.0
    shard.update(shard.generation, keys, values)
    untouched = 100 - len(keys)
    drawn = early.take()
    assert early.take() is drawn  # once
    chance = 1.0 / (1 + untouched)
    np.testing.assert_allclose(drawn.probabilities, chance)  # as of now, not of when it was asked
    assert set(drawn.data["number"].tolist()) & set(first.data["number"].tolist()) <= {int(only)}


def test_how_it_stands_comes_at_once() -> None:
    look = LazyDraw(queue(5, 60.0), 0)
    assert look.ready(0.0)
    assert len(look.take().keys) == 0
    assert look.take().status.size == 5


def test_nothing_comes_at_once_from_an_empty_shard_that_is_no_queue() -> None:
    empty = LazyDraw(filled(np.ones(0), 0), 8)
    assert empty.ready(0.0)
    assert len(empty.take().keys) == 0


def test_a_queue_has_its_time_to_hold_what_it_is_asked_for() -> None:
    shard = queue(5, 60.0)
    soon = LazyDraw(shard, 8)
    assert not soon.ready(0.0)
    add(shard, 3)
    assert soon.ready(0.0)
    assert len(soon.take().keys) == 8


def test_then_what_there_is_will_do() -> None:
    soon = LazyDraw(queue(5, 0.05), 8)
    deadline = time.monotonic() + 60.0
    while not soon.ready(0.01):
        assert time.monotonic() < deadline
    drawn = soon.take()
    assert len(drawn.keys) == 5
    assert drawn.status.size == 0


def test_the_time_of_a_queue_begins_when_it_is_first_looked_at() -> None:
    """What is asked ahead has waited behind another batch, and shall not come in pieces for that."""
    soon = LazyDraw(queue(5, 0.5), 8)
    time.sleep(0.7)
    assert not soon.ready(0.0)


def test_a_shard_that_is_let_go_of_is_lost() -> None:
    shard = queue(5, 60.0)
    soon, after, look = LazyDraw(shard, 8), LazyDraw(shard, 2), LazyDraw(shard, 0)
    assert not soon.ready(0.0)
    shard.replay.close()
    for answer in (soon, after, look):
        assert answer.ready(0.0)
        with pytest.raises(ClosedError):
            answer.take()


def test_what_may_be_inserted_is_as_said_whoever_said_it_before() -> None:
    """The sampler died while the replay was filling, and another goes on with the same memory."""
    replay = kept(Replay(4000, {"number": Field((), "int64")}, writers=1))
    first = Shard(replay)
    first.admit(0)
    assert inserted(first, 5) == 1  # which is always let in
    first.admit(1100)
    assert inserted(first, 600) == 600
    for _ in range(2):  # an even number of words before it, and an odd one
        first.release()
        first = Shard(replay, generation=first.generation)
        first.admit(1100)
        assert inserted(first, 200) == 200
    assert inserted(first, 1000) == 1100 - 1001
    first.admit(1110)
    assert inserted(first, 1000) == 10


def inserted(shard: Shard, items: int) -> int:
    """How many of ``items`` there is room for."""
    writer = shard.replay.writer()
    try:
        for number in range(items):
            writer.extend({"number": np.asarray([number])}, timeout=0.2)
    except WaitTimeout:
        return number
    finally:
        writer.close()
    return items


def test_the_same_memory_is_the_same_life_whoever_samples_it() -> None:
    """Keys stay good, and of two answers the later counts."""
    first = filled(np.ones(50), 0)
    drawn = first.draw(8)
    first.release()
    second = Shard(first.replay, generation=first.generation)
    written = second.update(drawn.status.generation, drawn.keys, np.full(8, 2.0))
    assert written.updated == (8, 0)
    assert written.status.moment > drawn.status.moment
