"""Threads that come and go with a knob, and whose errors are their role's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from apexrl.errors import WorkerError
from apexrl.links.local.tunable_count import TunableCount
from apexrl.roles.thread_heartbeat import ThreadHeartbeat
from apexrl.roles.thread_pool import ThreadPool


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.001)


class Counting:
    """Counts its turns."""

    def __init__(self) -> None:
        self.turns = 0
        self.last: threading.Thread | None = None

    def step(self) -> bool:
        self.turns += 1
        self.last = threading.current_thread()
        return False


class Failing:
    def step(self) -> bool:
        raise ValueError("a thread has a bad day")


def test_as_many_threads_work_as_the_knob_says_at_any_time() -> None:
    knob, made = TunableCount(2, shared=False), []

    def make(number: int) -> Counting:
        assert number == len(made)
        made.append(Counting())
        return made[-1]

    crew = ThreadPool("counter", knob, make, threading.Event())
    crew.staff()
    assert len(made) == 2
    until(lambda: all(one.turns for one in made))
    knob.value = 3
    crew.staff()
    until(lambda: len(made) == 3 and made[2].turns > 0)
    assert made[2].last is not None
    assert made[2].last.name == "counter-2"
    knob.value = 1
    rested = [one.last for one in made[1:]]
    for thread in rested:
        assert thread is not None
        thread.join(20.0)
        assert not thread.is_alive()
    turns = made[0].turns
    crew.staff()
    until(lambda: made[0].turns > turns)
    assert not any(thread.is_alive() for thread in rested if thread)
    knob.value = 2  # who rested works again, as the same member
    turns = made[1].turns
    crew.staff()
    until(lambda: made[1].turns > turns)
    assert len(made) == 3
    assert crew.close() == []
    assert not any(one.last is not None and one.last.is_alive() for one in made)


def test_an_error_in_a_thread_reaches_the_role_and_wakes_it() -> None:
    trouble = threading.Event()
    crew = ThreadPool("failing", TunableCount(1, shared=False), lambda number: Failing(), trouble)
    crew.staff()
    assert trouble.wait(20.0)
    with pytest.raises(ValueError, match="a bad day"):
        crew.staff()
    assert crew.close() == []
    with pytest.raises(ValueError, match="a bad day"):
        crew.check()


def test_a_thread_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    class Stuck:
        def step(self) -> bool:
            return gate.wait(60.0)

    monkeypatch.setattr("apexrl.roles.thread_pool._END_SECONDS", 0.05)
    crew = ThreadPool("stuck", TunableCount(1, shared=False), lambda number: Stuck(), threading.Event())
    crew.staff()
    try:
        assert crew.close() == ["stuck-0"]
    finally:
        gate.set()


def test_a_step_that_takes_too_long_is_the_roles_trouble_and_its_stack_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    let_go = threading.Event()

    class Stuck:
        def step(self) -> bool:
            let_go.wait(60.0)
            return True

    crew = ThreadPool(
        "stuck", TunableCount(1, shared=False), lambda number: Stuck(), threading.Event(), stall_timeout=0.1
    )
    crew.staff()
    asked = 0
    with pytest.raises(WorkerError, match=r"the thread stuck-0 stood still for 0.3 s \(--stall-timeout\)"):
        while asked < 1000:  # the first step may take three times as long
            crew.check()
            asked += 1
            time.sleep(0.05)
    assert asked
    assert "in step" in capfd.readouterr().err
    let_go.set()
    assert not crew.close()


def test_time_in_which_the_whole_process_was_stopped_is_not_a_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop asleep, ``docker pause``, SIGSTOP for the group."""
    now = 1000.0
    monkeypatch.setattr("apexrl.roles.thread_heartbeat.time.monotonic", lambda: now)
    turns, thread = ThreadHeartbeat(300.0), threading.current_thread()
    turns.begin()
    turns.check(thread)
    now += 5000.0
    turns.check(thread)
    for _ in range(2900):
        now += 0.1
        turns.check(thread)
    with pytest.raises(WorkerError, match="stood still for 300 s"):
        for _ in range(200):
            now += 0.1
            turns.check(thread)
