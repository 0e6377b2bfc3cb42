"""Batches of several shards, served to several learners: as one replay's, and priorities back to their items."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from apexrl.errors import ConfigError, WaitTimeout
from apexrl.replay import BatchServer, Field, Replay
from apexrl.replay.layout import Layout
from apexrl.replay.sharded.shard import Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient

FIELDS = {"number": Field((), "int64"), "pair": Field((2,), "float32")}
LAYOUT = Layout(FIELDS, "rows", 1)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def shards_of(stack: ExitStack, priorities: NDArray[np.float64], sizes: Sequence[int]) -> list[Shard]:
    """Items 0, 1, … cut as ``sizes`` says."""
    shards, first = [], 0
    for seed, size in enumerate(sizes):
        replay = stack.enter_context(Replay(1000, FIELDS, alpha=1.0, eps=0.0, seed=seed, writers=1))
        own = np.arange(first, first + size)
        pair = np.stack([own, -own], 1).astype("f4")
        replay.writer().extend({"number": own, "pair": pair}, priorities=priorities[own])
        shards.append(Shard(replay))
        first += size
    return shards


def sampler(shards: Sequence[Shard], **options: Any) -> ShardedReplay:
    return ShardedReplay([LocalClient(shard) for shard in shards], capacity=1000, layout=LAYOUT, **options)


@contextmanager
def serving(server: BatchServer) -> Iterator[BatchServer]:
    """It steps in a thread of this process, which may only end cleanly."""
    stop, errors = threading.Event(), []

    def serve() -> None:
        try:
            server.run(stop.is_set)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        thread.join(10.0)
        server.close()
        assert not errors


def test_all_learners_together_draw_as_from_one_replay(stack: ExitStack) -> None:
    priorities = np.random.default_rng(7).exponential(size=300) ** 2 + 1e-3
    replay = sampler(shards_of(stack, priorities, [30, 200, 70]), ahead=2, seed=3)
    counts, rows = np.zeros(300, np.int64), 0
    with serving(replay.serve(learners=3, batch_size=64, beta=0.6)) as server:
        ends = [stack.enter_context(server.learner(i)) for i in range(3)]
        for _ in range(120):
            for end in ends:
                batch = end.sample(64, beta=0.6, timeout=30.0)
                numbers = batch.data["number"]
                np.testing.assert_array_equal(batch.data["pair"][:, 1], -numbers.astype("f4"))
                chances = priorities[numbers] / priorities.sum()
                np.testing.assert_allclose(batch.probabilities, chances, rtol=1e-5)
                raw = chances**-0.6
                np.testing.assert_allclose(batch.weights, raw / raw.max(), rtol=1e-4)
                counts += np.bincount(numbers, minlength=300)
                rows += 64
                del batch, numbers
    expected = rows * priorities / priorities.sum()
    value = float(((counts - expected) ** 2 / expected).sum())
    assert (value - 299) / np.sqrt(2 * 299) < 4.0


def test_priorities_of_every_learner_reach_their_items(stack: ExitStack) -> None:
    replay = sampler(shards_of(stack, np.ones(60), [20, 40]))
    chosen: set[int] = set()
    server = replay.serve(learners=2, batch_size=8)
    ends = [stack.enter_context(server.learner(i)) for i in range(2)]
    for end in ends:
        with pytest.raises(WaitTimeout):
            end.sample(timeout=0.0)  # it takes its place
    for _ in range(20):
        server.step(0.01)
    for end in ends:
        batch = end.sample(timeout=5.0)
        chosen |= set(batch.data["number"].tolist())
        end.update_priorities(batch.keys, np.full(8, 1e6))
    for _ in range(10):
        server.step(0.01)
    assert server.stats()["priorities_applied"] == 16
    for _ in range(6):  # those of before are still asked for
        drawn = replay.sample(16, timeout=5.0)
    assert set(drawn.data["number"].tolist()) <= chosen
    server.close()


@pytest.mark.parametrize("how", ["made anew", "in another process"])
def test_keys_of_the_sampler_before_mean_nothing_to_its_successor(stack: ExitStack, how: str) -> None:
    """Learners still hold its batches, and send their priorities to whoever serves."""
    shards = shards_of(stack, np.ones(60), [20, 40])
    before = sampler(shards)
    if how == "made anew":
        after = sampler(shards)
    else:
        after = pickle.loads(pickle.dumps(sampler_without_ends()))
        after._clients = before._clients
        assert after._limiter._shards is after._shards
        before._keys._serial = 0  # as that of the copy was, on its way
    keys = [before.sample(8, timeout=5.0).keys for _ in range(5)]
    others = [after.sample(8, timeout=5.0).keys for _ in range(5)]
    assert after.update_priorities(np.concatenate(keys), np.ones(40)) == (0, 40)
    assert after.update_priorities(np.concatenate(others), np.ones(40)) == (40, 0)


def sampler_without_ends() -> ShardedReplay:
    """As it travels: shards are found where it arrives."""
    replay = ShardedReplay([LocalClient.__new__(LocalClient)] * 2, capacity=1000, layout=LAYOUT)
    replay._keys._serial = 0
    return replay


def test_what_cannot_be_served_or_saved_is_refused(stack: ExitStack) -> None:
    shards = shards_of(stack, np.ones(60), [20, 40])
    ends = [LocalClient(shard) for shard in shards]
    with pytest.raises(ConfigError, match="layout="):
        ShardedReplay(ends, capacity=100).serve(2, 8)
    with pytest.raises(ConfigError, match="fifo replay cannot be served"):
        ShardedReplay(ends, capacity=100, sampler="fifo", layout=LAYOUT).serve(2, 8)
    with pytest.raises(ConfigError, match="normalize"):
        sampler(shards).serve(2, 8, normalize="buffer")
    with pytest.raises(ConfigError, match="--save-replay"):
        sampler(shards).save("somewhere")


@pytest.mark.parametrize(("held", "given"), [(9, 6), (6, 6), (4, 4)])
def test_a_queue_gives_no_more_at_once_than_its_capacity(
    held: int, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several writers in other processes may together bring more than fits."""
    with Replay(6, {"number": Field((), "int64")}, sampler="fifo", writers=1) as replay:
        replay.writer().extend({"number": np.arange(min(held, 6))}, priorities=np.ones(min(held, 6)))
        monkeypatch.setattr(Replay, "__len__", lambda self: held)
        assert len(Shard(replay).draw(8).keys) == given
