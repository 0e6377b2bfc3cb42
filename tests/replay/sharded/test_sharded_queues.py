"""Queues that lie in shards are asked for whole batches, and wait for what they do not hold yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

from apexrl.errors import WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import QUEUE_SECONDS, Answer, DrawResult, Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay

FAR = 60.0  # seconds: only bounds a hang


class Apart:
    """A shard that answers in a thread of its own, one call after the other, as a Ray actor does."""

    def __init__(self, patience: float) -> None:
        self.replay = Replay(64, {"number": Field((), "int64")}, sampler="fifo", writers=1)
        self.shard = Shard(self.replay, patience)
        self.asked: list[int] = []  # rows of every draw of some
        self._thread = ThreadPoolExecutor(1)

    def draw(self, count: int, until: int | None) -> Answer:
        if count:
            self.asked.append(count)
        return Later(self._thread.submit(self.shard.draw, count, until))

    def update(self, *args: Any) -> Answer:
        raise AssertionError("items of a queue have no priorities")

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.replay.close()


class Silent:
    """An end that never answers."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def draw(self, count: int, until: int | None) -> Answer:
        self.asked.append(count)
        return Later(Future())

    update = Apart.update


class Later:
    def __init__(self, future: Future[DrawResult]) -> None:
        self._future = future

    def ready(self, timeout: float) -> bool:
        return bool(wait([self._future], timeout)[0])

    def take(self) -> DrawResult:
        return self._future.result()


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[list[Apart]]:
    made = [Apart(getattr(request, "param", QUEUE_SECONDS)) for _ in range(2)]
    yield made
    for end in made:
        end.close()


def numbers(first: int, count: int) -> dict[str, Any]:
    return {"number": np.arange(first, first + count)}


def in_pieces(replay: Replay, pieces: list[int], go: threading.Event) -> threading.Thread:
    """Writes so many numbers at a time, 0, 1, 2, …, once ``go`` is set."""

    def write() -> None:
        writer, first = replay.writer(), 0
        assert go.wait(FAR)
        for count in pieces:
            writer.extend(numbers(first, count))
            first += count
            time.sleep(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_queues_that_hold_nothing_are_asked_in_turn(ends: list[Apart]) -> None:
    replay = ShardedReplay(ends, capacity=64, sampler="fifo")
    for one in replay._shards:
        one.generation = "its first"
    asked = [replay._from_queues(1).tolist() for _ in range(4)]
    assert asked[0] != asked[1]
    assert asked == asked[:2] * 2


@pytest.mark.parametrize("ends", [FAR], indirect=True)
def test_a_draw_waits_for_what_it_was_asked_for(ends: list[Apart]) -> None:
    go = threading.Event()
    thread = in_pieces(ends[0].replay, [3, 3, 3], go)
    go.set()
    drawn = ends[0].shard.draw(8)
    assert drawn.data["number"].tolist() == list(range(8))
    thread.join()


def test_a_draw_takes_what_there_is_when_its_time_is_over(ends: list[Apart]) -> None:
    ends[0].replay.writer().extend(numbers(0, 1))
    assert ends[0].shard.draw(8).data["number"].tolist() == [0]
    assert len(ends[0].shard.draw(8).keys) == 0


def test_of_items_that_are_no_queue_nobody_waits_for_more() -> None:
    replay = Replay(64, {"number": Field((), "int64")}, writers=1)
    try:
        replay.writer().extend(numbers(0, 2))
        assert len(Shard(replay, FAR).draw(8).keys) == 8  # with replacement
    finally:
        replay.close()


@pytest.mark.parametrize("ends", [FAR], indirect=True)
def test_a_batch_that_comes_bit_by_bit_is_asked_for_once(ends: list[Apart]) -> None:
    queue = ShardedReplay(ends[:1], capacity=64, sampler="fifo")
    go = threading.Event()
    thread = in_pieces(ends[0].replay, [4, 4, 4, 4], go)
    with pytest.raises(WaitTimeout):
        queue.sample(16, timeout=0.0)  # asks, and waits no longer
    go.set()
    assert queue.sample(16, timeout=FAR).data["number"].tolist() == list(range(16))
    assert ends[0].asked == [16]
    thread.join()


def test_the_next_batch_is_under_way_while_the_caller_is_at_one(ends: list[Apart]) -> None:
    ends[0].replay.writer().extend(numbers(0, 8))
    queue = ShardedReplay(ends[:1], capacity=64, sampler="fifo", ahead=2)
    assert queue.sample(8, timeout=FAR).data["number"].tolist() == list(range(8))
    assert sum(ends[0].asked) >= 16
    ends[0].replay.writer().extend(numbers(8, 8))
    assert queue.sample(8, timeout=FAR).data["number"].tolist() == list(range(8, 16))


@pytest.mark.parametrize("ends", [1.0], indirect=True)
def test_an_empty_queue_holds_up_nobody(ends: list[Apart]) -> None:
    """Of two, one gets nothing: batches come of the other alone, and whole. The empty one is waited for once, and then
    only where the other runs dry, too."""
    queue = ShardedReplay(ends, capacity=128, sampler="fifo", ahead=2)
    go = threading.Event()
    go.set()
    thread = in_pieces(ends[0].replay, [5] * 12, go)
    got = [queue.sample(10, timeout=FAR).data["number"].tolist() for _ in range(6)]
    assert sorted(number for batch in got for number in batch) == list(range(60))
    assert queue.stats()["inserted"] == queue.stats()["sampled"] == 60
    assert len(ends[1].asked) <= 4 < len(ends[0].asked)
    thread.join()


def test_of_a_shard_that_was_never_heard_of_nothing_is_asked(ends: list[Apart]) -> None:
    """It may have yet to be made, and its answer would hold up the batch."""
    ends[0].replay.writer().extend(numbers(0, 16))
    silent = Silent()
    queue = ShardedReplay([ends[0], silent], capacity=128, sampler="fifo", ahead=2)
    for first in (0, 8):
        assert queue.sample(8, timeout=FAR).data["number"].tolist() == list(range(first, first + 8))
    assert set(silent.asked) == {0}


def test_what_queues_hold_is_taken_before_they_are_waited_for(ends: list[Apart]) -> None:
    for end, first in zip(ends, (0, 100), strict=True):
        end.replay.writer().extend(numbers(first, 20))
    queue = ShardedReplay(ends, capacity=128, sampler="fifo")
    got = np.concatenate([queue.sample(8, timeout=FAR).data["number"] for _ in range(5)])
    assert sorted(got.tolist()) == [*range(20), *range(100, 120)]
    with pytest.raises(WaitTimeout, match=r"shards .* have not answered|hold 0 items"):
        queue.sample(8, timeout=0.0)
