"""Several shards are sampled as one replay would be: the same probabilities and weights, priorities to their items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from open_replays import ALPHA, close_all, filled, kept

from apexrl.errors import ConfigError, PriorityError, WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import Answer, ReadyAnswer, Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient


def spread(priorities: NDArray[np.float64], shards: Sequence[int], **options: Any) -> ShardedReplay:
    """One sharded replay over items cut as ``shards`` says."""
    ends, first = [], 0
    for i, size in enumerate(shards):
        ends.append(LocalClient(filled(priorities[first : first + size], first, seed=i)))
        first += size
    return ShardedReplay(ends, capacity=max(64, len(priorities)), **options)


def chi_square(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Standard deviations by which χ² lies above its mean, as if draws were independent (stratified ones lie lower)."""
    there = expected > 0
    freedom = int(there.sum()) - 1
    value = float(((counts[there] - expected[there]) ** 2 / expected[there]).sum())
    return (value - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("shards", [[400], [200, 200], [10, 300, 90], [100, 0, 250, 50]])
def test_items_are_drawn_as_from_one_replay(shards: list[int], stratified: bool) -> None:
    rng = np.random.default_rng(3)
    priorities = rng.exponential(size=400) ** 2
    priorities[380:] *= 20.0  # much of the mass lies at the end, which is one shard's
    replay = spread(priorities, shards, stratified=stratified, seed=5)
    batches, size = 600, 64
    counts = np.zeros(400, np.int64)
    for _ in range(batches):
        counts += np.bincount(replay.sample(size, timeout=5.0).data["number"], minlength=400)
    powered = priorities**ALPHA
    assert chi_square(counts, batches * size * powered / powered.sum()) < 4.0


def test_a_wrong_choice_of_shards_would_be_seen() -> None:
    """The χ² of the test before is no formality: shards chosen by their number of items fail it."""
    rng = np.random.default_rng(3)
    priorities = rng.exponential(size=400) ** 2
    priorities[380:] *= 20.0
    replay = spread(priorities, [380, 20], seed=5)
    replay._spread = lambda masses, count: np.asarray([61, 3])  # type: ignore[method-assign]
    counts = np.zeros(400, np.int64)
    for _ in range(300):
        counts += np.bincount(replay.sample(64, timeout=5.0).data["number"], minlength=400)
    powered = priorities**ALPHA
    assert chi_square(counts, 300 * 64 * powered / powered.sum()) > 50.0


def test_weights_are_those_of_one_replay() -> None:
    priorities = np.random.default_rng(1).exponential(size=300)
    powered = priorities**ALPHA
    replay = spread(priorities, [50, 250])
    batch = replay.sample(128, beta=0.6, normalize="none", timeout=5.0)
    chances = powered[batch.data["number"]] / powered.sum()
    np.testing.assert_allclose(batch.probabilities, chances, rtol=1e-6)
    np.testing.assert_allclose(batch.weights, (300 * chances) ** -0.6, rtol=1e-5)
    again = replay.sample(128, beta=0.6, timeout=5.0)
    assert again.weights.max() == 1.0


class Stale:
    """An end whose shard has more mass than its answers say: news of it are late."""

    def __init__(self, shard: Shard, factor: float) -> None:
        self._end, self._factor = LocalClient(shard), factor

    def draw(self, count: int, until: int | None) -> Answer:
        answer = self._end.draw(count, until)
        standing = answer.take().status
        return ReadyAnswer(answer.take()._replace(status=standing._replace(mass=standing.mass * self._factor)))

    def update(self, *args: Any) -> Answer:
        return self._end.update(*args)


def test_weights_correct_for_a_mass_that_was_known_wrongly() -> None:
    """Σ over draws of f(i) / (N P(i)) is the plain mean of f, whatever the shards were thought to weigh."""
    priorities = np.random.default_rng(2).exponential(size=300) + 0.05
    halves = [filled(priorities[:150], 0, seed=1), filled(priorities[150:], 150, seed=2)]
    replay = ShardedReplay([Stale(halves[0], 4.0), LocalClient(halves[1])], capacity=300, seed=3)
    total = rows = 0.0
    for _ in range(600):
        batch = replay.sample(32, beta=1.0, normalize="none", timeout=5.0)
        total += float((batch.weights * (batch.data["number"] < 150)).sum())
        rows += len(batch)
    assert total / rows == pytest.approx(0.5, abs=0.04)
    batch = replay.sample(4096, timeout=5.0)
    assert (batch.data["number"] < 150).mean() > 0.7  # it was believed


@hypothesis_settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 0),
    size=st.integers(1, 50),
    ahead=st.integers(0, 3),
    data=st.data(),
)
def test_priorities_go_back_to_their_items(sizes: list[int], size: int, ahead: int, data: Any) -> None:
    items = sum(sizes)
    model = np.asarray(data.draw(st.lists(st.floats(0.1, 10.0), min_size=items, max_size=items)))
    replay = spread(model, sizes, ahead=ahead)
    for _ in range(4):
        batch = replay.sample(size, timeout=5.0)
        numbers = batch.data["number"]
        assert len(numbers) == size
        assert (numbers < items).all()
        fresh = np.random.default_rng(0).uniform(0.1, 10.0, size)
        done = replay.update_priorities(batch.keys, fresh)
        assert done == (size, 0)
        model[numbers] = fresh  # of a number drawn twice the last counts, in both
    for _ in range(ahead + 1):
        replay.sample(size, timeout=5.0)  # asked for before the last update
    batch = replay.sample(size, timeout=5.0)
    powered = model**ALPHA
    np.testing.assert_allclose(batch.probabilities, powered[batch.data["number"]] / powered.sum(), rtol=1e-5)
    stats = replay.stats()
    assert stats["applied"] == 4 * size
    assert stats["stale"] == 0
    assert stats["size"] == items
    close_all()


