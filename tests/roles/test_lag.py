from __future__ import annotations

import math

import numpy as np

from apexrl.roles.lag import LagMeter


def test_nothing_is_known_before_the_first_batch() -> None:
    lately, ever = LagMeter().read()
    assert all(math.isnan(value) for value in lately + ever)


def test_mean_quantile_and_maximum_of_the_window_and_of_the_run() -> None:
    meter = LagMeter()
    first = np.arange(100, dtype=np.int64)
    second = np.full(100, 1000, np.int64)
    meter.add(first)
    lately, ever = meter.read()
    assert lately == [first.mean(), np.percentile(first, 95), 99]
    assert ever == [first.mean(), 94.0, 99]
    meter.add(second)
    lately, ever = meter.read()
    assert lately == [1000.0, 1000.0, 1000.0]
    assert ever == [np.concatenate([first, second]).mean(), 1000.0, 1000.0]


def test_the_maximum_is_exact_beyond_what_is_sampled() -> None:
    meter = LagMeter()
    for lag in range(500):
        meter.add(np.array([lag], np.int64))
    meter.add(np.array([7], np.int64))
    lately, _ = meter.read()
    assert lately[2] == 499.0
