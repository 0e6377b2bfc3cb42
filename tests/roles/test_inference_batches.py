"""Batches of waiting environments for several threads that choose: whoever dies, nothing is written twice or amiss."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from decision_trace import Teller
from served_envs import ENVS, WORKERS, System, check_stream, config_for

from apexrl.agents import recorded
from apexrl.roles.inference_batches import InferenceBatch, InferenceBatches


class Served(System):
    """A system whose batches are answered by hand."""

    def __init__(self, stage: Any, monkeypatch: pytest.MonkeyPatch, patience: float = 0.0, **wiring: Any) -> None:
        super().__init__(stage, monkeypatch, config_for(**wiring))
        self.context = stage.context("model_server")
        self.context.patience = patience
        self.batches = InferenceBatches(
            self.context,
            config=self.config,
            spec=self.spec,
            inference=self.link,
            replay=self.replay,
            records=recorded(self.agent),
        )

    def ask(self, *workers: int) -> None:
        for worker in workers:
            while self.workers[worker].step():
                pass

    def answer(self, batch: InferenceBatch | None) -> list[int]:
        """Answer a batch, and say which groups it had."""
        assert batch is not None
        self.batches.answer(batch, self.agent.act(batch.seen, batch.state, batch.exploration), 1)
        return batch.requests.groups


def test_who_is_about_to_be_answered_is_given_to_nobody_else(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Served(stage, monkeypatch)
    system.ask(0)
    first = system.batches.next()
    assert system.batches.next() is None
    system.ask(1)
    second = system.batches.next()
    assert system.answer(second) == [2, 3]  # before the first
    assert system.answer(first) == [0, 1]
    for _ in range(20):
        system.ask(0, 1)
        system.answer(system.batches.next())
    system.batches.close()
    assert sum(check_stream(rows) for rows in system.streams()) > 60


def test_whoever_was_held_is_answered_when_it_may_begin_and_not_when_others_ask(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Served(stage, monkeypatch, patience=60.0)
    system.ask(0, 1)
    looks = iter([True] * 20)
    monkeypatch.setattr(system.batches._throttle, "begins", lambda rows: True)
    monkeypatch.setattr(system.batches._throttle, "holds", lambda who=0: next(looks, False))
    monkeypatch.setattr(system.batches._end, "wait", lambda seconds: pytest.fail("it waits for other requests"))
    assert system.answer(system.batches.next()) == [0, 1, 2, 3]


def test_what_was_chosen_for_a_dead_worker_does_not_reach_its_successor(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is under way when its worker dies, and its successor's first request is read before it is answered."""
    system = Served(stage, monkeypatch, inference_batch=2)
    for _ in range(20):
        system.ask(0, 1)
        while (batch := system.batches.next()) is not None:
            system.answer(batch)
    system.ask(0, 1)
    old = system.batches.next()
    assert old is not None
    (group,) = old.requests.groups
    system.kill_worker(group // 2)
    system.ask(group // 2)
    taken: list[int] = []
    while (batch := system.batches.next()) is not None:
        taken += system.answer(batch)
    assert sorted([group, *taken]) == [0, 1, 2, 3]  # among them the successor's other group
    assert stage.run.totals["late_requests"] == 0
    system.answer(old)
    assert stage.run.totals["late_requests"] == 1
    for _ in range(30):
        system.ask(0, 1)
        while (batch := system.batches.next()) is not None:
            system.answer(batch)
    for rows in system.streams():
        check_stream(rows)
    assert len(system.replay.writers) == WORKERS + 1


@pytest.mark.parametrize("splits", [1, 3])
def test_threads_that_answer_at_the_same_time_write_every_step_once(
    stage: Any, monkeypatch: pytest.MonkeyPatch, splits: int
) -> None:
    system = Served(stage, monkeypatch, patience=0.02, splits=splits, inference_wait_ms=0.0)
    ending = threading.Event()
    errors: list[BaseException] = []
    answered = [0, 0, 0]

    def predict(number: int) -> None:
        agent = Teller()
        while not ending.is_set():
            batch = system.batches.next()
            if batch is not None:
                acted = agent.act(batch.seen, batch.state, batch.exploration)
                time.sleep(0)  # let others run between choosing and answering
                system.batches.answer(batch, acted, 1)
                answered[number] += 1

    def play(worker: int, deaths: int) -> None:
        for _ in range(deaths + 1):
            steps = 0
            while steps < 120:
                steps += system.workers[worker].step()
                if ending.is_set():
                    return
            if deaths:
                system.kill_worker(worker)
        while not ending.is_set():
            system.workers[worker].step()

    def guarded(work: Any, *args: int) -> None:
        try:
            work(*args)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(predict, number)) for number in range(3)]
    threads += [threading.Thread(target=guarded, args=(play, worker, 2 * worker)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60.0
    while not errors and time.monotonic() < deadline:
        rows = sum(len(rows) for rows in system.streams())
        served = len(system.replay.writers) == WORKERS + 3  # every generation, and not only begun
        if rows > 1200 * ENVS / 3 and served and min(answered) > 5:
            break
        time.sleep(0.01)
    ending.set()
    for thread in threads:
        thread.join(20.0)
    assert not errors, errors[0]
    assert min(answered) > 5, answered
    assert sum(check_stream(rows) for rows in system.streams()) > 500
    assert len(system.replay.writers) == WORKERS + 3
