"""Policy lag: which steps count, what is too old to be learned from, and what is told of the rest."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexrl.protocols import FRESH, Item
from apexrl.roles.batch_source import DirectBatches, PrefetchedBatches
from apexrl.roles.policy_lag import BINS, AgeLimit, LagMeter, lags_of

TRANSITION, UNROLL = Item(), Item("unroll", 3)


@pytest.fixture
def meter(stage: Any) -> LagMeter:
    return LagMeter(stage.context("learner", index=2))


def batch_of(versions: Any, mask: Any = None) -> Any:
    data = {"version": np.array(versions, np.int64)}
    if mask is not None:
        data["mask"] = np.array(mask, np.bool_)
    return SimpleNamespace(data=data, weights=np.ones(len(versions), np.float32))


# Which steps


def test_of_transitions_every_step_counts() -> None:
    lags, aged = lags_of(batch_of([5, 3, 8]), 10, TRANSITION)
    assert (lags.tolist(), aged) == ([5, 7, 2], 0)


def test_final_observations_padding_and_burn_in_do_not_count() -> None:
    batch = batch_of([[9, 0, 8], [4, 5, 0]], [[True, False, True], [True, True, False]])
    lags, aged = lags_of(batch, 10, UNROLL)
    assert (lags.tolist(), aged) == ([1, 2, 6, 5], 0)
    lags, aged = lags_of(batch, 10, Item("sequence", 2, 1, burn_in=1))
    assert (lags.tolist(), aged) == ([2, 5], 0)


def test_what_is_too_old_is_counted_apart() -> None:
    batch = batch_of([[9, 0, 8], [4, 5, 0]], [[True, False, True], [True, True, False]])
    fresh = AgeLimit(5, 10, UNROLL)(batch)
    lags, aged = lags_of(batch, 10, UNROLL, fresh)
    assert (lags.tolist(), aged) == ([1, 2, 5], 1)
    flat = batch_of([1, 9])
    lags, aged = lags_of(flat, 10, TRANSITION, AgeLimit(5, 10, TRANSITION)(flat))
    assert (lags.tolist(), aged) == ([1], 1)


# The limit


def test_old_transitions_have_no_weight_and_keep_their_place() -> None:
    limit, batch = AgeLimit(3, 10, TRANSITION), batch_of([10, 7, 6, 1])
    assert limit(batch).tolist() == [True, True, False, False]
    assert batch.weights.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert FRESH not in batch.data


def test_old_steps_of_unrolls_are_marked() -> None:
    limit, batch = AgeLimit(3, 10, UNROLL), batch_of([[10, 7, 6]], [[True] * 3])
    assert limit(batch).tolist() == [[True, True, False]]
    assert batch.data[FRESH].tolist() == [[True, True, False]]
    assert batch.weights.tolist() == [1.0]


class Source:
    """A replay whose every batch is of one version."""

    def __init__(self, version: int) -> None:
        self._version = version

    def sample(self, size: int, beta: float, timeout: float) -> Any:
        return batch_of([self._version] * size)


@pytest.mark.parametrize("ahead", [0, 4])
def test_batches_that_are_prepared_ahead_are_as_old_as_when_they_are_learned_from(ahead: int) -> None:
    """The version grows by one with every batch, so batch k of version 1 has lag k: those from 3 on are too old."""
    direct = DirectBatches(Source(1), None, 2, lambda: 0.4, 0.0, AgeLimit(2, 1, TRANSITION))  # type: ignore[arg-type]
    batches = PrefetchedBatches(direct, ahead, patience=5.0) if ahead else direct
    readies = [batches.next() for _ in range(6)]
    batches.close()
    assert [ready is not None and bool(ready.fresh.all()) for ready in readies] == [True] * 3 + [False] * 3  # type: ignore[union-attr]
    assert [float(ready.batch.weights.sum()) for ready in readies if ready] == [2.0] * 3 + [0.0] * 3


# What is told


def test_nothing_is_known_before_the_first_batch(meter: LagMeter) -> None:
    report = meter.report()
    assert all(math.isnan(value) for value in report["lag"] + report["run_lag"])
    assert report["lag_histogram"] == report["run_lag_histogram"] == {}
    assert (report["reporter"], report["generation"]) == ("learner-2", 0)


def test_mean_quantile_and_maximum_of_the_window_and_of_the_run(meter: LagMeter) -> None:
    first = np.arange(100, dtype=np.int64)
    second = np.full((4, 25), 1000, np.int64)
    meter.add(first)
    report = meter.report()
    assert report["lag"] == report["run_lag"] == [first.mean(), 94.0, 99]
    meter.add(second)
    report = meter.report()
    assert report["lag"] == [1000.0, 1000.0, 1000.0]
    assert report["run_lag"] == [np.append(first, second).mean(), 1000.0, 1000.0]
    assert meter.report()["lag_histogram"] == {}
    assert meter.report()["run_lag"][2] == 1000.0


def test_a_batch_without_steps_changes_nothing(meter: LagMeter) -> None:
    meter.add(np.zeros(0, np.int64))
    assert meter.report()["run_lag_histogram"] == {}
    meter.add(np.array([3]))
    meter.add(np.zeros((0, 5), np.int64))
    assert meter.report()["run_lag"] == [3.0, 3.0, 3.0]


@given(st.lists(st.lists(st.integers(0, 200_000), max_size=40), max_size=30))
def test_the_histogram_is_exact(batches: list[list[int]]) -> None:
    meter = LagMeter(SimpleNamespace(name="x", generation=0))  # type: ignore[arg-type]
    for lags in batches:
        meter.add(np.array(lags, np.int64))
    expected: dict[int, int] = {}
    for lag in (lag for lags in batches for lag in lags):
        least = max(bound for bound in BINS if bound <= lag)
        expected[least] = expected.get(least, 0) + 1
    report = meter.report()
    assert report["run_lag_histogram"] == expected
    if expected:
        every = np.concatenate([np.array(lags, np.int64) for lags in batches])
        assert report["run_lag"][0] == pytest.approx(every.mean())
        assert report["run_lag"][2] == every.max()


def test_many_steps_are_counted_before_they_are_asked_for(meter: LagMeter) -> None:
    for _ in range(300):
        meter.add(np.full(1000, 2))
        assert meter._held < 70_000
    assert meter.report()["run_lag_histogram"] == {2: 300_000}


def test_bins_are_two_to_an_octave() -> None:
    assert BINS[:12] == (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
    assert list(BINS) == sorted(BINS)
    assert BINS[-1] == 2**16
