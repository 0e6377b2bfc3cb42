"""Shards that are not there yet, as of a run that grows: nothing waits for what they might have taken in."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from open_replays import kept

from apexrl.errors import ClosedError, WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import Answer, Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient


def empty() -> Shard:
    return Shard(kept(Replay(256, {"number": Field((), "int64")}, writers=1)))


class Absent:
    """An end without a shard, until there is one."""

    def __init__(self) -> None:
        self.end: LocalClient | None = None

    def draw(self, count: int, until: int | None) -> Answer:
        return Nobody() if self.end is None else self.end.draw(count, until)

    def update(self, *args: Any) -> Answer:
        return Nobody() if self.end is None else self.end.update(*args)


class Nobody:
    def ready(self, timeout: float) -> bool:
        return True

    def take(self) -> Any:
        raise ClosedError("nobody is there")


def test_those_that_are_there_take_in_what_all_may_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of eight begins; the limiter is that of one replay, and goes on to be when another comes."""
    monkeypatch.setattr("apexrl.replay.sharded.sharded_replay._LOST_SECONDS", 0.02)
    monkeypatch.setattr("apexrl.replay.sharded.shard_state.IDLE_SECONDS", 1e6)  # a waiting writer is not idle
    absent = [Absent() for _ in range(7)]
    first, second = empty(), empty()
    rule: dict[str, Any] = {"capacity": 2048, "min_size": 40, "samples_per_insert": 4.0, "insert_band": 0.5}
    replay = ShardedReplay([*absent[:3], LocalClient(first), *absent[3:]], ahead=2, **rule)
    stop = threading.Event()

    def write(shard: Shard) -> None:
        writer = shard.replay.writer()
        while not stop.is_set():
            with suppress(WaitTimeout):
                writer.extend({"number": np.arange(1)}, priorities=np.ones(1), timeout=0.02)

    with pytest.raises(WaitTimeout):
        replay.sample(8, timeout=0.0)  # from here on shards are told
    writers = [threading.Thread(target=write, args=(shard,)) for shard in (first, second)]
    writers[0].start()
    try:
        for _ in range(100):
            replay.sample(8, timeout=20.0)
        assert replay.stats()["shards"] == 1
        absent[0].end = LocalClient(second)
        for _ in range(50):
            replay.sample(8, timeout=20.0)
            if replay.stats()["shards"] == 2:  # it was told: until then its writers write what they like
                break
            time.sleep(0.02)
        writers[1].start()
        for _ in range(150):
            replay.sample(8, timeout=20.0)
    finally:
        stop.set()
        for writer in writers:
            if writer.ident:
                writer.join()
    inserted = [shard.replay.stats()["inserted"] for shard in (first, second)]
    planned = 8 * (300 + 2)
    most = (40 * 4.0 + 80.0 + planned) / 4.0 + 3 * 8  # each shard may round its share up, and begin with one more
    least = (40 * 4.0 - 80.0 + 8 * 250) / 4.0
    assert least <= sum(inserted) <= most
    assert inserted[1] > 0
    stats = replay.stats()
    assert (stats["shards"], stats["lost_shards"], stats["lost_items"]) == (2, 0, 0)


def test_a_shard_that_nobody_writes_into_does_not_keep_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling goes on at the other's rate; when it wakes, no more than it had left comes on top."""
    monkeypatch.setattr("apexrl.replay.sharded.shard_state.IDLE_SECONDS", 0.2)
    first, second = empty(), empty()
    rule: dict[str, Any] = {"capacity": 512, "min_size": 200, "samples_per_insert": 4.0, "insert_band": 0.1}
    replay = ShardedReplay([LocalClient(first), LocalClient(second)], **rule)
    writers = [shard.replay.writer() for shard in (first, second)]

    def write(*whose: int) -> None:
        """As much as they may."""
        for number in whose:
            with suppress(WaitTimeout):
                while True:
                    writers[number].extend({"number": np.arange(1)}, priorities=np.ones(1), timeout=0.0)

    def sample(batches: int, *whose: int) -> None:
        came, end = 0, time.monotonic() + 120.0
        while came < batches:
            assert time.monotonic() < end
            write(*whose)
            with suppress(WaitTimeout):
                replay.sample(8, timeout=0.01)
                came += 1

    def over() -> float:
        """Items beyond the band."""
        inserted = sum(int(shard.replay.stats()["inserted"]) for shard in (first, second))
        return inserted - (200 * 4.0 + 80.0 + replay._limiter.planned) / 4.0

    with pytest.raises(WaitTimeout):
        replay.sample(8, timeout=0.0)  # from here on shards are told
    time.sleep(0.3)
    with pytest.raises(WaitTimeout):
        replay.sample(8, timeout=0.3)
    assert not any(one.idle for one in replay._shards)  # neither has begun: nobody waits for the other
    sample(20, 0)
    monkeypatch.setattr("apexrl.replay.sharded.shard_state.IDLE_SECONDS", 5.0)
    sample(200, 0)  # in two minutes: it does not wait anew for every batch
    assert first.replay.stats()["inserted"] >= (200 * 4.0 - 80.0 + 8 * 220) / 4.0
    assert over() <= 2  # each shard may round its share up
    asleep = replay._shards[1]
    assert asleep.idle
    left = asleep.limit - asleep.inserted
    assert 0 < left <= 110  # its share of the first 220
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        write(0, 1)
        replay._poll(time.monotonic(), 0.0)
        replay._read_answers(time.monotonic())
        assert over() <= left + 2
    assert not asleep.idle
    assert over() > 2  # it did come on top …
    sample(100, 0, 1)
    assert over() <= 2  # … and was used up
    assert second.replay.stats()["inserted"] > left
