"""Environment workers and inference servers that die between any two steps: no stream takes another's rows."""

from __future__ import annotations

from typing import Any

import pytest
from served_envs import ENVS, WORKERS, System, check_continued, check_stream, config_for

from apexrl.links.tcp.gateway_server import Gateway
from apexrl.links.tcp.inference_desk import InferenceDesk
from apexrl.links.tcp.remote_inference import RemoteInference
from apexrl.roles.env_worker import reply_fields, request_fields


@pytest.mark.parametrize("moment", ["asked", "answered", "taken", "never asked"])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_new_life_of_a_worker_begins_anew_whenever_the_old_one_ended(
    stage: Any, monkeypatch: pytest.MonkeyPatch, moment: str, splits: int
) -> None:
    system = System(stage, monkeypatch, config_for(splits=splits))
    for generation in range(3):
        system.turns(7 + generation)
        first = system.workers[0]
        if moment in ("asked", "taken"):
            first.step()  # the answers are taken, and the next actions asked for
        if moment == "taken":
            system.server.step()
            for split in first._end.answered():
                first._end.take(split)
        system.kill_worker(0)
        if moment == "never asked":  # this one dies before it asks
            system.kill_worker(0)
    system.turns(10)
    closed = [writer.closed for writer in system.replay.writers]
    assert closed == [True, False, True, True, False]
    streams = system.streams()
    for rows in streams:
        check_stream(rows)
    # The second worker's streams go on through all of it.
    longest = sorted(len(rows) for rows in streams)[-ENVS:]
    assert longest == sorted(len(rows) for rows in system.replay.writers[1].rows.values())


def test_what_a_dead_worker_asked_is_not_answered_to_its_successor(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor's first group asks; the request of the second group is still its predecessor's."""
    system = System(stage, monkeypatch, config_for())
    system.turns(6)
    for worker in system.workers:
        while worker.step():
            pass
    system.kill_worker(0)
    successor = system.workers[0]
    assert successor._ask(0)
    acted = system.agent.acted
    assert system.server.step()
    assert system.agent.acted == acted + 1
    assert system.agent.batches[-1] == 2 + ENVS  # the first group, and the other worker; nobody acts for the dead
    assert system.link.server().pending() == []
    system.turns(10)
    for rows in system.streams():
        check_stream(rows)


@pytest.mark.parametrize("moment", ["idle", "asked", "read", "written"])
def test_a_new_server_answers_what_the_old_one_left(stage: Any, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    system = System(stage, monkeypatch, config_for())
    system.turns(8)
    if moment != "idle":
        for worker in system.workers:
            while worker.step():
                pass
    if moment in ("read", "written"):
        if moment == "written":
            assert system.server._batches.next()
        else:
            end = system.link.server()
            end.read(end.pending())
    taken = stage.run.totals["env_steps"]
    written = sum(len(rows) for rows in system.streams())
    system.server = system.new_server()
    system.turns(12)
    assert len(system.replay.writers) == 2 * WORKERS
    streams = system.streams()
    for rows in streams[: WORKERS * ENVS]:
        check_stream(rows)
    for rows in streams[WORKERS * ENVS :]:
        check_continued(rows)
    assert sum(len(rows) for rows in streams) >= written + 10 * WORKERS * ENVS
    assert stage.run.totals["env_steps"] > taken


def test_workers_of_another_host_ask_over_tcp(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for()
    system = System(stage, monkeypatch, config)
    gateway = Gateway(InferenceDesk(system.link), "token")
    fields = {"request": request_fields(system.spec), "reply": reply_fields(system.spec)}
    system.inference = RemoteInference(gateway.address, "token", **fields, splits=system.link.splits)
    system.generations = [1] * WORKERS
    try:
        system.workers = [system.new_worker(index) for index in range(WORKERS)]
        for goal in (150, 300):
            while stage.run.totals["env_steps"] < goal:
                system.turn()
            gateway._open[0].end()  # a connection breaks
            system.workers[1]._end.leave()
            system.kill_worker(1)
        while stage.run.totals["env_steps"] < 600:
            system.turn()
        for worker in system.workers:
            worker.close()
    finally:
        gateway.close()
    assert len(system.replay.writers) == WORKERS + 4
    written = 0
    for rows in system.streams():
        check_continued(rows)  # after a break an episode goes on in a new stream
        written += len(rows)
    assert written > 500


def test_a_request_of_an_old_life_is_thrown_away_and_counted(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(stage, monkeypatch, config_for(splits=2))
    system.turns(7)
    system.kill_worker(0)
    system.turns(7)
    assert stage.run.totals["late_requests"] == 0
    writers = len(system.replay.writers)
    late = system.link.worker(0, 0)  # what the first generation had sent comes now
    while late.room(0) is None:
        assert system.server.step()
    late.ask(0, 0.0)
    system.server.step()
    assert stage.run.totals["late_requests"] == 1
    assert late.answered() == [0]  # with nothing: nobody waits for it
    assert len(system.replay.writers) == writers
