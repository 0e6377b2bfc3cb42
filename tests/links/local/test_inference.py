from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from apexrl.errors import SpecError
from apexrl.links.local.inference import RequestClient, Requests
from numbered_requests import (
    GROUPS,
    SPLITS,
    WORKERS,
    actions_for,
    answer_on_and_on,
    ask_on_and_on,
    expected,
    make,
    serve,
    write,
)


class Twin(RuleBasedStateMachine):
    """The link beside what it means: per group the newest request, by whom, and whether it was answered.

    Workers and server die and come again between any two of their calls; a server may be between reading and answering
    when workers do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.link = make()
        self.number = 0
        self.generations = [0] * WORKERS
        self.workers = [self.link.worker(index, 0) for index in range(WORKERS)]
        self.server = self.link.server()
        self.newest: list[tuple[int, int, int] | None] = [None] * GROUPS  # generation, number, how many before it
        self.asked = [0] * GROUPS
        self.answered = [0] * GROUPS
        self.waiting = [False] * GROUPS  # of the present generation
        self.reading: Requests | None = None
        self.memory: Any = None

    @rule(group=st.integers(0, GROUPS - 1))
    def ask(self, group: int) -> None:
        worker, split = divmod(group, len(SPLITS))
        columns = self.workers[worker].room(split)
        free = not self.waiting[group] and self.asked[group] - self.answered[group] <= 1
        assert (columns is not None) == free
        if columns is None:
            return
        self.number += 1
        write(columns, self.number)
        self.workers[worker].ask(split, float(self.number))
        self.asked[group] += 1
        self.newest[group] = self.generations[worker], self.number, self.asked[group]
        self.waiting[group] = True

    @rule(group=st.integers(0, GROUPS - 1))
    def die_while_writing(self, group: int) -> None:
        worker, split = divmod(group, len(SPLITS))
        columns = self.workers[worker].room(split)
        if columns is not None:
            columns["observation"][...] = np.nan
        self.revive(worker)

    @rule(worker=st.integers(0, WORKERS - 1))
    def revive(self, worker: int) -> None:
        self.generations[worker] += 1
        self.workers[worker] = self.link.worker(worker, self.generations[worker])
        for split in range(len(SPLITS)):
            self.waiting[worker * len(SPLITS) + split] = False

    @precondition(lambda self: self.reading is None)
    @rule(some=st.sets(st.integers(0, GROUPS - 1)))
    def read(self, some: set[int]) -> None:
        pending = self.server.pending()
        assert pending == [group for group in range(GROUPS) if self.asked[group] != self.answered[group]]
        groups = [group for group in pending if group in some]
        if not groups:
            return
        self.reading = requests = self.server.read(groups)
        assert requests.groups == groups
        begin = 0
        for at, group in enumerate(groups):
            newest = self.newest[group]
            assert newest is not None
            generation, number, count = newest
            rows = self.link.rows_of[group]
            mine = slice(begin, begin + len(rows))
            begin += len(rows)
            assert requests.rows[mine].tolist() == rows.tolist()
            assert (requests.generations[at], requests.waited_since[at]) == (generation, number)
            assert requests.numbers[at] == count
            wanted = {"observation": np.empty((len(rows), 3), np.float32), "starts": np.empty(len(rows), np.bool_)}
            write(wanted, number)
            for name, values in wanted.items():
                np.testing.assert_array_equal(requests.columns[name][mine], values)
        self.memory = self.under(requests)

    def under(self, requests: Requests) -> Any:
        """What lies where the requests were read from."""
        sizes = [len(self.link.rows_of[group]) for group in requests.groups]
        index = requests.rows + np.repeat(np.array(requests.numbers) % 2, sizes) * self.link.envs
        return self.link.request_columns["observation"][index].copy()

    @precondition(lambda self: self.reading is not None)
    @rule()
    def answer(self) -> None:
        requests = self.reading
        assert requests is not None
        np.testing.assert_array_equal(self.under(requests), self.memory)  # nobody wrote where the server may read
        self.server.answer(requests, {"action": actions_for(requests.columns["observation"])})
        for group, count in zip(requests.groups, requests.numbers, strict=True):
            self.answered[group] = count
        self.reading = None

    @rule()
    def revive_server(self) -> None:
        self.reading = None
        self.server = self.link.server()

    @rule(worker=st.integers(0, WORKERS - 1))
    def take(self, worker: int) -> None:
        first = worker * len(SPLITS)
        come = [
            split
            for split in range(len(SPLITS))
            if self.waiting[first + split] and self.answered[first + split] == self.asked[first + split]
        ]
        assert self.workers[worker].answered() == come
        for split in come:
            newest = self.newest[first + split]
            assert newest is not None
            assert newest[0] == self.generations[worker]
            np.testing.assert_array_equal(
                self.workers[worker].take(split)["action"], expected(newest[1], SPLITS[split])
            )
            self.waiting[first + split] = False

    @invariant()
    def never_two_halves_behind(self) -> None:
        assert all(0 <= asked - done <= 2 for asked, done in zip(self.asked, self.answered, strict=True))


Twin.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTwin = Twin.TestCase


def test_counts_of_requests_may_wrap_around() -> None:
    link = make(1, (2,))
    link.asked_words[:] = link.answered_words[:] = 2**32 - 2
    worker, server = link.worker(0, 0), link.server()
    for number in range(5):
        columns = worker.room(0)
        assert columns is not None
        write(columns, number)
        worker.ask(0, 0.0)
        assert worker.room(0) is None
        assert worker.answered() == []
        assert serve(server) == 1
        assert worker.answered() == [0]
        np.testing.assert_array_equal(worker.take(0)["action"], expected(number, 2))
    assert link.asked_words.tolist() == [3]


def test_dismissed_requests_are_pending_no_more_and_nobody_else_is_answered() -> None:
    link = make()
    workers, server = [link.worker(index, 0) for index in range(WORKERS)], link.server()
    for worker in workers:
        columns = worker.room(0)
        assert columns is not None
        write(columns, 1)
        worker.ask(0, 0.0)
    requests = server.read(server.pending())
    chosen = np.array([True, False])
    sizes = np.array([2, 2])
    server.dismiss(requests.only(chosen, sizes))
    assert server.pending() == [2]
    rest = requests.only(~chosen, sizes)
    assert (rest.groups, rest.rows.tolist(), len(rest.columns["observation"])) == ([2], [3, 4], 2)
    server.answer(rest, {"action": actions_for(rest.columns["observation"])})
    assert workers[1].answered() == [0]
    np.testing.assert_array_equal(workers[1].take(0)["action"], expected(1, 2))


def test_those_who_asked_are_expected_until_they_leave() -> None:
    link = make()
    worker, server = link.worker(1, 0), link.server()
    expected_envs = [server.expected()]
    for number in range(2):
        columns = worker.room(number)
        assert columns is not None
        write(columns, number)
        worker.ask(number, 0.0)
        expected_envs.append(server.expected())
    worker.leave()
    assert [*expected_envs, server.expected()] == [0, 3, 3, 0]


def test_whoever_waits_is_woken_by_the_others_message() -> None:
    link = make(1, (1,))
    worker, server = link.worker(0, 0), link.server()

    def answer_three() -> None:
        served = 0
        while served < 3:
            served += serve(server)
            server.wait(30.0)

    thread = threading.Thread(target=answer_three)
    thread.start()
    for number in range(3):
        columns = worker.room(0)
        assert columns is not None
        write(columns, number)
        worker.ask(0, 0.0)
        while not worker.answered():
            worker.wait(30.0)
        worker.take(0)
    link.segment.ring(link.server_bells[0])  # its last wait
    thread.join(10.0)
    assert not thread.is_alive()


@pytest.mark.parametrize(("workers", "splits"), [(0, (1,)), (1, ()), (1, (2, 0))])
def test_a_link_without_workers_or_environments_is_refused(workers: int, splits: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="must be at least 1"):
        make(workers, splits)


def reached(counter: Any, goal: int, *alive: Any) -> None:
    deadline = time.monotonic() + 60.0
    while counter.value < goal:
        assert all(process.is_alive() for process in alive)
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_killed_workers_and_servers_block_nobody_and_confuse_nobody() -> None:
    """Real processes, killed again and again wherever they are."""
    context = multiprocessing.get_context("spawn")
    link = make(1, SPLITS)
    assert pickle.loads(pickle.dumps(link)).segment.uuid == link.segment.uuid
    asked = context.Value("q", 0, lock=False)

    def start(target: Any, *args: Any) -> Any:
        process = context.Process(target=target, args=(link, *args), daemon=True)
        process.start()
        return process

    worker, server = start(ask_on_and_on, 0, asked), start(answer_on_and_on)
    try:
        for generation in range(1, 3):
            reached(asked, asked.value + 100, worker, server)
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
            worker = start(ask_on_and_on, generation, asked)
            reached(asked, asked.value + 100, worker, server)
            os.kill(server.pid, signal.SIGKILL)
            server.join()
            server = start(answer_on_and_on)
        reached(asked, asked.value + 100, worker, server)
    finally:
        for process in (worker, server):
            process.kill()
            process.join()


def test_ends_may_be_made_before_the_other_side_is_there() -> None:
    link = make(1, (1,))
    server = link.server()
    assert server.pending() == []
    first: RequestClient = link.worker(0, 0)
    columns = first.room(0)
    assert columns is not None
    write(columns, 7)
    first.ask(0, 0.0)
    late = link.server()  # in a dead one's place
    assert serve(late) == 1
    assert first.answered() == [0]
