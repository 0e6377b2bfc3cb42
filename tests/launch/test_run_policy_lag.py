"""The run's policy lag out of the reports of several learners, and of their generations."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apexrl.launch.run_policy_lag import Lags
from apexrl.roles.policy_lag import LagMeter


def meter(name: str, generation: int = 0) -> LagMeter:
    return LagMeter(SimpleNamespace(name=name, generation=generation))  # type: ignore[arg-type]


def crossed(report: dict[str, Any]) -> Any:
    """As it arrives from another process."""
    plain = {
        name: [None if math.isnan(one) else one for one in value] if isinstance(value, list) else value
        for name, value in report.items()
    }
    return json.loads(json.dumps(plain))


def test_of_one_reporter_everything_is_as_it_was_told() -> None:
    lags, one = Lags(), meter("learner-0")
    assert math.isnan(lags.ever.figures.mean)
    lags.hear(crossed(one.report()))
    assert math.isnan(lags.lately.figures.mean)
    assert lags.ever.histogram == {}
    one.add(np.arange(100))
    lags.hear(crossed(one.report()))
    assert lags.lately == lags.ever
    assert lags.ever.figures == (49.5, 94.0, 99.0)
    assert sum(lags.ever.histogram.values()) == 100
    one.add(np.array([7]))
    lags.hear(crossed(one.report()))
    assert lags.lately.figures == (7.0, 7.0, 7.0)
    assert lags.lately.histogram == {6: 1}
    assert sum(lags.ever.histogram.values()) == 101


def test_several_reporters_are_one_run() -> None:
    lags, one, two = Lags(), meter("worker-0"), meter("worker-1")
    one.add(np.full(90, 1))
    two.add(np.full(10, 50))
    lags.hear(one.report())
    lags.hear(two.report())
    for lag in (lags.lately, lags.ever):
        assert lag.figures.mean == pytest.approx((90 + 500) / 100)
        assert (lag.figures.p95, lag.figures.max) == (48.0, 50.0)  # where the bin of 50 begins
        assert lag.histogram == {1: 90, 48: 10}


def test_a_life_that_ended_still_counts_for_the_run() -> None:
    lags, first, second = Lags(), meter("learner-0"), meter("learner-0", generation=1)
    first.add(np.full(30, 4))
    lags.hear(first.report())
    second.add(np.full(10, 8))
    lags.hear(second.report())
    assert lags.lately.figures == (8.0, 8.0, 8.0)
    assert lags.ever.figures == (5.0, 8.0, 8.0)
    assert lags.ever.histogram == {4: 30, 8: 10}
