"""Lifo, max- and min-heap, as samplers and as removers, against a sorted list."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl.errors import ConfigError, WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.sharded_replay import ShardedReplay

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"id": Field((), "int64"), "pair": Field((2,), "float32")}
ORDERS = ("lifo", "max_heap", "min_heap")


def make(capacity=200, **options):
    return Replay(capacity, FIELDS, **{"alpha": 1.0, "eps": 0.0, "writers": 1, **options})


def rows(ids):
    ids = np.asarray(ids)
    return {"id": ids, "pair": np.stack([ids, -ids], 1).astype("f4")}


class Twin:
    """Magnitudes by id; ids are numbers in the order of insertion."""

    def __init__(self):
        self.items = {}

    def ranked(self, order):
        place = {
            "lifo": lambda i: (-i,),
            "max_heap": lambda i: (-self.items[i], i),
            "min_heap": lambda i: (self.items[i], i),
        }
        return sorted(self.items, key=place[order])

    def trim(self, capacity, order):
        for i in self.ranked(order)[: max(0, len(self.items) - capacity)]:
            del self.items[i]


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_samplers_and_removers_against_a_sorted_list(data):
    sampler = data.draw(st.sampled_from([*ORDERS, "prioritized"]))
    remover = data.draw(st.sampled_from([*ORDERS, "fifo"]))
    once = sampler != "prioritized" and data.draw(st.booleans())
    capacity = data.draw(st.sampled_from([3, 40, 200]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    twin, written, keys = Twin(), 0, {}
    with make(capacity, sampler=sampler, remover=remover, max_times_sampled=int(once)) as replay:
        writer = replay.writer()
        for _ in range(data.draw(st.integers(1, 30))):
            count = int(rng.integers(1, 60))
            if remover == "fifo":  # goes chunk by chunk: test_rows.py has that
                count = min(count, capacity - len(replay))
            magnitudes = rng.integers(1, 6, count).astype(float)  # with many equal ones
            writer.extend(rows(np.arange(written, written + count)), priorities=magnitudes)
            twin.items.update(zip(range(written, written + count), magnitudes.tolist(), strict=True))
            written += count
            if remover != "fifo":
                twin.trim(capacity, remover)
            assert len(replay) == len(twin.items)
            found = replay.read(replay.keys())
            assert found.data["id"].tolist() == sorted(twin.items)
            keys = dict(zip(found.data["id"].tolist(), found.keys.tolist(), strict=True))
            size = int(rng.integers(1, 30))
            if sampler != "prioritized" and size > len(twin.items):
                with pytest.raises((WaitTimeout, ConfigError), match=r"fewer than|more than"):
                    replay.sample(size, timeout=0.0)
            elif sampler != "prioritized":
                batch = replay.sample(size)
                ids = batch.data["id"].tolist()
                assert ids == twin.ranked(sampler)[:size]
                assert batch.keys.tolist() == [keys[i] for i in ids]
                np.testing.assert_array_equal(batch.data["pair"], rows(ids)["pair"])
                assert (batch.probabilities == 1).all()
                assert (batch.weights == 1).all()
                for i in ids if once else ():
                    del twin.items[i]
                    assert replay.update_priorities(np.array([keys.pop(i)], np.uint64), [1.0]) == (0, 1)
            changed = [i for i in keys if rng.random() < 0.3]
            magnitudes = rng.integers(1, 6, len(changed)).astype(float)
            assert replay.update_priorities(np.array([keys[i] for i in changed], np.uint64), magnitudes).stale == 0
            twin.items.update(zip(changed, magnitudes.tolist(), strict=True))
            gone = [i for i in keys if rng.random() < 0.1]
            assert replay.delete(np.array([keys[i] for i in gone], np.uint64)) == (len(gone), 0)
            for i in gone:
                del twin.items[i]
            assert replay.core.native.check() == 0.0


def test_a_stack_of_unrolls_gives_the_newest_once():
    fields = {"observation": Field((), "int64")}
    options = {"kind": "unroll", "length": 5, "streams": 1, "writers": 1}
    with Replay(50, fields, sampler="lifo", max_times_sampled=1, **options) as replay:
        writer, seen = replay.writer(), []
        for t in range(300):
            flags = {"reward": [0.0], "terminated": [False], "truncated": [False]}
            writer.append({"observation": [t], **flags})
            if t % 50 == 49:
                first = replay.sample(4).data["observation"][:, 0].tolist()
                assert first == sorted(first, reverse=True)
                assert first[0] >= t - 10
                seen += first
        assert len(seen) == len(set(seen)) == 24


def test_a_uniform_remover_does_not_look_at_priorities():
    left = np.zeros(2)
    for seed in range(30):
        with make(200, remover="uniform", seed=seed) as replay:
            writer = replay.writer()
            writer.extend(rows(np.arange(200)), priorities=np.where(np.arange(200) % 2, 1.0, 1e6))
            writer.extend(rows(np.arange(200, 300)), priorities=np.ones(100))
            ids = replay.read(replay.keys()).data["id"]
            left += np.bincount(ids[ids < 200] % 2, minlength=2)
    assert left[0] / left[1] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "max_heap", "alpha": 0.0}, "needs priorities"),
        ({"sampler": "uniform", "remover": "min_heap"}, "needs priorities"),
        ({"sampler": "fifo", "remover": "lifo"}, "leave out remover"),
        ({"sampler": "prioritized", "max_times_sampled": 1}, "max_times_sampled=1 needs a sampler"),
        ({"sampler": "lifo", "max_times_sampled": 2}, "max_times_sampled=2 must be between 0 and 1"),
        ({"sampler": "lifo", "max_times_sampled": 1, "samples_per_insert": 1.0}, "samples_per_insert=1.0"),
        ({"sampler": "lifo", "recency_half_life": 0.5}, "fixed order"),
        ({"sampler": "stack"}, "'lifo', 'max_heap', 'min_heap'"),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        make(**options)


def test_shards_are_not_sampled_in_an_order():
    with pytest.raises(ConfigError, match="not sampler='lifo'"):
        ShardedReplay([object()], capacity=10, sampler="lifo")


def take_and_report(replay, batches, pipe):
    pipe.send([replay.sample(10).data["id"].tolist() for _ in range(batches)])
    signal.pause()


@pytest.mark.parametrize("sampler", ["lifo", "max_heap"])
def test_a_killed_sampler_has_taken_what_it_took_and_nothing_else(sampler):
    rng, twin = np.random.default_rng(1), Twin()
    magnitudes = rng.random(150)
    twin.items = dict(enumerate(magnitudes.tolist()))
    with make(200, sampler=sampler, max_times_sampled=1) as replay:
        replay.writer().extend(rows(np.arange(150)), priorities=magnitudes)
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=take_and_report, args=(replay, 4, theirs), daemon=True)
        process.start()
        assert ours.poll(120)
        taken = [i for batch in ours.recv() for i in batch]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        expected = twin.ranked(sampler)
        assert taken == expected[:40]
        assert replay.sample(110).data["id"].tolist() == expected[40:]
        stats = replay.stats()
        assert (stats["lost"], stats["size"], stats["sampled"]) == (10, 0, 150)
        assert replay.core.native.check() == 0.0


def test_a_successor_of_a_killed_owner_removes_in_the_same_order():
    with make(100, sampler="max_heap", remover="min_heap") as replay:
        writer, rng = replay.writer(), np.random.default_rng(2)
        magnitudes = rng.random(300)
        writer.extend(rows(np.arange(80)), priorities=magnitudes[:80])
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=take_and_report, args=(replay, 1, theirs), daemon=True)
        process.start()
        assert ours.poll(120)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        writer.extend(rows(np.arange(80, 300)), priorities=magnitudes[80:])
        assert replay.sample(100).data["id"].tolist() == np.argsort(-magnitudes)[:100].tolist()
