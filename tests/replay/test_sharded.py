"""Several shards are sampled as one replay would be: the same probabilities and weights, priorities to their items."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from apexrl.errors import ClosedError, ConfigError, PriorityError, WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.sharded import ShardedReplay
from apexrl.replay.shards import Answer, Given, Here, Shard

ALPHA = 0.7
MADE: list[Replay] = []


def close_all() -> None:
    while MADE:
        MADE.pop().close()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def filled(priorities: NDArray[np.float64], first: int, seed: int = 0, **options: Any) -> Shard:
    """A shard whose items are numbered from ``first``."""
    replay = Replay(
        max(64, len(priorities)), {"number": Field((), "int64")}, alpha=ALPHA, eps=0.0, seed=seed, writers=1, **options
    )
    MADE.append(replay)
    if len(priorities):
        numbers = np.arange(first, first + len(priorities))
        replay.writer().extend({"number": numbers}, priorities=priorities)
    return Shard(replay)


def spread(priorities: NDArray[np.float64], shards: Sequence[int], **options: Any) -> ShardedReplay:
    """One sharded replay over items cut as ``shards`` says."""
    ends, first = [], 0
    for i, size in enumerate(shards):
        ends.append(Here(filled(priorities[first : first + size], first, seed=i)))
        first += size
    return ShardedReplay(ends, capacity=max(64, len(priorities)), **options)


def chi_square(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Standard deviations by which χ² lies above its mean, as if draws were independent (stratified ones lie lower)."""
    kept = expected > 0
    freedom = int(kept.sum()) - 1
    value = float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())
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
        self._end, self._factor = Here(shard), factor

    def draw(self, count: int, until: int | None) -> Answer:
        answer = self._end.draw(count, until)
        standing = answer.take().standing
        return Given(answer.take()._replace(standing=standing._replace(mass=standing.mass * self._factor)))

    def update(self, *args: Any) -> Answer:
        return self._end.update(*args)


def test_weights_correct_for_a_mass_that_was_known_wrongly() -> None:
    """Σ over draws of f(i) / (N P(i)) is the plain mean of f, whatever the shards were thought to weigh."""
    priorities = np.random.default_rng(2).exponential(size=300) + 0.05
    halves = [filled(priorities[:150], 0, seed=1), filled(priorities[150:], 150, seed=2)]
    replay = ShardedReplay([Stale(halves[0], 4.0), Here(halves[1])], capacity=300, seed=3)
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


class Losable:
    """An end that can lose its shard, and find another one in its place."""

    def __init__(self, make: Callable[[], Shard]) -> None:
        self._make = make
        self.end: Here | None = Here(make())

    def draw(self, count: int, until: int | None) -> Answer:
        return Lost() if self.end is None else self.end.draw(count, until)

    def update(self, *args: Any) -> Answer:
        return Lost() if self.end is None else self.end.update(*args)

    def come_back(self) -> None:
        self.end = Here(self._make())


class Lost:
    def ready(self, timeout: float) -> bool:
        return True

    def take(self) -> Any:
        raise ClosedError("lost")


def test_a_lost_shard_costs_its_items_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.replay.sharded._LOST_SECONDS", 0.0)
    fragile = Losable(lambda: filled(np.ones(100), 0))
    replay = ShardedReplay([fragile, Here(filled(np.ones(60), 100))], capacity=200, ahead=2)
    before = replay.sample(32, timeout=5.0)
    assert (before.data["number"] < 100).any()
    fragile.end = None
    for _ in range(8):
        batch = replay.sample(32, timeout=5.0)  # whole, as before
    assert (batch.data["number"] >= 100).all()
    np.testing.assert_allclose(batch.probabilities, 1 / 60)
    from_lost = before.data["number"] < 100
    done = replay.update_priorities(before.keys, np.ones(32))
    assert done == ((~from_lost).sum(), from_lost.sum())
    stats = replay.stats()
    assert (stats["size"], stats["lost_shards"], stats["lost_items"], stats["shards"]) == (60, 1, 100, 1)
    fragile.come_back()
    for _ in range(20):
        batch = replay.sample(32, timeout=5.0)
    assert (batch.data["number"] < 100).any()
    stats = replay.stats()
    assert (stats["size"], stats["inserted"], stats["shards"]) == (160, 260, 2)
    assert replay.update_priorities(before.keys, np.ones(32)).stale == from_lost.sum()  # not the new shard's items


def test_a_shard_that_came_back_unseen_is_another_one() -> None:
    fragile = Losable(lambda: filled(np.ones(100), 0))
    replay = ShardedReplay([fragile, Here(filled(np.ones(100), 100))], capacity=200)
    before = replay.sample(32, timeout=5.0)
    fragile.come_back()
    replay.sample(32, timeout=5.0)
    assert replay.update_priorities(before.keys, np.ones(32)).stale > 0
    assert replay.stats()["lost_shards"] == 1


def test_the_limiter_counts_all_shards_together() -> None:
    shards = [filled(np.ones(0), 0), filled(np.ones(0), 0)]
    writers = [shard.replay.writer() for shard in shards]
    replay = ShardedReplay(
        [Here(shard) for shard in shards], capacity=1000, min_size=40, samples_per_insert=2.0, insert_band=1.0
    )
    for writer in writers:
        with pytest.raises(WaitTimeout, match="items, fewer than the 40"):
            replay.sample(10, timeout=0.05)
        for row in range(30):  # each call lets a few more in
            writer.extend({"number": np.asarray([row])}, priorities=np.ones(1), timeout=5.0)
            replay._look(time.monotonic(), 0.0)
            replay._listen(time.monotonic())
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


