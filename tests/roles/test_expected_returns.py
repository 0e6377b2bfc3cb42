"""Expected returns beside the discounted ones that an evaluation observes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from apexrl.envs.vector import Stepped
from apexrl.roles.expected_returns import ExpectedReturns


class Oracle:
    """Expects what the observation says."""

    def expected_returns(self, observations: Any) -> NDArray[np.float32]:
        return np.asarray(observations["x"], np.float32)


def step(x: list[float], reward: list[float], terminated: str = "", truncated: str = "", starts: str = "") -> Stepped:
    """One step of two environments, in which those named, ``0`` or ``1``, end or begin."""
    flags = (np.array([str(row) in rows for row in range(2)]) for rows in (terminated, truncated, starts))
    return Stepped({"x": np.array(x)}, np.array(reward, np.float32), *flags, [])


def played(agent: Any, gamma: float, *steps: Stepped, owed: tuple[int, int] = (9, 9)) -> dict[str, Any]:
    compared = ExpectedReturns(agent, gamma, {"x": np.array([10.0, 20.0])})
    for one in steps:
        compared.note(one, one.observation, owed)
    return compared.report()


def test_discounted_returns_stand_beside_what_was_expected_at_first_observations() -> None:
    found = played(
        Oracle(),
        0.5,
        step([0, 0], [4.0, 1.0]),
        step([0, 0], [4.0, 1.0], terminated="0"),  # 4 + 0.5 · 4 = 6, expected 10
        step([30, 0], [0.0, 4.0], starts="0"),
        step([0, 0], [2.0, 8.0], terminated="01"),  # 2, expected 30; 1 + 0.5 + 1 + 1 = 3.5, expected 20
    )
    assert found["expected_return"] == pytest.approx(20.0)
    assert found["discounted_return"] == pytest.approx((6.0 + 2.0 + 3.5) / 3)
    assert sorted(found["lengths"]) == [1, 2, 4]
    assert found["terminated"] == 1.0


def test_what_a_time_limit_cut_is_compared_only_when_hardly_anything_was_left() -> None:
    cut = played(Oracle(), 0.5, step([0, 0], [1.0, 1.0], truncated="0"))
    assert cut == {"lengths": [1], "terminated": 0.0}
    nothing_left = played(Oracle(), 0.01, step([0, 0], [1.0, 1.0], truncated="0"))
    assert (nothing_left["expected_return"], nothing_left["discounted_return"]) == (10.0, 1.0)


def test_episodes_that_count_no_more_are_left_out() -> None:
    assert played(Oracle(), 0.9, step([0, 0], [1.0, 1.0], terminated="01"), owed=(1, 0))["lengths"] == [1]


def test_agents_that_expect_nothing_are_not_asked() -> None:
    found = played(object(), 0.9, step([0, 0], [1.0, 1.0], terminated="01"))
    assert found == {"lengths": [1, 1], "terminated": 1.0}
