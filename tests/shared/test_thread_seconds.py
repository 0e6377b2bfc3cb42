"""Seconds of a thread, by the clock and by what the kernel counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from apexrl.shared.thread_seconds import Moment, ThreadSeconds, moment


def test_time_without_a_core_is_in_the_clock_and_in_the_count_or_in_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, counts = iter([10.0, 15.0]), (ThreadSeconds(1.0, queued) for queued in (0.0, 5.0, 5.0))
    monkeypatch.setattr("apexrl.shared.thread_seconds.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr("apexrl.shared.thread_seconds.thread_seconds", lambda: next(counts))
    assert moment() == (15.0, 1.0, 5.0), "for 5 s it had none, behind the first look at the clock"


def test_a_thread_that_waited_all_the_time_took_more_than_no_time() -> None:
    assert Moment(10.0, 0.0, 3.0).own_until(Moment(11.0, 0.0, 4.5)) > 0.0
    assert Moment(10.0, 0.0, 3.0).own_until(Moment(12.0, 1.0, 3.5)) == 1.5
