"""Batches sampled ahead of the learner by a thread."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from apexrl.errors import PriorityError, WaitTimeout, WorkerError
from apexrl.replay import Replay
from apexrl.roles.batch_source import DirectBatches, PrefetchedBatches, Ready, UnsentPriorities
from apexrl.spec import Field

BATCH = 8


def queue_of(items: int) -> Replay:
    replay = Replay(
        kind="unroll",
        length=1,
        fields={"observation": Field((2,), "float32"), "action": Field((), "int64")},
        capacity=items,
        sampler="fifo",
        writers=1,
    )
    writer = replay.writer()
    for _ in range(items + 1):
        writer.append(
            {
                "observation": np.zeros((1, 2), np.float32),
                "action": np.zeros(1, np.int64),
                "reward": np.zeros(1, np.float32),
                "terminated": np.zeros(1, np.bool_),
                "truncated": np.zeros(1, np.bool_),
            }
        )
    return replay


class Source:
    """Batches numbered from 0; ``DirectBatches`` as the prefetcher sees it."""

    def __init__(self, fail_at: int = -1) -> None:
        self.count = 0
        self.written: list[Any] = []
        self.through: list[Any] = []
        self.threads: set[int] = set()
        self._fail_at = fail_at

    def next(self) -> Ready | None:
        self.threads.add(threading.get_ident())
        if self.count == self._fail_at:
            raise ZeroDivisionError("in the thread")
        self.count += 1
        return Ready(self.count - 1, None)  # type: ignore[arg-type]

    def done(self, ready: Ready) -> None:
        self.through.append(ready.batch)

    def write_back(self, keys: Any, priorities: Any) -> None:
        self.threads.add(threading.get_ident())
        self.written.append((keys, priorities))

    def close(self) -> None: ...


def test_prefetching_keeps_order_and_runs_only_so_far_ahead() -> None:
    source = Source()
    batches = PrefetchedBatches(source, 3, patience=5.0)  # type: ignore[arg-type]
    taken = [ready.batch for _ in range(20) if (ready := batches.next()) is not None]
    keys, priorities = np.arange(2, dtype=np.uint64), np.ones(2, np.float32)
    batches.write_back(keys, priorities)
    batches.next()  # who asks for the next is through with the twentieth
    deadline = time.monotonic() + 5.0
    while not source.written and time.monotonic() < deadline:
        batches.next()
    batches.close()
    assert taken == list(range(20))
    assert source.through[:20] == taken
    assert [(ours.tolist(), theirs.tolist()) for ours, theirs in source.written] == [([0, 1], [1.0, 1.0])]
    assert source.threads.isdisjoint({threading.get_ident()})
    assert not batches._thread.is_alive()


def test_priorities_that_cannot_be_are_refused_before_they_reach_the_thread() -> None:
    source = Source()
    batches = PrefetchedBatches(source, 3, patience=5.0)  # type: ignore[arg-type]
    with pytest.raises(PriorityError, match="row 1 is nan"):
        batches.write_back(np.arange(2, dtype=np.uint64), np.array([1.0, np.nan], np.float32))
    batches.close()
    assert source.written == []


def test_a_prefetcher_that_nobody_empties_stays_bounded() -> None:
    source = Source()
    batches = PrefetchedBatches(source, 2, patience=5.0)  # type: ignore[arg-type]
    batches.next()
    time.sleep(0.1)
    batches.close()
    assert source.count <= 1 + 2 + 1  # taken, queued, in hand


def test_an_error_while_prefetching_is_raised_in_the_learner() -> None:
    batches = PrefetchedBatches(Source(fail_at=2), 4, patience=0.1)  # type: ignore[arg-type]
    taken: list[Any] = []

    def take(calls: int) -> None:
        for _ in range(calls):
            taken.extend([] if (ready := batches.next()) is None else [ready.batch])

    with pytest.raises(ZeroDivisionError, match="in the thread"):
        take(300)
    assert taken == [0, 1]
    batches.close()


@pytest.mark.parametrize(("taken", "lost"), [(1, 4), (2, 3), (4, 1)])
def test_of_a_queue_what_waits_or_is_in_hand_is_lost_with_the_learner(taken: int, lost: int) -> None:
    with queue_of(4 * BATCH) as replay:
        direct = DirectBatches(replay, object(), BATCH, lambda: 0.4, 0.3, several=True)  # type: ignore[arg-type]
        batches = PrefetchedBatches(direct, 3, patience=30.0)
        assert all(batches.next() is not None for _ in range(taken))
        deadline = time.monotonic() + 10.0
        while len(replay) and time.monotonic() < deadline:  # until all of it is sampled
            time.sleep(0.01)
        batches.close()
        replay.release()  # the end of its owner
        with pytest.raises(WaitTimeout):
            replay.sample(BATCH, timeout=0.0)  # somebody takes its place
        assert replay.stats()["lost"] == lost * BATCH


def test_what_shards_never_heard_of_is_counted_once(stage: Any) -> None:
    class Spread:
        unsent = 0

    context, replay = stage.context("learner"), Spread()
    unsent = UnsentPriorities(context, replay)
    for replay.unsent in (0, 3, 3, 10):
        unsent.count()
    assert stage.run.totals["unsent_priorities"] == 10
    UnsentPriorities(context, object()).count()  # a replay of one piece
    assert stage.run.totals["unsent_priorities"] == 10


def test_direct_batches_give_none_while_the_replay_says_wait() -> None:
    class Empty:
        def sample(self, size: int, beta: float, timeout: float) -> None:
            raise WaitTimeout("too few")

    assert DirectBatches(Empty(), None, 4, lambda: 0.4, 0.0).next() is None  # type: ignore[arg-type]


def test_the_thread_uses_the_learners_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[str, str]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: used.append((threading.current_thread().name, name)))
    batches = PrefetchedBatches(Source(), 3, patience=5.0, device="cuda:1")  # type: ignore[arg-type]
    assert batches.next() is not None
    batches.close()
    assert used == [("prefetch", "cuda:1")]


def test_a_thread_that_stands_still_is_the_learners_trouble() -> None:
    let_go = threading.Event()

    class Stuck(Source):
        def next(self) -> Ready | None:
            let_go.wait(60.0)
            return super().next()

    batches = PrefetchedBatches(Stuck(), 3, patience=0.05, stall_timeout=0.1)  # type: ignore[arg-type]
    asked = 0
    with pytest.raises(WorkerError, match=r"the thread prefetch stood still for 0.3 s \(--stall-timeout\)"):
        while asked < 1000:  # the first turn may take three times as long
            assert batches.next() is None
            asked += 1
    assert asked
    let_go.set()
    batches.close()
