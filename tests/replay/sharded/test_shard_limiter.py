"""Samples per insert over several shards are those of one replay."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from open_replays import filled

from apexrl.errors import WaitTimeout
from apexrl.replay.sharded.shard import Shard
from apexrl.replay.sharded.shard_limiter import ShardLimiter
from apexrl.replay.sharded.shard_state import ShardState
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient


def test_the_limiter_counts_all_shards_together() -> None:
    shards = [filled(np.ones(0), 0), filled(np.ones(0), 0)]
    writers = [shard.replay.writer() for shard in shards]
    replay = ShardedReplay(
        [LocalClient(shard) for shard in shards], capacity=1000, min_size=40, samples_per_insert=2.0, insert_band=1.0
    )
    for writer in writers:
        with pytest.raises(WaitTimeout, match="items, fewer than the 40"):
            replay.sample(10, timeout=0.05)
        for row in range(30):  # each call lets a few more in
            writer.extend({"number": np.asarray([row])}, priorities=np.ones(1), timeout=5.0)
            replay._poll(time.monotonic(), 0.0)
            replay._read_answers(time.monotonic())
    sampled = 0
    with pytest.raises(WaitTimeout, match="limiter waits"):
        while True:
            sampled += len(replay.sample(10, timeout=0.3))
    # diff = 2 · 60 − sampled stays above 2 · 40 − 80
    assert sampled == 120
    writers[0].extend({"number": np.arange(5)}, priorities=np.ones(5))
    replay.sample(10, timeout=5.0)
    with pytest.raises(WaitTimeout):
        replay.sample(10, timeout=0.2)


@pytest.mark.parametrize(("min_size", "band", "batches"), [(0, 1e3, 10), (40, 0.0, 3), (40, 1e3, 20), (2000, 0.01, 4)])
def test_the_band_is_a_fraction_of_what_was_asked_for_and_at_least_a_batch(
    min_size: int, band: float, batches: int
) -> None:
    """Batches of 10 are given while 2 · inserted − sampled stays within it, above 2 · min_size."""
    known = ShardState(size=50, inserted=50)
    limiter = ShardLimiter([known], 50, min_size, 2.0, band)
    given = 0
    while given < 20 and limiter.may_sample(10):
        limiter.planned += 10
        given += 1
    assert given == batches


def test_writers_wait_when_they_are_far_ahead_of_the_sampler() -> None:
    shards = [filled(np.ones(30), 0), filled(np.ones(30), 0)]
    writer = shards[0].replay.writer()
    replay = ShardedReplay([LocalClient(s) for s in shards], capacity=1000, min_size=40, samples_per_insert=2.0)
    replay.sample(10, timeout=5.0)
    with pytest.raises(WaitTimeout):
        for _ in range(1000):
            writer.extend({"number": np.arange(1)}, priorities=np.ones(1), timeout=0.05)
    assert replay.stats()["inserted"] < 200
    for _ in range(4):
        replay.sample(10, timeout=5.0)
    writer.extend({"number": np.arange(1)}, priorities=np.ones(1), timeout=5.0)


def test_writers_of_all_shards_together_stay_within_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.replay.sharded.shard_state.IDLE_SECONDS", 1e6)  # a waiting writer is not idle
    shards = [filled(np.ones(0), 0) for _ in range(3)]
    ends = [LocalClient(shard) for shard in shards]
    replay = ShardedReplay(ends, capacity=192, min_size=40, samples_per_insert=4.0, insert_band=0.5, ahead=2)
    with pytest.raises(WaitTimeout):
        replay.sample(8, timeout=0.0)  # from here on shards are told
    stop = threading.Event()

    def write(shard: Shard) -> None:
        writer = shard.replay.writer()
        while not stop.is_set():
            with suppress(WaitTimeout):
                writer.extend({"number": np.arange(1)}, priorities=np.ones(1), timeout=0.02)

    writers = [threading.Thread(target=write, args=(shard,)) for shard in shards]
    for writer in writers:
        writer.start()
    try:
        for _ in range(250):
            replay.sample(8, timeout=20.0)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    inserted = sum(shard.replay.stats()["inserted"] for shard in shards)
    planned = 8 * (250 + 2)
    most = (40 * 4.0 + 80.0 + planned) / 4.0 + 3 * 3  # each shard may round its share up, and begin with one more
    least = (40 * 4.0 - 80.0 + 8 * 250) / 4.0
    assert least <= inserted <= most


def test_a_new_sampler_goes_on_where_the_one_before_it_died() -> None:
    """A learner that begins anew knows what its shards have given already: their writers do not wait for that again."""
    shards = [filled(np.ones(0), 0), filled(np.ones(0), 0)]
    writers = [shard.replay.writer() for shard in shards]
    rule: dict[str, Any] = {"capacity": 1000, "min_size": 40, "samples_per_insert": 4.0, "insert_band": 0.5}

    def sampler() -> ShardedReplay:
        return ShardedReplay([LocalClient(shard) for shard in shards], **rule)

    def go_on(replay: ShardedReplay, batches: int) -> int:
        """Batches that came, while writers write whatever they may."""
        came = 0
        for _ in range(40 * batches):
            for writer in writers:
                with suppress(WaitTimeout):
                    writer.extend({"number": np.arange(1)}, priorities=np.ones(1), timeout=0.0)
            with suppress(WaitTimeout):
                replay.sample(8, timeout=0.006)
                came += 1
            if came == batches:
                break
        return came

    assert go_on(sampler(), 60) == 60
    before = sum(shard.replay.stats()["inserted"] for shard in shards)
    again = sampler()
    with suppress(WaitTimeout):
        again.sample(8, timeout=0.0)
    assert go_on(again, 30) == 30
    after = sum(shard.replay.stats()["inserted"] for shard in shards)
    # 30 batches of 8 at 4 samples per insert are 60 inserts; the one before may have left them up to a band behind
    assert 20 <= after - before <= 100
    assert again._limiter.planned == sum(shard.replay.stats()["sampled"] for shard in shards)
