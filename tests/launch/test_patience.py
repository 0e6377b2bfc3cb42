from __future__ import annotations

import pytest

from apexrl.launch.patience import IN_VAIN, Patience


def test_early_failures_count_threefold() -> None:
    patience = Patience(7)
    patience.failed(0.5, worked=False)
    patience.failed(1.9, worked=True)
    assert not patience.exhausted
    patience.failed(60.0, worked=True)
    assert not patience.exhausted
    patience.failed(60.0, worked=True)
    assert patience.exhausted
    assert patience.failures == 4


def test_no_restart_at_all_may_be_allowed() -> None:
    patience = Patience(0)
    patience.failed(100.0, worked=True)
    assert patience.exhausted


def test_lives_in_vain_must_follow_each_other() -> None:
    patience = Patience(100)
    for _ in range(IN_VAIN - 1):
        patience.failed(0.1, worked=False)
    patience.failed(30.0, worked=True)
    assert not patience.fails_always
    for _ in range(IN_VAIN):
        patience.failed(30.0, worked=False)
    assert patience.fails_always


def test_being_killed_is_not_held_against_a_worker() -> None:
    patience = Patience(10)
    for _ in range(10):
        patience.failed(0.1, worked=False, killed=True)
    assert not patience.fails_always
    assert not patience.exhausted
    assert patience.pause_seconds == 0.0


@pytest.mark.parametrize(("lives", "pause"), [(0, 0.0), (1, 0.2), (2, 0.4), (9, 5.0)])
def test_the_pause_grows_to_a_limit(lives: int, pause: float) -> None:
    patience = Patience(1000)
    for _ in range(lives):
        patience.failed(0.1, worked=False)
    assert patience.pause_seconds == pytest.approx(pause)
