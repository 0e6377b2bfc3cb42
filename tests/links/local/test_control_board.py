from __future__ import annotations

import os
import pickle
import time

import pytest

from apexrl.links.local.control_board import COUNTERS, HURRY, RUN, ControlBoard


def test_counters_of_all_rows_and_the_base_add_up() -> None:
    board = ControlBoard(3)
    board.set_base("env_steps", 100)
    board.row(0).count("env_steps", 5)
    board.row(2).count("env_steps", 7)
    board.row(2).count("updates", 1)
    assert board.total("env_steps") == 112
    assert board.total("updates") == 1
    assert board.row(2).counter("env_steps") == 7


def test_no_two_cells_overlap() -> None:
    board = ControlBoard(2)
    row, other = board.row(0), board.row(1)
    row.begin(11, 22)
    row.dismiss(22)
    row.heartbeat, row.busy_since, row.state = 1.5, 2.5, "learning"
    for value, name in enumerate(COUNTERS, start=1):
        row.count(name, value)
    assert (row.pid, row.generation, row.heartbeat, row.busy_since, row.state) == (11, 22, 1.5, 2.5, "learning")
    assert row.dismissed(22)
    assert not other.dismissed(22)
    assert [row.counter(name) for name in COUNTERS] == list(range(1, len(COUNTERS) + 1))
    assert (other.pid, other.generation, other.heartbeat, other.busy_since) == (0, 0, 0.0, 0.0)
    assert [other.counter(name) for name in COUNTERS] == [0] * len(COUNTERS)
    assert board.stop == RUN


def test_a_new_life_keeps_the_counters_of_its_slot() -> None:
    row = ControlBoard(1).row(0)
    row.begin(1, 0)
    row.count("env_steps", 9)
    row.busy_since = 3.0
    row.begin(2, 1)
    assert (row.counter("env_steps"), row.generation, row.busy_since) == (9, 1, 0.0)


def test_one_life_of_one_worker_is_dismissed() -> None:
    board = ControlBoard(2)
    row = board.row(1)
    assert not row.dismissed(0)
    row.dismiss(3)
    assert row.dismissed(3)
    assert not any(row.dismissed(generation) for generation in (0, 2, 4))
    row.begin(7, 4)
    assert not row.dismissed(4)
    assert not board.row(0).dismissed(3)


def test_an_unknown_row_or_counter_is_refused() -> None:
    board = ControlBoard(2)
    with pytest.raises(IndexError, match="worker 2 of 2"):
        board.row(2)
    with pytest.raises(KeyError):
        board.row(0).count("env_step", 1)
    with pytest.raises(KeyError):
        board.total("nothing")


def test_another_process_sees_and_writes_the_same_cells() -> None:
    board = ControlBoard(1)
    handle = pickle.dumps(board)
    pid = os.fork()
    if pid == 0:
        seen = pickle.loads(handle)
        seen.row(0).count("episodes", 3)
        deadline = time.monotonic() + 10.0
        while seen.stop != HURRY and time.monotonic() < deadline:
            time.sleep(0.005)
        seen.row(0).count("updates", seen.stop)
        os._exit(0)
    board.stop = HURRY
    assert os.waitpid(pid, 0)[1] == 0
    assert board.total("episodes") == 3
    assert board.total("updates") == HURRY
