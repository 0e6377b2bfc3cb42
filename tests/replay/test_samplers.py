"""Samplers, removers and importance weights."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl.errors import ConfigError, OwnershipError, WaitTimeout
from apexrl.replay import Field, Replay

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"id": Field((), "int64"), "pair": Field((2,), "float32")}


def make(capacity=10_000, **options):
    return Replay(capacity, FIELDS, **{"alpha": 1.0, "eps": 0.0, **options})


def rows(first, count):
    ids = np.arange(first, first + count)
    return {"id": ids, "pair": np.stack([ids, -ids], 1).astype("f4")}


def assert_whole(batch):
    np.testing.assert_array_equal(batch.data["pair"], np.stack([batch.data["id"], -batch.data["id"]], 1).astype("f4"))


# --- fifo


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_fifo_gives_every_item_once_and_in_order(data):
    capacity = data.draw(st.sampled_from([1, 7, 100, 2000]))
    with make(capacity, sampler="fifo", writers=1) as replay:
        writer = replay.writer()
        written = taken = 0
        for _ in range(data.draw(st.integers(1, 60))):
            if data.draw(st.booleans()):
                count = data.draw(st.integers(1, 150))
                room = capacity - (written - taken)
                if count <= room:
                    writer.extend(rows(written, count))
                    written += count
                else:
                    with pytest.raises(WaitTimeout, match=f"{room} of {count} rows were stored"):
                        writer.extend(rows(written, count), timeout=0.0)
                    written += room
            else:
                count = data.draw(st.integers(1, min(capacity, 90)))
                if count > written - taken:
                    with pytest.raises(WaitTimeout, match="fewer than the"):
                        replay.sample(count, timeout=0.0)
                    continue
                batch = replay.sample(count)
                np.testing.assert_array_equal(batch.data["id"], np.arange(taken, taken + count))
                assert_whole(batch)
                assert (batch.probabilities == 1).all()
                assert (batch.weights == 1).all()
                assert replay.update_priorities(batch.keys, np.ones(count)) == (0, count)
                taken += count
            assert len(replay) == written - taken
        stats = replay.stats()
        assert (stats["inserted"], stats["sampled"], stats["evicted"], stats["lost"]) == (written, taken, 0, 0)


def fill_for_ever(replay, pipe):
    writer, first = replay.writer(), 0
    pipe.send(os.getpid())
    while True:
        writer.extend(rows(first, 10), timeout=60)
        first += 10


def test_a_full_queue_makes_writers_wait():
    with make(200, sampler="fifo") as replay:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=fill_for_ever, args=(replay, theirs), daemon=True)
        process.start()
        ours.recv()
        try:
            for turn in range(100):
                np.testing.assert_array_equal(
                    replay.sample(50, timeout=20).data["id"], np.arange(50 * turn, 50 * turn + 50)
                )
                assert replay.stats()["inserted"] <= replay.stats()["sampled"] + 200
        finally:
            process.kill()
            process.join()


def take_some(replay, count, pipe):
    pipe.send([replay.sample(10).data["id"].tolist() for _ in range(count)])
    time.sleep(60)


def test_a_killed_owner_loses_its_last_batch_and_nothing_else():
    with make(1000, sampler="fifo") as replay:
        replay.writer().extend(rows(0, 500))
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=take_some, args=(replay, 7, theirs), daemon=True)
        process.start()
        assert ours.poll(120)
        assert [i for batch in ours.recv() for i in batch] == list(range(70))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        np.testing.assert_array_equal(replay.sample(10).data["id"], np.arange(70, 80))
        stats = replay.stats()
        assert (stats["lost"], stats["sampled"], stats["size"]) == (10, 80, 420)


def test_fifo_unrolls_of_several_streams_come_once():
    fields = {"observation": Field((), "int64"), "action": Field((), "int64")}
    with Replay(50, fields, kind="unroll", length=5, sampler="fifo", streams=3, writers=1) as replay:
        writer = replay.writer(streams=3)
        seen = []
        for t in range(400):
            at = np.arange(3) * 10_000 + t
            writer.append(
                {
                    "observation": at,
                    "action": at,
                    "reward": np.zeros(3),
                    "terminated": [False] * 3,
                    "truncated": [False] * 3,
                }
            )
            if len(replay) >= 4:
                batch = replay.sample(4).data
                np.testing.assert_array_equal(batch["action"], batch["action"][:, :1] + np.arange(5))
                np.testing.assert_array_equal(batch["observation"], batch["action"][:, :1] + np.arange(6))
                seen += batch["action"][:, 0].tolist()
        assert len(seen) == len(set(seen)) > 200
        for stream in range(3):  # each stream's in order, none left out
            own = [action for action in seen if action // 10_000 == stream]
            assert own == list(range(stream * 10_000, stream * 10_000 + 5 * len(own), 5))


# --- prioritized and uniform


@pytest.mark.parametrize("draws", ["stratified", "independent"])
@pytest.mark.parametrize("sampler", ["prioritized", "uniform"])
def test_frequencies_are_the_probabilities(draws, sampler):
    rng = np.random.default_rng(1)
    magnitudes = rng.random(300) * 5
    with make(1000, sampler=sampler, draws=draws, alpha=0.6, eps=0.01, seed=3) as replay:
        replay.writer().extend(rows(0, 300), priorities=magnitudes)
        expected = (magnitudes + 0.01) ** (0.6 if sampler == "prioritized" else 0.0)
        expected /= expected.sum()
        counts = np.zeros(300)
        for _ in range(400):
            batch = replay.sample(250)
            np.testing.assert_allclose(batch.probabilities, expected[batch.data["id"]], rtol=1e-9)
            counts += np.bincount(batch.data["id"], minlength=300)
        chi2 = ((counts - 1e5 * expected) ** 2 / (1e5 * expected)).sum()
        assert chi2 < 400 if draws == "independent" else chi2 < 299  # 299 degrees of freedom, sd 24.5


def test_independent_draws_vary_more_than_stratified_ones():
    spread = {}
    for draws in ("stratified", "independent"):
        with make(1000, draws=draws) as replay:
            replay.writer().extend(rows(0, 100), priorities=np.ones(100))
            counts = np.stack([np.bincount(replay.sample(100).data["id"], minlength=100) for _ in range(300)])
            spread[draws] = counts.var()
    assert spread["stratified"] < 0.2 * spread["independent"]
    assert spread["independent"] == pytest.approx(0.99, rel=0.1)  # of a binomial, n p (1 - p)


def test_weights_are_normalised_as_asked():
    magnitudes = np.array([0.5, 1.0, 2.0, 4.0, 1e-3])
    with make(100, seed=5) as replay:
        replay.writer().extend(rows(0, 5), priorities=magnitudes)
        probabilities = magnitudes / magnitudes.sum()
        raw = (5 * probabilities) ** -0.7
        for _ in range(20):
            for normalize, largest in (("none", 1.0), ("buffer", raw.max()), ("batch", None)):
                batch = replay.sample(3, beta=0.7, normalize=normalize)
                ids = batch.data["id"]
                np.testing.assert_allclose(batch.weights, raw[ids] / (largest or raw[ids].max()), rtol=1e-5)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_buffer_minimum_follows_updates_and_evictions(seed):
    rng = np.random.default_rng(seed)
    with make(256, writers=1) as replay:
        writer, known = replay.writer(), {}
        for turn in range(30):
            count = int(rng.integers(1, 40))
            magnitudes = rng.random(count) + 0.01
            writer.extend(rows(1000 * turn, count), priorities=magnitudes)
            batch = replay.sample(32, beta=1.0, normalize="buffer")
            total = (batch.probabilities[0] ** -1) * 1.0
            priorities = batch.probabilities * total  # relative to the first
            least = (batch.weights * priorities).astype("f4")
            np.testing.assert_allclose(least, least[0], rtol=1e-4)  # w p is the least priority for every item
            assert (batch.weights <= 1 + 1e-6).all()
            known.update(zip(batch.keys.tolist(), rng.random(32) + 0.01, strict=True))
            replay.update_priorities(batch.keys, np.array([known[k] for k in batch.keys.tolist()]))
            everything = replay.sample(4096, beta=1.0, normalize="buffer")
            if len(np.unique(everything.keys)) == len(replay):
                assert everything.weights.max() == pytest.approx(1.0, rel=1e-6)


# --- removers


def test_proportional_removal_follows_the_power_of_the_priority():
    """Survivors of many removals: an item of mass m stays with probability about exp(-m x)."""
    rng = np.random.default_rng(0)
    gone = np.zeros(2)
    for seed in range(40):
        with make(400, alpha=0.6, eps=0.0, remover="proportional", remover_alpha=-0.4, seed=seed, writers=1) as replay:
            magnitudes = np.where(rng.random(400) < 0.5, 1.0, 32.0)  # 32^-0.4 = 1/4
            writer = replay.writer()
            writer.extend(rows(0, 400), priorities=magnitudes)
            assert len(replay) == 400
            writer.extend(rows(1000, 20), priorities=np.full(20, 1e9))  # hardly ever removed: mass 1/4000
            assert len(replay) == 400
            batch = replay.sample(1)
            assert replay.update_priorities(batch.keys, [1.0]).applied == 1
            left = survivors(replay)
            for kind, value in enumerate((1.0, 32.0)):
                gone[kind] += sum(1 for i in np.flatnonzero(magnitudes == value) if i not in left)
    assert gone.sum() == pytest.approx(40 * 20, abs=40)
    assert gone[0] / gone[1] == pytest.approx(4.0, rel=0.35)


def survivors(replay):
    """Ids of all items: what was drawn gets priority zero, until nothing is left to draw."""
    ids = set()
    while True:
        try:
            batch = replay.sample(400, timeout=0.0)
        except WaitTimeout:
            return ids
        replay.update_priorities(batch.keys, np.zeros(400))
        ids |= set(batch.data["id"].tolist())


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_long_lived_items_do_not_bend_proportional_removal(spread):
    """Many generations against an exact simulation. Heavy tails: large priorities stay long, small ones go at once."""
    capacity, step = 1000, 40
    rng, tails = np.random.default_rng(1), np.random.default_rng(0)
    known, born = np.empty(0), np.empty(0, int)
    with make(capacity, remover="proportional", alpha=0.6, eps=1e-6, writers=1) as replay:
        writer = replay.writer()
        for turn in range(20 * capacity // step):
            magnitudes = np.exp(spread * tails.normal(size=step))
            writer.extend({"id": np.full(step, turn), "pair": np.zeros((step, 2), "f4")}, priorities=magnitudes)
            assert len(replay) == min(capacity, (turn + 1) * step)
            known, born = np.append(known, magnitudes), np.append(born, np.full(step, turn))
            if len(known) > capacity:
                mass = (known + 1e-6) ** -0.4
                gone = rng.choice(len(known), len(known) - capacity, replace=False, p=mass / mass.sum())
                known, born = np.delete(known, gone), np.delete(born, gone)
        turns, found = {}, 0
        while found < 25:  # all of them, found by drawing until nothing new comes
            batch = replay.sample(1000)
            before = len(turns)
            turns.update(zip(batch.keys.tolist(), batch.data["id"].tolist(), strict=True))
            replay.update_priorities(batch.keys, np.full(1000, 1e-9))
            found = found + 1 if len(turns) == before else 0
        ours = np.array(list(turns.values()))
        assert len(ours) == capacity
        last = 20 * capacity // step
        assert (last - ours.mean()) == pytest.approx(last - born.mean(), rel=0.15)
        assert np.percentile(last - ours, 90) == pytest.approx(np.percentile(last - born, 90), rel=0.2)


def test_proportional_removal_keeps_books_and_memory():
    with make(512, remover="proportional", alpha=0.6, eps=1e-3, writers=1) as replay:
        rng, writer = np.random.default_rng(2), replay.writer()
        stale = applied = 0
        for turn in range(400):
            writer.extend(rows(50 * turn, 50), priorities=rng.random(50))
            batch = replay.sample(64)
            assert_whole(batch)
            writer.extend(rows(10**7 + 50 * turn, 50), priorities=rng.random(50))
            done = replay.update_priorities(batch.keys, rng.random(64))
            applied, stale = applied + done.applied, stale + done.stale
            assert len(replay) == min(512, 100 * (turn + 1))
            assert replay.core.native.check() == 0.0
        stats = replay.stats()
        assert stats["evicted"] == 100 * 400 - 512
        assert stale > 1000
        assert applied > 1000


def test_a_soft_capacity_is_trimmed_every_so_many_batches():
    with make(640, trim_every=10, writers=1) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 640))
        sizes = []
        for turn in range(40):
            writer.extend(rows(1000 * (turn + 1), 12))
            replay.sample(8)
            sizes.append(len(replay))
        trimmed = sizes[9::10]
        assert all(640 - replay.stats()["chunk"] < size <= 640 for size in trimmed)
        assert max(sizes) > 700
        writer.extend(rows(10**6, 5000))
        assert 640 < len(replay) <= 800  # a quarter more at most, however much comes between two trims


# --- ownership


def sample_once(replay, pipe):
    try:
        pipe.send(len(replay.sample(16).keys))
        pipe.recv()
    except Exception as error:
        pipe.send(repr(error))


def test_a_maker_that_only_filled_the_replay_lets_a_sampler_in():
    with make(640, writers=2) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 5000))  # beyond capacity: the maker makes room
        assert replay.owner_pid == os.getpid()
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=sample_once, args=(replay, theirs), daemon=True)
        process.start()
        assert ours.poll(120)
        assert ours.recv() == 16
        assert replay.owner_pid == process.pid
        writer.extend(rows(10_000, 5000))  # the sampler makes room now
        with pytest.raises(OwnershipError):
            replay.sample(4)
        ours.send(None)
        process.join(120)
        assert len(replay.sample(4).keys) == 4


def test_a_maker_that_samples_does_not():
    with make(640, writers=2) as replay:
        replay.writer().extend(rows(0, 5000))
        replay.sample(4)
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=sample_once, args=(replay, theirs), daemon=True)
        process.start()
        assert ours.poll(120)
        assert "owns this replay" in ours.recv()
        process.join(10)


def test_a_maker_yields_while_its_own_thread_writes():
    with make(640) as replay:
        stop = threading.Event()

        def write():
            writer = replay.writer()
            turn = 0
            while not stop.is_set():
                writer.extend(rows(turn, 100))
                turn += 100

        thread = threading.Thread(target=write)
        thread.start()
        try:
            while not replay.owner_pid:
                time.sleep(0.01)
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=sample_once, args=(replay, theirs), daemon=True)
            process.start()
            assert ours.poll(120)
            assert ours.recv() == 16
            ours.send(None)
            process.join(10)
        finally:
            stop.set()
            thread.join(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "newest"}, "one of 'prioritized', 'uniform', 'fifo', 'lifo'"),
        ({"sampler": "fifo", "samples_per_insert": 2.0}, "samples_per_insert=2.0 must be left out"),
        ({"sampler": "fifo", "remover": "proportional"}, "evicts what it samples"),
        ({"remover": "proportional", "alpha": 0.0}, "needs priorities"),
        ({"remover": "proportional", "sampler": "uniform"}, "needs priorities"),
        ({"trim_every": 0}, "trim_every=0 must be between 1"),
        ({"alpha": "x"}, "alpha='x' must be a number"),
        ({"alpha": float("nan")}, "alpha=nan must be between"),
        ({"draws": None}, "draws=None must be one of"),
        ({"length": 1}, "left out with kind='rows'"),
        ({"burn_in": 1}, "left out with kind='rows'"),
        ({"stride": 1}, "left out with kind='rows'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_wrong_arguments_of_sample_are_named():
    with make() as replay:
        replay.writer().extend(rows(0, 10))
        with pytest.raises(ConfigError, match="normalize='max' must be one of"):
            replay.sample(4, normalize="max")
        with pytest.raises(ConfigError, match="beta=-1"):
            replay.sample(4, beta=-1)
    for wrong in (2.0, "4", True, 0):
        with make() as replay, pytest.raises(ConfigError, match="an integer of at least 1"):
            replay.sample(wrong)
    with make(10, sampler="fifo") as replay, pytest.raises(ConfigError, match="more than the 10 items"):
        replay.sample(11)