def test_writers_wait_when_they_are_far_ahead_of_the_sampler() -> None:
    shards = [filled(np.ones(30), 0), filled(np.ones(30), 0)]
    writer = shards[0].replay.writer()
    replay = ShardedReplay([Here(s) for s in shards], capacity=1000, min_size=40, samples_per_insert=2.0)
    replay.sample(10, timeout=5.0)
    with pytest.raises(WaitTimeout):
        for _ in range(1000):
            writer.extend({"number": np.arange(1)}, priorities=np.ones(1), timeout=0.05)
    assert replay.stats()["inserted"] < 200
    for _ in range(4):
        replay.sample(10, timeout=5.0)
    writer.extend({"number": np.arange(1)}, priorities=np.ones(1), timeout=5.0)


def test_writers_of_all_shards_together_stay_within_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.replay.shard_books.IDLE_SECONDS", 1e6)  # a writer without a processor is not idle
    shards = [filled(np.ones(0), 0) for _ in range(3)]
    ends = [Here(shard) for shard in shards]
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


def queue(numbers: range) -> Shard:
    replay = Replay(64, {"number": Field((), "int64")}, sampler="fifo", writers=1)
    MADE.append(replay)
    if len(numbers):
        replay.writer().extend({"number": np.asarray(numbers)})
    return Shard(replay)


@pytest.mark.parametrize("ahead", [0, 2])
def test_queues_give_every_item_once(ahead: int) -> None:
    ends = [Here(queue(range(37))), Here(queue(range(37, 37))), Here(queue(range(37, 60)))]
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


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one shard"):
        ShardedReplay([], capacity=10)
    limited = Replay(64, {"number": Field((), "int64")}, samples_per_insert=2.0)
    MADE.append(limited)
    with pytest.raises(ConfigError, match="no limiter of its own"):
        Shard(limited)
    replay = spread(np.ones(10), [10])
    with pytest.raises(ConfigError, match="normalize"):
        replay.sample(4, normalize="buffer")
    with pytest.raises(ConfigError, match="batch_size"):
        replay.sample(0)


def test_a_new_sampler_goes_on_where_the_one_before_it_died() -> None:
    """A learner that begins anew knows what its shards have given already: their writers do not wait for that again."""
    shards = [filled(np.ones(0), 0), filled(np.ones(0), 0)]
    writers = [shard.replay.writer() for shard in shards]
    rule: dict[str, Any] = {"capacity": 1000, "min_size": 40, "samples_per_insert": 4.0, "insert_band": 0.5}

    def sampler() -> ShardedReplay:
        return ShardedReplay([Here(shard) for shard in shards], **rule)

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
    assert again._planned == sum(shard.replay.stats()["sampled"] for shard in shards)


class Held:
    """An end whose answers come when the test says so."""

    def __init__(self, shard: Shard) -> None:
        self.end = Here(shard)
        self.held: list[Later] = []
        self.hold = False

    def draw(self, count: int, until: int | None) -> Answer:
        return self._later(self.end.draw(count, until))

    def update(self, *args: Any) -> Answer:
        return self._later(self.end.update(*args))

    def _later(self, answer: Answer) -> Answer:
        if not self.hold:
            return answer
        self.held.append(Later(answer))
        return self.held[-1]


class Later:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.there = False

    def ready(self, timeout: float) -> bool:
        return self.there

    def take(self) -> Any:
        return self.answer.take()


@pytest.mark.parametrize("lost", [False, True], ids=["an answer", "a loss"])
def test_a_late_word_of_a_life_that_is_over_changes_nothing(lost: bool) -> None:
    one = Held(filled(np.ones(100), 0))
    replay = ShardedReplay([one], capacity=200)
    batch = replay.sample(32, timeout=5.0)
    one.hold = True
    replay.update_priorities(batch.keys, np.ones(32))  # its answer stays under way
    (late,) = one.held
    one.hold, one.end = False, Here(filled(np.ones(60), 100))
    replay._known[0].look = None
    replay._look(time.monotonic() + 1.0, 0.0)
    replay.sample(32, timeout=5.0)
    stats = replay.stats()
    assert (stats["size"], stats["inserted"], stats["lost_shards"], stats["lost_items"]) == (60, 160, 1, 100)
    late.there = True
    if lost:
        late.answer = Lost()
    replay.sample(32, timeout=5.0)
    now = replay.stats()
    names = ("size", "inserted", "shards", "lost_shards", "lost_items")
    assert [now[name] for name in names] == [60, 160, 1, 1, 100]
    assert not replay._known[0].updates


def test_a_late_answer_does_not_bring_a_lost_shard_back() -> None:
    one = Held(filled(np.ones(100), 0))
    replay = ShardedReplay([one, Here(filled(np.ones(50), 100))], capacity=200)
    batch = replay.sample(32, timeout=5.0)
    one.hold = True
    replay.update_priorities(batch.keys, np.ones(32))
    (late,) = one.held
    known = replay._known[0]
    known.lose(known.epoch, time.monotonic())
    late.there = True
    replay.sample(32, timeout=5.0)
    assert known.lost
    assert (replay.stats()["size"], replay.stats()["lost_shards"]) == (50, 1)


def test_a_sampler_without_any_shard_waits_and_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    fragile = Losable(lambda: filled(np.ones(100), 0))
    replay = ShardedReplay([fragile], capacity=200)
    replay.sample(8, timeout=5.0)
    fragile.end = None
    turns = []
    listen = replay._listen
    monkeypatch.setattr(replay, "_listen", lambda now: (turns.append(now), listen(now)))
    with pytest.raises(WaitTimeout, match="1 of 1 shards are lost"):
        replay.sample(8, timeout=0.3)
    assert len(turns) < 200  # each waits 5 ms
