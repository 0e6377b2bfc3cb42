from __future__ import annotations

import pytest

from apexrl.launch.restart_budget import IN_VAIN, REFILL_SECONDS, USEFUL_SECONDS, Ending, RestartBudget, ending_of


def test_early_failures_count_threefold() -> None:
    patience = RestartBudget(7)
    patience.ended(0.5, worked=False)
    patience.ended(1.9, worked=True)
    assert not patience.exhausted
    patience.ended(60.0, worked=False)
    assert not patience.exhausted
    patience.ended(60.0, worked=False)
    assert patience.exhausted
    assert patience.failures == 4


def test_no_restart_at_all_may_be_allowed() -> None:
    patience = RestartBudget(0)
    patience.ended(100.0, worked=True)
    assert patience.exhausted


def test_work_gives_restarts_back() -> None:
    """A worker that fails once a day is never given up; one that fails in every fifth minute of its work is."""
    daily = RestartBudget(2)
    for _ in range(1000):
        daily.ended(86_400.0, worked=True)
    assert not daily.exhausted
    often = RestartBudget(2)
    generations = 0
    while not often.exhausted:
        often.ended(REFILL_SECONDS / 2, worked=True)
        generations += 1
    assert generations == 4  # each costs one and gives half of one back, the first had nothing to give back


def test_time_without_work_gives_nothing_back() -> None:
    patience = RestartBudget(2)
    for _ in range(3):
        patience.ended(86_400.0, worked=False)
    assert patience.exhausted


def test_lives_in_vain_must_follow_each_other() -> None:
    patience = RestartBudget(100)
    for _ in range(IN_VAIN - 1):
        patience.ended(0.1, worked=False)
    patience.ended(30.0, worked=True)
    assert not patience.fails_always
    for _ in range(IN_VAIN):
        patience.ended(30.0, worked=False)
    assert patience.fails_always


def test_being_killed_costs_nothing_but_a_wait() -> None:
    patience = RestartBudget(1)
    pauses = []
    for _ in range(20):
        patience.ended(0.1, worked=False, how="killed")
        pauses.append(patience.pause_seconds)
    assert not patience.fails_always
    assert not patience.exhausted
    assert not patience.failures
    assert pauses[0] == 0.0  # the first one is answered at once
    assert pauses[1:] == sorted(pauses[1:])
    assert pauses[-1] == 60.0
    patience.ended(USEFUL_SECONDS, worked=True, how="killed")
    assert patience.pause_seconds == 0.0


def test_being_killed_soon_after_each_start_is_answered_ever_later() -> None:
    """As a learner that takes more memory than there is, and never gets to its first checkpoint."""
    patience = RestartBudget(1)
    for _ in range(20):
        patience.ended(USEFUL_SECONDS - 1.0, worked=True, how="killed")
    assert patience.pause_seconds == 60.0


def test_an_end_that_nobody_explains_costs_one_and_is_not_in_vain() -> None:
    patience = RestartBudget(3)
    for _ in range(3):
        patience.ended(0.1, worked=False, how="vanished")
    assert not patience.exhausted
    assert not patience.fails_always
    patience.ended(0.1, worked=False, how="vanished")
    assert patience.exhausted


def test_who_was_given_up_may_have_one_more_life() -> None:
    patience = RestartBudget(3)
    while not (patience.exhausted and patience.fails_always):
        patience.ended(0.1, worked=False)
    patience.forgive()
    assert not patience.exhausted
    assert not patience.fails_always
    patience.ended(0.1, worked=False)
    assert patience.exhausted
    assert patience.fails_always


@pytest.mark.parametrize(
    ("status", "how"), [(1, "failed"), (0, "failed"), (-11, "failed"), (-6, "failed"), (-9, "killed"), (-15, "killed")]
)
def test_who_ended_a_life(status: int, how: Ending) -> None:
    assert ending_of(status) == how


@pytest.mark.parametrize(("generations", "pause"), [(0, 0.0), (1, 0.2), (2, 0.4), (9, 5.0), (5000, 5.0)])
def test_the_pause_grows_to_a_limit(generations: int, pause: float) -> None:
    patience = RestartBudget(1000)
    for _ in range(generations):
        patience.ended(0.1, worked=False)
    assert patience.pause_seconds == pytest.approx(pause)