def test_bad_priorities_name_their_row_and_change_nothing() -> None:
    replay = spread(np.ones(100), [50, 50])
    batch = replay.sample(8, timeout=5.0)
    with pytest.raises(PriorityError, match="row 3 is nan"):
        replay.update_priorities(batch.keys, np.asarray([1, 1, 1, np.nan, 1, 1, 1, 1.0]))
    assert replay.stats()["applied"] == 0
    assert replay.update_priorities(batch.keys + np.uint64(1 << 40), np.ones(8)) == (0, 8)


def queue(numbers: range) -> Shard:
    replay = Replay(64, {"number": Field((), "int64")}, sampler="fifo", writers=1)
    kept(replay)
    if len(numbers):
        replay.writer().extend({"number": np.asarray(numbers)})
    return Shard(replay)


@pytest.mark.parametrize("ahead", [0, 2])
def test_queues_give_every_item_once(ahead: int) -> None:
    ends = [LocalClient(queue(range(37))), LocalClient(queue(range(37, 37))), LocalClient(queue(range(37, 60)))]
    replay = ShardedReplay(ends, capacity=64, sampler="fifo", ahead=ahead)
    seen: list[int] = []
    with pytest.raises(WaitTimeout, match="fewer than the 8"):
        while True:
            batch = replay.sample(8, timeout=0.1)
            assert (batch.weights == 1.0).all()
            seen += batch.data["number"].tolist()
    assert len(seen) == 56
    assert len(set(seen)) == 56
    for part in (range(37), range(37, 60)):  # each shard's own order holds
        own = [number for number in seen if number in part]
        assert own == sorted(own)


class Frozen(LocalClient):
    """Gives what cannot be written to, as an object store does."""

    def draw(self, count: int, until: int | None) -> Answer:
        answer = super().draw(count, until)
        for values in answer.take().data.values():
            values.flags.writeable = False
        return answer


@pytest.mark.parametrize("end", [LocalClient, Frozen])
def test_a_batch_of_one_shard_is_the_callers(end: type[LocalClient]) -> None:
    """Its arrays go through as they are, where they may be written to."""
    replay = ShardedReplay([end(filled(np.ones(100), 0))], capacity=100, ahead=2)
    batches = [replay.sample(16) for _ in range(4)]
    numbers = [batch.data["number"] for batch in batches]
    copies = [values.copy() for values in numbers]
    for values in numbers:
        values += 1000
    replay.sample(16)
    for values, copy in zip(numbers, copies, strict=True):
        np.testing.assert_array_equal(values, copy + 1000)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one shard"):
        ShardedReplay([], capacity=10)
    limited = Replay(64, {"number": Field((), "int64")}, samples_per_insert=2.0)
    kept(limited)
    with pytest.raises(ConfigError, match="cannot have a limiter of its own"):
        Shard(limited)
    replay = spread(np.ones(10), [10])
    with pytest.raises(ConfigError, match="normalize"):
        replay.sample(4, normalize="buffer")
    with pytest.raises(ConfigError, match="batch_size"):
        replay.sample(0)
