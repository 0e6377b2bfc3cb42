"""Several servers of one inference link: each group is one server's at a time, and no group is nobody's for long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexrl.errors import SpecError
from apexrl.links.local.inference import InferenceLink
from apexrl.links.local.server_assignment import ServerAssignment, assigned_partitions
from numbered_requests import REPLY, REQUEST, SPLITS, ask_on_and_on, expected, serve, write


def make(servers: int, workers: int = 1, splits: tuple[int, ...] = SPLITS) -> InferenceLink:
    return InferenceLink.make(
        shared=True, request=REQUEST, reply=REPLY, workers=workers, splits=splits, servers=servers
    )


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_every_partition_is_dealt_to_one_living_server_and_each_has_its_own(case: tuple[int, set[int]]) -> None:
    servers, alive = case
    assignment = assigned_partitions(sorted(alive), servers)
    assert assignment.keys() == alive
    assert sorted(partition for some in assignment.values() for partition in some) == list(range(servers))
    assert all(server in some for server, some in assignment.items())
    counts = [len(some) for some in assignment.values()]
    assert max(counts) - min(counts) <= 1


def test_each_server_sees_the_groups_of_its_partitions_and_is_woken_by_them() -> None:
    link = make(2, workers=2, splits=(2, 1))
    servers = [link.server(index) for index in range(2)]
    for index, server in enumerate(servers):
        assert server.expected() == 0
        server.answer_partitions([index])
    workers = [link.worker(index, 0) for index in range(2)]
    bells = [link.segment.load(bell) for bell in link.server_bells]
    for worker in workers:
        for split in range(2):
            columns = worker.room(split)
            assert columns is not None
            write(columns, 3 + split)
            worker.ask(split, 0.0)
    assert [server.pending() for server in servers] == [[0, 2], [1, 3]]
    assert [server.expected() for server in servers] == [4, 2]
    assert [link.segment.load(bell) - before for bell, before in zip(link.server_bells, bells, strict=True)] == [2, 2]
    servers[0].answer_partitions([0, 1])  # the other is no more
    assert serve(servers[0]) == 4
    for worker in workers:
        assert worker.answered() == [0, 1]
        for split, rows in enumerate((2, 1)):
            np.testing.assert_array_equal(worker.take(split)["action"], expected(3 + split, rows))


@pytest.mark.parametrize("servers", [0, 3])
def test_servers_without_groups_are_refused(servers: int) -> None:
    with pytest.raises(SpecError, match=f"{servers} inference servers for 2 groups"):
        make(servers)


def answer_from(link: InferenceLink, index: int, served: Any) -> None:
    """A server process: counts the groups that it has answered, by partition."""
    assignment, server = ServerAssignment(link, index), link.server(index)
    while True:
        if assignment.update():
            server.answer_partitions(assignment.held)
        for group in server.pending():
            served[link.servers * index + group % link.servers] += 1
        serve(server)
        server.wait(0.02)


def test_killed_servers_are_stood_in_for_and_come_back_to_their_partitions() -> None:
    """Real processes. The worker dies if an answer is another's, or if one is made twice."""
    context = multiprocessing.get_context("spawn")
    link = make(2)
    asked, served = context.Value("q", 0, lock=False), context.Array("q", 4, lock=False)

    def start(target: Any, *args: Any) -> Any:
        process = context.Process(target=target, args=(link, *args), daemon=True)
        process.start()
        return process

    def grown(*places: int) -> None:
        """Wait until each of these (server, partition) has answered more."""
        goals = {place: served[place] + 20 for place in places}
        deadline = time.monotonic() + 60.0
        while any(served[place] < goal for place, goal in goals.items()):
            assert worker.is_alive()
            assert time.monotonic() < deadline, (goals, list(served))
            time.sleep(0.005)

    servers = [start(answer_from, index, served) for index in range(2)]
    worker = start(ask_on_and_on, 0, asked)
    try:
        grown(0, 3)  # each its own partition
        for lost in (0, 1):
            os.kill(servers[lost].pid, signal.SIGKILL)
            servers[lost].join()
            other = 1 - lost
            grown(2 * other + lost, 2 * other + other)  # both assignment
            servers[lost] = start(answer_from, lost, served)
            grown(0, 3)
            grown(0, 3)  # what the other had in hand is answered
            before = served[2 * other + lost]
            grown(0, 3)
            assert served[2 * other + lost] == before  # it has let go
    finally:
        for process in (worker, *servers):
            process.kill()
            process.join()
