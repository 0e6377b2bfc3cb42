"""Scores of the suite against values that were worked out another way."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from apexrl.evaluation.scores import bootstrapped_iqm, iqm
from benchmarks.generality.scores import at_seconds, normalised
from benchmarks.generality.tasks import TASKS


def test_a_score_is_0_at_the_random_return_and_1_at_the_published_one():
    task = TASKS["Pendulum-v1"]
    assert normalised(task, task.random) == 0
    assert normalised(task, task.good) == 1
    assert normalised(task, (task.random + task.good) / 2) == pytest.approx(0.5)
    assert normalised(task, None) == 0


def test_the_interquartile_mean_leaves_a_quarter_away_at_either_end():
    assert iqm([[7.0, 100.0], [3.0, 4.0], [-50.0, 5.0], [6.0, 2.0]]) == pytest.approx((3 + 4 + 5 + 6) / 4)
    # Three scores: the outer ones count with a quarter of the middle one's weight.
    assert iqm([[0.0], [1.0], [10.0]]) == pytest.approx((0.25 * 0 + 1 + 0.25 * 10) / 1.5)


def test_a_task_weighs_the_same_however_many_seeds_it_has():
    assert iqm([[1.0, 1.0, 1.0, 1.0], [0.0]]) == pytest.approx(iqm([[1.0], [0.0]])) == 0.5


def test_the_bootstrap_agrees_with_every_resample_there_is():
    scores = [[0.1, 0.9], [0.4, 0.5], [0.0, 1.5]]
    every = [iqm(drawn) for drawn in product(*(list(product(of, repeat=2)) for of in scores))]
    interval = bootstrapped_iqm(scores, resamples=20_000)
    assert interval.value == iqm(scores)
    low, high = np.quantile(every, [0.025, 0.975])
    assert (interval.low, interval.high) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))
    assert bootstrapped_iqm([[0.3], [0.3]]) == (0.3, 0.3, 0.3)


def test_seeds_are_drawn_within_their_task():
    # Were they drawn over all tasks, some resample would hold zeros or ones only.
    interval = bootstrapped_iqm([[0.0] * 3, [1.0] * 3], resamples=500)
    assert (interval.low, interval.high) == (0.5, 0.5)


def test_the_return_at_a_time_is_that_of_the_last_evaluation_before():
    curve = [(100, 1.0, 10.0), (200, 2.0, 30.0), (300, 3.0, 20.0)]
    assert [at_seconds(curve, seconds) for seconds in (0.5, 2.0, 2.9, 9.0)] == [None, 30.0, 30.0, 20.0]
