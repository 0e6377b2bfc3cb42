"""Draws by age: an item's chance halves with every half-life, in items or in weights versions."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl.errors import ConfigError
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"id": Field((), "int64"), "version": Field((), "int64")}


def make(capacity=640, **options):
    return Replay(capacity, FIELDS, **{"alpha": 0.0, "eps": 0.0, "writers": 1, **options})


def rows(first, count, version=0):
    return {"id": np.arange(first, first + count), "version": np.full(count, version)}


class Twin:
    """Every item that one writer ever inserted: its magnitude, and its youth in half-lives."""

    def __init__(self, items, versions):
        self.items, self.versions = items or np.inf, versions or np.inf
        self.magnitude, self.youth = np.empty(0), np.empty(0)

    def extend(self, magnitudes, version):
        numbers = np.arange(len(self.youth), len(self.youth) + len(magnitudes))
        self.magnitude = np.append(self.magnitude, magnitudes)
        self.youth = np.append(self.youth, numbers / self.items + version / self.versions)

    def assert_drawn_from(self, replay, batch):
        held = len(replay)  # the newest
        youth = self.youth[-held:]
        mass = self.magnitude[-held:] * 2.0 ** np.maximum(youth - youth.max(), -1000.0)
        expected = (mass / mass.sum())[batch.data["id"] - (len(self.youth) - held)]
        np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_probabilities_are_priority_times_age(data):
    """Over many half-lives: the native side moves its base several times."""
    share = data.draw(st.sampled_from([0.0, 0.004, 0.05, 3.0]))
    versions = data.draw(st.sampled_from([0.0, 5.0, 400.0] if share else [5.0, 400.0]))
    alpha = data.draw(st.sampled_from([0.0, 1.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    twin = Twin(share * 640, versions)
    with make(alpha=alpha, recency_half_life=share, lag_half_life=versions) as replay:
        writer, version = replay.writer(), 0
        for _ in range(data.draw(st.integers(1, 25))):
            count = int(rng.integers(1, 150))
            magnitudes = rng.random(count) + 0.1
            writer.extend(rows(len(twin.youth), count, version), priorities=magnitudes)
            twin.extend(magnitudes if alpha else np.ones(count), version)
            version += int(rng.integers(0, 60))
            batch = replay.sample(48, beta=1.0, normalize="none")
            twin.assert_drawn_from(replay, batch)
            np.testing.assert_allclose(batch.weights, 1.0 / (len(replay) * batch.probabilities), rtol=1e-4)
            fresh = rng.random(48) + 0.1
            assert replay.update_priorities(batch.keys, fresh).applied == 48
            if alpha:
                twin.magnitude[batch.data["id"]] = fresh  # of several values for one item, the last
            twin.assert_drawn_from(replay, replay.sample(48))
            assert replay.core.native.check() == 0.0


@pytest.mark.parametrize("draws", ["stratified", "independent"])
def test_frequencies_halve_with_every_half_life(draws):
    with make(1000, recency_half_life=0.05, draws=draws, seed=3) as replay:
        replay.writer().extend(rows(0, 300))
        expected = 0.5 ** (np.arange(299, -1, -1) / 50)
        expected *= 1e5 / expected.sum()
        counts = np.bincount(np.concatenate([replay.sample(250).data["id"] for _ in range(400)]), minlength=300)
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert chi2 < 400 if draws == "independent" else chi2 < 299  # 299 degrees of freedom, sd 24.5


def test_the_lag_is_that_of_the_weights_and_not_of_the_order():
    """An actor with old weights inserts last, and is drawn less often all the same."""
    with make(lag_half_life=10, writers=2) as replay:
        replay.writer().extend(rows(0, 50, version=120))
        replay.writer().extend(rows(50, 50, version=100))
        batch = replay.sample(200)
        old = batch.data["id"] >= 50
        np.testing.assert_allclose(batch.probabilities[~old], 0.8 / 50)
        np.testing.assert_allclose(batch.probabilities[old], 0.2 / 50)
        assert old.sum() == pytest.approx(40, abs=1)  # stratified


def test_a_transition_has_the_version_of_its_own_step():
    fields = {"observation": Field((), "int64"), "version": Field((), "int64")}
    with Replay(640, fields, kind="transition", n_step=3, stack=2, alpha=0.0, lag_half_life=1.0) as replay:
        writer = replay.writer()
        for t in range(33):
            step = {"observation": [t], "version": [t // 10], "reward": [0.0]}
            writer.append({**step, "terminated": [False], "truncated": [False]})
        batch = replay.sample(200)
        at = batch.data["observation"][:, 1]
        np.testing.assert_array_equal(batch.data["version"], at // 10)
        expected = 2.0 ** (np.arange(30) // 10)
        np.testing.assert_allclose(batch.probabilities, (expected / expected.sum())[at])


def test_proportional_removal_looks_at_priorities_and_not_at_age():
    with make(200, alpha=1.0, remover="proportional", remover_alpha=-8.0, recency_half_life=0.01) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 100), priorities=np.full(100, 2.0))
        writer.extend(rows(100, 200), priorities=np.full(200, 1.0))  # 256 times as likely to go, however young
        assert len(replay) == 200
        replay.update_priorities(replay.sample(1).keys, [1.0])
        assert replay.stats()["evicted"] == 100
        assert replay.core.native.check() == 0.0


def own_and_sample(replay, pipe):
    batch = replay.sample(64, beta=1.0)
    replay.update_priorities(batch.keys, np.full(64, 3.0))
    pipe.send(batch.data["id"].tolist())
    signal.pause()


def test_a_successor_of_a_killed_owner_draws_by_the_same_ages():
    twin = Twin(0.02 * 640, 0)
    with make(alpha=1.0, recency_half_life=0.02) as replay:
        writer, ours_theirs = replay.writer(), SPAWN.Pipe()
        for first in (0, 400):
            writer.extend(rows(first, 400), priorities=np.ones(400))
            twin.extend(np.ones(400), 0)
            replay.release()
            process = SPAWN.Process(target=own_and_sample, args=(replay, ours_theirs[1]), daemon=True)
            process.start()
            assert ours_theirs[0].poll(120)
            twin.magnitude[ours_theirs[0].recv()] = 3.0
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            twin.assert_drawn_from(replay, replay.sample(64))
            assert replay.core.native.check() == 0.0


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_loaded_replay_goes_on_exactly(tmp_path, alpha):
    with make(alpha=alpha, recency_half_life=0.01, lag_half_life=20.0, seed=4) as replay:
        for first in range(0, 2000, 100):
            replay.writer().extend(rows(first, 100, first // 10), priorities=np.linspace(0.1, 9, 100))
        replay.update_priorities(replay.sample(64).keys, np.linspace(0.1, 20, 64))
        replay.save(tmp_path / "replay")
        with Replay.load(tmp_path / "replay") as loaded:
            for _ in range(3):
                a, b = replay.sample(64), loaded.sample(64)
                np.testing.assert_array_equal(a.keys, b.keys)
                np.testing.assert_array_equal(a.probabilities, b.probabilities)
                assert replay.update_priorities(a.keys, np.ones(64)) == loaded.update_priorities(b.keys, np.ones(64))
            for one in (replay, loaded):
                one.writer().extend(rows(2000, 70, 200), priorities=np.ones(70))
            a, b = [
                dict(zip(x.data["id"], x.probabilities, strict=True)) for x in (replay.sample(640), loaded.sample(640))
            ]
            assert len(a.keys() & b.keys()) > 30
            for number in a.keys() & b.keys():
                assert a[number] == pytest.approx(b[number], rel=1e-9)
            assert loaded.core.native.check() == 0.0


def test_shards_are_drawn_from_as_one_replay():
    """Of two shards that began at different times; an item is as old as it is in its shard."""
    shards = [make(recency_half_life=0.05, seed=i) for i in range(2)]
    shards[0].writer().extend(rows(10_000, 9000))  # its base has moved, the other's not
    shards[0].writer().extend(rows(0, 64))
    shards[1].writer().extend(rows(64, 64))
    whole = ShardedReplay([LocalClient(Shard(one)) for one in shards], capacity=1280)
    batches = [whole.sample(500, beta=0.0) for _ in range(20)]
    drawn = np.concatenate([batch.data["id"] for batch in batches])
    counts = np.bincount(drawn[drawn < 128], minlength=128)
    assert counts[:64].sum() == pytest.approx(counts[64:].sum(), rel=0.05)
    for own in (counts[:64], counts[64:]):
        assert own[32:].sum() / own[:32].sum() == pytest.approx(2.0, rel=0.1)  # a half-life is 32 items
    for batch in batches:
        assert (batch.weights == 1.0).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recency_half_life": 0.1, "sampler": "fifo"}, "leave out recency_half_life= and lag_half_life="),
        ({"recency_half_life": -0.1}, "recency_half_life=-0.1 must be between 0 and"),
        ({"lag_half_life": float("nan")}, "lag_half_life=nan must be between 0 and"),
    ],
)
def test_what_has_no_meaning_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        make(**options)


def test_lag_needs_versions():
    for wrong in ({}, {"version": Field((2,), "int64")}, {"version": Field((), "float32")}):
        with pytest.raises(ConfigError, match="lag_half_life=5 needs the field 'version'"):
            Replay(100, {"id": Field((), "int64"), **wrong}, lag_half_life=5)
