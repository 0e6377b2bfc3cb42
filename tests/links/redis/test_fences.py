"""A role that outlived its learner touches nothing of the run that its successor has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from link_pairs import KEYS, Ends, Intake, body_of, offer, until
from run_records import a_record

from apexrl.errors import OwnershipError
from apexrl.links.redis.checked_values import LearnerDigest
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.run_record import LearnerLease
from redis_server import RedisServer, binaries


def places(ends: Ends, resumed: bool) -> tuple[LearnerLease, LearnerLease]:
    """A learner that fell silent, and the one that has its place now."""
    record = a_record(name=KEYS.name, run_id="1" * 32)
    first = LearnerLease.take(ends.redis.server(), record, ttl=0.001)
    while True:
        try:
            other = a_record(name=KEYS.name, run_id="2" * 32)
            second = LearnerLease.take(ends.redis.server(), record if resumed else other, replace=not resumed)
        except OwnershipError:
            continue
        assert second.resumed == resumed
        assert second.taken > first.taken > 1_600_000_000_000
        return first, second


def ask(ends: Ends, *words: str) -> Any:
    connection = Connection(ends.redis.server())
    try:
        return connection.command(*words)
    finally:
        connection.close()


@pytest.mark.parametrize("binary", binaries())
@pytest.mark.parametrize("resumed", [True, False])
def test_an_outdated_intake_takes_nothing_from_its_successor(
    binary: str, resumed: bool, tmp_path: Any, closing: Any
) -> None:
    with RedisServer(tmp_path / "r", binary=binary) as redis_server:
        ends = Ends(redis_server, closing)
        first, second = places(ends, resumed)
        for place in (first, second):
            place._connection.close()
        sender = ends.sender()
        old, new, intake = ends.receiver(fence=first.taken), ends.receiver(fence=second.taken), Intake()
        offer(sender, range(30))
        for _ in range(5):
            sender.step(0.0)
            for act in (old.known, old.depth, lambda: old.receive(0.0)):
                with pytest.raises(OwnershipError, match="has a newer learner than the one that this process works"):
                    act()
        assert ask(ends, "EXISTS", KEYS.steps) == 0
        until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.0), lambda: intake.take(new))
        assert intake.bodies["m"] == [body_of(number) for number in range(30)]


def test_an_intake_that_is_overtaken_at_work_neither_acknowledges_nor_reads_on(ends: Ends) -> None:
    sender, intake = ends.sender(), Intake()
    record = a_record(name=KEYS.name)
    place = LearnerLease.take(ends.redis.server(), record)
    old = ends.receiver(fence=place.taken)
    old.receive(0.0)
    offer(sender, range(30))
    got = []
    until(lambda: len(got) > 8, lambda: sender.step(0.0), lambda: got.extend(old.receive(0.0)))
    place.leave()
    successor = LearnerLease.take(ends.redis.server(), record)
    with pytest.raises(OwnershipError):  # before the successor's intake is there
        old.acknowledge(got[:1], {("m", 1): 1})
        old.receive(0.0)
    new = ends.receiver(fence=successor.taken)
    assert new.known() == {}
    until(lambda: len(got) == len(intake.bodies.get("m", [])), lambda: sender.step(0.0), lambda: intake.take(new))
    for _ in range(3):
        with pytest.raises(OwnershipError):
            old.acknowledge(got, {("m", 1): 30})
            old.receive(0.0)
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.0), lambda: intake.take(new))
    assert intake.bodies["m"] == [body_of(number) for number in range(30)]
    assert len(ask(ends, "KEYS", KEYS.steps + ":*")) == 1  # the old stream went
    successor.leave()


def test_an_intake_begun_again_goes_on_where_the_last_one_was(ends: Ends) -> None:
    place = LearnerLease.take(ends.redis.server(), a_record(name=KEYS.name))
    sender, intake = ends.sender(), Intake()
    first = ends.receiver(fence=place.taken)
    first.receive(0.0)
    offer(sender, range(10))
    until(lambda: first.depth() == 10, lambda: sender.step(0.0))
    assert first.receive(1.0)
    generation = ask(ends, "GET", KEYS.steps)
    assert generation.startswith(b"%d-" % place.taken)
    first._disconnect()
    second = ends.receiver(fence=place.taken)
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.0), lambda: intake.take(second))
    assert ask(ends, "GET", KEYS.steps) == generation
    assert sender.resent_frames == 0
    place.leave()


def test_a_server_that_came_back_empty_does_not_let_the_old_one_in(ends: Ends) -> None:
    first, second = places(ends, resumed=True)
    old, new = ends.receiver(fence=first.taken), ends.receiver(fence=second.taken)
    new.receive(0.0)
    ask(ends, "FLUSHALL")
    new.receive(0.05)  # before its learner said again who it is
    with pytest.raises(OwnershipError):
        old.receive(0.05)
    ask(ends, "FLUSHALL")
    second.renew(LearnerDigest())
    with pytest.raises(OwnershipError):
        old.receive(0.05)
    second.leave()
    first.leave()


@pytest.mark.parametrize("binary", binaries())
def test_an_outdated_uploader_leaves_the_weights_of_its_successor(binary: str, tmp_path: Any, closing: Any) -> None:
    with RedisServer(tmp_path / "r", binary=binary) as redis_server:
        ends = Ends(redis_server, closing)
        first, second = places(ends, resumed=True)
        old, new = (ends.uploader(fence=fence) for fence in (first.taken, second.taken))
        new.publish({"w": np.ones(3)}, 5)
        before = {key: ask(ends, "GET", key) for key in ask(ends, "KEYS", KEYS.weights + "*")}
        assert len(before) == 2
        for version in (5, 9):
            with pytest.raises(OwnershipError, match="newer learner"):
                old.publish({"w": np.zeros(3)}, version)
        assert {key: ask(ends, "GET", key) for key in ask(ends, "KEYS", KEYS.weights + "*")} == before
        downloader = ends.downloader()
        got = downloader.wait(0, 5.0)
        assert got is not None
        assert (got[0], got[1]["w"].tolist()) == (5, [1.0, 1.0, 1.0])
        for place in (first, second):
            place._connection.close()


def test_an_uploader_that_is_overtaken_while_it_sends_does_not_show_what_it_sent(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = places(ends, resumed=True)
    new = ends.uploader(fence=second.taken)
    new.publish({"w": np.ones(3)}, 5)
    head = ask(ends, "GET", KEYS.weights)
    old = ends.uploader(fence=first.taken)
    monkeypatch.setattr("apexrl.links.redis.weights_uploader.BEING_READ", "return {}")  # it looked just before
    with pytest.raises(OwnershipError):
        old.publish({"w": np.zeros(3)}, 9)
    assert ask(ends, "GET", KEYS.weights) == head
    for place in (first, second):
        place._connection.close()


def test_without_a_fence_any_life_is_taken_up(ends: Ends) -> None:
    with ends.redis.client() as raw:
        raw.set(KEYS.steps, b"999999999999999-whoever")
        raw.xadd(KEYS.steps + ":999999999999999-whoever", {"f": b"x"})
    receiver = ends.receiver()
    until(lambda: receiver.refused == 1, lambda: receiver.receive(0.0))
