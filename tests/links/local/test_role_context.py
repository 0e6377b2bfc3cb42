"""What every context must do, shared or inline."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apexrl.links.local import worker_messages
from apexrl.links.local.control_board import HURRY, STOP, ControlBoard
from apexrl.links.local.role_context import InlineContext, InlineRun, SharedContext, WorkerIdentity
from apexrl.protocols import Context


class Pair(NamedTuple):
    """Two contexts of one run, what the supervisor received, and how it stops them."""

    a: Context
    b: Context
    received: Callable[[], list[tuple[str, dict[str, Any]]]]
    stop: Callable[[bool], None]


def shared_pair() -> tuple[Pair, list[socket.socket]]:
    board = ControlBoard(2)
    ours, theirs = worker_messages.channel()

    def make(row: int) -> SharedContext:
        return SharedContext(WorkerIdentity(f"actor-{row}", "actor", row, 0, row, Path()), board, row, theirs)

    def stop(hurried: bool) -> None:
        board.stop = HURRY if hurried else STOP

    return Pair(make(0), make(1), lambda: [tuple(m) for m in worker_messages.receive(ours)], stop), [ours, theirs]


def inline_pair() -> tuple[Pair, list[socket.socket]]:
    heard: list[tuple[str, dict[str, Any]]] = []
    run = InlineRun(lambda name, kind, values: heard.append((kind, values)), steps_per_second=10.0)

    def make(row: int) -> InlineContext:
        return InlineContext(run, WorkerIdentity(f"actor-{row}", "actor", row, 0, row, Path()))

    def received() -> list[tuple[str, dict[str, Any]]]:
        return [heard.pop(0) for _ in range(len(heard))]

    def stop(hurried: bool) -> None:
        run.stopping, run.hurried = True, hurried

    return Pair(make(0), make(1), received, stop), []


@pytest.fixture(params=[shared_pair, inline_pair], ids=["shared", "inline"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made, sockets = request.param()
    yield made
    for end in sockets:
        end.close()


def test_counts_are_totals_of_the_run(pair: Pair) -> None:
    pair.a.count(env_steps=3, episodes=1)
    pair.b.count(env_steps=4)
    assert pair.a.total("env_steps") == pair.b.total("env_steps") == 7
    assert pair.b.total("episodes") == 1
    assert pair.b.total("updates") == 0


def test_an_unknown_counter_is_refused(pair: Pair) -> None:
    with pytest.raises(KeyError):
        pair.a.count(steps=1)


def test_messages_reach_the_supervisor(pair: Pair) -> None:
    pair.a.send("episodes", returns=[1.0], lengths=[5])
    pair.b.send("log", text="hello")
    assert pair.received() == [("episodes", {"returns": [1.0], "lengths": [5]}), ("log", {"text": "hello"})]


@pytest.mark.parametrize("hurried", [False, True])
def test_stopping_reaches_everybody(pair: Pair, hurried: bool) -> None:
    assert not pair.a.should_stop()
    assert not pair.b.hurried()
    pair.stop(hurried)
    assert pair.a.should_stop()
    assert pair.b.should_stop()
    assert pair.b.hurried() is hurried


def test_an_environment_call_may_raise(pair: Pair) -> None:
    with pytest.raises(ZeroDivisionError), pair.a.env_call():
        raise ZeroDivisionError
    with pair.a.env_call():
        pass


def test_a_shared_context_shows_calls_and_heartbeats_on_the_board() -> None:
    board = ControlBoard(1)
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        context = SharedContext(WorkerIdentity("x", "x", 0, 0, 0, Path()), board, 0, theirs)
        row = board.row(0)
        before = time.monotonic()
        with context.env_call():
            assert before <= row.busy_since <= time.monotonic()
        assert row.busy_since == 0.0
        context.should_stop()
        assert before <= row.heartbeat <= time.monotonic()
        context.show("learning")
        assert row.state == "learning"


def test_of_several_calls_the_oldest_is_shown() -> None:
    board = ControlBoard(1)
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        context = SharedContext(WorkerIdentity("x", "x", 0, 0, 0, Path()), board, 0, theirs)
        row = board.row(0)
        first, second, third = (context.env_call() for _ in range(3))
        first.__enter__()
        began = row.busy_since
        second.__enter__()
        between = time.monotonic()
        third.__enter__()
        assert row.busy_since == began
        second.__exit__(None, None, None)
        assert row.busy_since == began
        first.__exit__(None, None, None)
        assert between <= row.busy_since <= time.monotonic()
        third.__exit__(None, None, None)
        assert row.busy_since == 0.0


def test_calls_in_many_threads_leave_no_mark() -> None:
    board = ControlBoard(1)
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        context = SharedContext(WorkerIdentity("x", "x", 0, 0, 0, Path()), board, 0, theirs)
        row = board.row(0)

        def calls() -> list[float]:
            shown = []
            for _ in range(300):
                with context.env_call():
                    shown.append(row.busy_since)
            return shown

        with ThreadPoolExecutor(4) as pool:
            shown = [seconds for each in [pool.submit(calls) for _ in range(4)] for seconds in each.result()]
        assert all(seconds > 0.0 for seconds in shown)
        assert row.busy_since == 0.0


def test_a_message_that_cannot_be_sent_is_counted() -> None:
    board = ControlBoard(1)
    ours, theirs = worker_messages.channel()
    with theirs:
        ours.close()
        context = SharedContext(WorkerIdentity("x", "x", 0, 0, 0, Path()), board, 0, theirs)
        context.send("log", text="nobody hears")
    assert board.total("dropped_messages") == 1


def test_the_inline_clock_counts_environment_steps() -> None:
    pair, _ = inline_pair()
    pair.a.count(env_steps=25)
    assert pair.b.clock() == 2.5
    assert pair.a.patience == 0.0
