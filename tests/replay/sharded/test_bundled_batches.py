"""Bundled batches: probabilities and weights as without bundles, priorities to their items, sizes of bundles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from open_replays import ALPHA, kept

from apexrl.errors import ConfigError, PriorityError, SpecError
from apexrl.replay import Field, Replay
from apexrl.replay.layout import Layout
from apexrl.replay.sharded import bundled_batches
from apexrl.replay.sharded.bundled_batches import BundledBatches
from apexrl.replay.sharded.shard import Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient

FIELDS = {"number": Field((), "int64")}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that bundles read."""
    now = [100.0]
    monkeypatch.setattr(bundled_batches.time, "monotonic", lambda: now[0])
    return now


def shards_of(priorities: NDArray[np.float64], cuts: list[int], **options: Any) -> list[Shard]:
    found = []
    for first, last in zip([0, *cuts], [*cuts, len(priorities)], strict=True):
        replay = Replay(512, FIELDS, alpha=ALPHA, eps=0.0, seed=first, writers=1, **options)
        kept(replay)
        replay.writer().extend({"number": np.arange(first, last)}, priorities=priorities[first:last])
        found.append(Shard(replay))
    return found


def spread(priorities: NDArray[np.float64], cuts: list[int], **options: Any) -> BundledBatches:
    ends = [LocalClient(shard) for shard in shards_of(priorities, cuts, draws="independent")]
    return BundledBatches(
        ShardedReplay(ends, capacity=1000, stratified=False, layout=Layout(FIELDS, "rows", 1, 0), **options)
    )


def test_items_are_drawn_as_from_one_replay_and_weighted_so(clock: list[float]) -> None:
    rng = np.random.default_rng(1)
    priorities = rng.exponential(size=200) ** 2 + 1e-3
    replay = spread(priorities, [30, 120], ahead=2)
    powered = priorities**ALPHA
    chances = powered / powered.sum()
    size, batches = 32, 4000
    counts = np.zeros(200)
    for _ in range(batches):
        batch = replay.sample(size, beta=0.5)
        numbers = batch.data["number"]
        np.testing.assert_allclose(batch.probabilities, chances[numbers], rtol=1e-6)
        raw = (200 * chances[numbers]) ** -0.5
        np.testing.assert_allclose(batch.weights, raw / raw.max(), rtol=1e-5)  # its own maximum, not the bundle's
        counts += np.bincount(numbers, minlength=200)
    expected = size * batches * chances
    keep = expected > 5
    chi = float(((counts - expected) ** 2 / expected)[keep].sum())
    assert (chi - keep.sum()) / np.sqrt(2 * keep.sum()) < 4.0


def test_raw_weights_and_filled_arrays_are_those_of_the_batch() -> None:
    from apexrl.replay.batch import ArraySet, aligned

    replay = spread(np.arange(1.0, 101.0), [50])
    batch = replay.sample(16, beta=1.0, normalize="none")
    np.testing.assert_allclose(batch.weights, 1.0 / (100 * batch.probabilities), rtol=1e-5)
    assert replay.layout is not None
    arrays = ArraySet(None, replay.layout, 16, aligned)
    replay.fill(arrays, 16, 1.0, "none", 5.0)
    numbers = arrays.named["number"]
    powered = np.arange(1.0, 101.0) ** ALPHA
    np.testing.assert_allclose(arrays.fixed[1], (powered / powered.sum())[numbers], rtol=1e-6)
    np.testing.assert_allclose(arrays.fixed[2], 1.0 / (100 * arrays.fixed[1]), rtol=1e-5)
    assert len(set(arrays.fixed[0].tolist())) == 16


def test_priorities_reach_their_items_when_the_load_is_used_up(clock: list[float]) -> None:
    replay = spread(np.ones(60), [20], ahead=1)
    wanted = np.ones(60)
    for turn in range(40):
        batch = replay.sample(8)
        numbers = batch.data["number"]
        values = 1.0 + numbers % 5 + turn % 3
        replay.update_priorities(batch.keys, values)
        wanted[numbers] = values
    size = replay._batches
    assert size == 32
    waiting = sum(map(len, replay._keys))
    assert 0 < waiting < size * 8
    clock[0] += 1.0  # so long ago that it is not waited for any more
    replay.update_priorities(batch.keys, values)
    assert not replay._keys
    replay.sample(8, timeout=5.0)
    held = replay._replay.sample(4000)
    found = np.zeros(60)
    found[held.data["number"]] = held.probabilities
    powered = wanted**ALPHA
    seen = found > 0
    assert seen.sum() > 55
    assert np.corrcoef(found[seen], powered[seen])[0, 1] > 0.9
    assert replay.unsent == 0


def test_bundles_are_as_large_as_what_is_used_soon(clock: list[float]) -> None:
    replay = spread(np.ones(100), [50])
    sizes: list[int] = []

    def use(seconds: float, count: int) -> None:
        for _ in range(count):
            replay.sample(10)
            sizes.append(replay._batches)
            clock[0] += seconds

    use(1e-4, 100)
    assert sizes[:8] == [1, 2, 4, 4, 8, 8, 8, 8]  # of the next one
    assert sizes[-1] == 32
    use(1.0, 100)
    assert sizes[-1] == 1


def test_large_batches_come_one_by_one(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setattr(bundled_batches, "_MAX_BYTES", 8 * 10 * 4)
    replay = spread(np.ones(100), [50])
    for _ in range(50):
        replay.sample(10)
    assert replay._batches == 4  # 40 numbers of 8 bytes


def test_a_load_of_one_batch_is_handed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of images are megabytes: dealing them out would copy them once more."""
    monkeypatch.setattr(bundled_batches, "_MAX_BYTES", 0)
    replay = spread(np.arange(1.0, 101.0), [50], ahead=1)
    made: list[Any] = []
    draw = replay._replay.sample
    monkeypatch.setattr(replay._replay, "sample", lambda *size, **how: made.append(draw(*size, **how)) or made[-1])
    given = [replay.sample(10) for _ in range(5)]
    assert [id(batch) for batch in given] == [id(batch) for batch in made]
    assert all(batch.weights.max() == 1.0 for batch in given)


def test_another_size_or_exponent_begins_a_load_of_its_own(clock: list[float]) -> None:
    replay = spread(np.ones(100), [50])
    for _ in range(20):
        replay.sample(10)
    assert len(replay.sample(7)) == 7
    raw = replay.sample(7, beta=1.0, normalize="none")
    np.testing.assert_allclose(raw.weights, 1.0 / (100 * raw.probabilities), rtol=1e-5)


def test_what_makes_no_sense_is_refused_at_once() -> None:
    replay = spread(np.ones(100), [50])
    batch = replay.sample(4)
    with pytest.raises(PriorityError, match="priority of row 1 is nan"):
        replay.update_priorities(batch.keys, np.array([1.0, np.nan, 1.0, 1.0]))
    with pytest.raises(SpecError, match="keys must be"):
        replay.update_priorities(batch.keys.astype(np.int64), np.ones(4))
    with pytest.raises(ConfigError, match="batch_size=0"):
        replay.sample(0)
    with pytest.raises(ConfigError, match="leave out --save-replay"):
        replay.save("x")
    assert replay.update_priorities(batch.keys, np.ones(4)).applied == 4
    assert len(replay) == 100
    assert replay.stats()["size"] == 100
