"""A fifo of streams whose writers come and go: part-filled slots never keep a batch from coming together."""

from __future__ import annotations

import pytest

from apexrl.replay import Field, Replay

KINDS = {
    "transition": {"kind": "transition"},
    "sequence": {"kind": "sequence", "length": 4},
    "unroll": {"kind": "unroll", "length": 4},
}


def make(kind, capacity=2048):
    return Replay(capacity, {"number": Field((), "int64")}, sampler="fifo", writers=2, **KINDS[kind])


def write_one_item(replay, number):
    with replay.writer(streams=1) as writer:
        for t in range(5 if replay.core.options.get("length") else 2):
            writer.append(
                {"number": [10 * number + t], "reward": [0.0], "terminated": [False], "truncated": [False]}, timeout=5.0
            )


def first_steps(batch):
    numbers = batch.data["number"]
    return (numbers if numbers.ndim == 1 else numbers[:, 0]).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_single_items_of_many_writers_fill_the_capacity(kind):
    with make(kind) as replay:
        for number in range(2048):
            write_one_item(replay, number)
        assert len(replay) == 2048
        assert first_steps(replay.sample(2048, timeout=5.0)) == [10 * n for n in range(2048)]
        for number in range(100):  # what it empties is used again
            write_one_item(replay, number)
        assert first_steps(replay.sample(100, timeout=5.0)) == [10 * n for n in range(100)]
        assert replay.core.native.check() == 0.0
        assert replay.stats()["slots_used"] <= 2048 + 100


def test_full_slots_take_no_more_places_than_before():
    """Places for part-filled slots are taken only while no other is free."""
    with make("transition") as replay, replay.writer(streams=1) as writer:
        t = 0
        for _ in range(40):
            for _ in range(1000):
                writer.append({"number": [t], "reward": [0.0], "terminated": [False], "truncated": [False]})
                t += 1
            writer.flush()
            replay.sample(990, timeout=5.0)
        assert replay.stats()["slots_used"] <= 2 * 2048 // 64 + 2 * 32 + 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_of_part_filled_slots_fills_up_again(kind, tmp_path):
    with make(kind) as replay:
        for number in range(300):
            write_one_item(replay, number)
        assert len(replay) == 300
        replay.save(tmp_path / "replay")
        used = replay.stats()["slots_used"]
    with Replay.load(tmp_path / "replay") as replay:
        assert replay.stats()["slots_used"] <= used
        for number in range(300, 1500):
            write_one_item(replay, number)
        assert first_steps(replay.sample(1500, timeout=5.0)) == [10 * n for n in range(1500)]
        assert replay.core.native.check() == 0.0


def test_what_it_needs_when_full_is_told_by_its_items():
    with make("transition") as queue, Replay(2048, {"number": Field((), "int64")}, kind="transition") as replay:
        needs, other = (one.core.native.counters()["bytes_when_full"] for one in (queue, replay))
        assert needs < 2 * other
