"""What a standby sees of a learner, and when it may take its place, on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from run_records import a_record, wait_until

from apexrl.errors import ClosedError, HeldError, LinkError
from apexrl.links.redis.checked_values import LearnerDigest
from apexrl.links.redis.learner_watch import LearnerWatch
from apexrl.links.redis.run_record import LearnerLease, stop_run
from apexrl.links.redis.server import Server
from redis_server import RedisServer

TTL = 0.5
RECORD = a_record()


@pytest.fixture
def watch(server: Server) -> Iterator[LearnerWatch]:
    with closing(LearnerWatch(server, RECORD.name, RECORD.run_id, TTL)) as watch:
        yield watch


def take(server: Server, **options: Any) -> LearnerLease:
    return LearnerLease.take(server, RECORD, TTL, **options)


def test_a_learner_is_gone_when_its_lease_has_ended(server: Server, watch: LearnerWatch) -> None:
    learner = take(server)
    sight = watch.look()
    assert sight.state == "alive"
    assert 0.0 < sight.wait_seconds <= TTL
    assert "process" in sight.who
    learner.renew(LearnerDigest())
    with pytest.raises(HeldError):
        take(server, takes_over=True)
    wait_until(lambda: watch.look().state == "gone")
    assert take(server, takes_over=True).resumed
    assert watch.look().state == "alive"


def test_one_that_left_is_gone_at_once(server: Server, watch: LearnerWatch) -> None:
    take(server).leave()
    assert watch.look().state == "gone"


def test_after_a_cut_a_learner_has_a_lease_of_time_to_come_back(
    redis_server: RedisServer, server: Server, watch: LearnerWatch
) -> None:
    """The server was away for longer than the lease, so the learner could not renew it either."""
    learner = take(server)
    watch.look()
    redis_server.restart(keep_data=True)
    with pytest.raises(LinkError):
        watch.look()
    assert watch.look().state == "alive"  # it came back empty, and knows no run
    with pytest.raises(LinkError):
        learner.renew(LearnerDigest())
    learner.renew(LearnerDigest())
    assert watch.look().state == "alive"
    wait_until(lambda: watch.look().state == "gone")


def test_a_run_that_a_server_has_forgotten_is_gone_after_two_leases(
    redis_server: RedisServer, server: Server, watch: LearnerWatch
) -> None:
    began = time.monotonic()
    assert watch.look().state == "alive"
    wait_until(lambda: watch.look().state == "gone")
    assert time.monotonic() - began >= 2 * TTL
    assert not take(server, takes_over=True).resumed


def test_a_run_that_has_ended_or_shall_end_is_not_taken_over(server: Server, watch: LearnerWatch) -> None:
    lease = take(server)
    assert stop_run(server, RECORD.name) == "asked"
    assert watch.look().state == "over"
    lease.leave()
    with pytest.raises(ClosedError, match="has ended, or was asked to stop"):
        take(server, takes_over=True)
    again = take(server)  # a person may
    again.finish({}, timeout=0.1)
    assert watch.look().state == "over"
    with pytest.raises(ClosedError, match="has ended"):
        take(server, takes_over=True)


def test_another_run_of_that_name_is_not_taken_over(server: Server, watch: LearnerWatch) -> None:
    LearnerLease.take(server, a_record(run_id="one-more-run-of-many"), TTL)
    assert watch.look().state == "another"
