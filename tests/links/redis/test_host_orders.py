"""Orders to hosts: to leave and stay away, and how many actors to bring."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator

import pytest
import run_records
from rich.console import Console

from apexrl.cli import drain_and_scale as commands
from apexrl.errors import ConfigError, HeldError
from apexrl.links.printable import host_name
from apexrl.links.redis.checked_values import HostDigest, LearnerDigest, RunRecord
from apexrl.links.redis.host_orders import drain, ordered_actors, scale
from apexrl.links.redis.members import HostLease, MessageReader
from apexrl.links.redis.run_record import LearnerLease
from apexrl.links.redis.server import Server
from redis_server import RedisServer

HERE = host_name()


@pytest.fixture
def learner(server: Server) -> Iterator[LearnerLease]:
    place = LearnerLease.take(server, run_records.a_record(name="r", actor_slots=8))
    yield place
    place.leave()


@pytest.fixture
def record(learner: LearnerLease) -> RunRecord:
    return learner.record


def test_a_drained_host_hears_of_it_and_is_refused_until_it_may_come_back(server: Server, record: RunRecord) -> None:
    host, client = HostLease.join(server, record, 2), HostLease.join(server, record, 1, kind="client")
    assert not host.renew(HostDigest()).drained
    assert drain(server, "r", "another") == "done"
    assert not host.renew(HostDigest()).drained
    assert drain(server, "r", HERE) == "done"
    assert host.renew(HostDigest()).drained
    assert not client.renew(HostDigest()).drained  # it runs a program of its own
    host.leave()
    with pytest.raises(HeldError, match=f"host {HERE} was drained from run r: .* apexrl drain {HERE} --undo"):
        HostLease.join(server, record, 1)
    assert drain(server, "r", HERE, undo=True) == "done"
    assert drain(server, "r", HERE, undo=True) == "nothing"
    back = HostLease.join(server, record, 2)
    assert [slot.index for slot in back.slots] == [0, 1]
    back.leave()
    client.leave()


def test_a_drain_outlives_the_learner_but_not_the_run(server: Server, learner: LearnerLease) -> None:
    drain(server, "r", HERE)
    learner.leave()
    again = LearnerLease.take(server, learner.record)
    with pytest.raises(HeldError):
        HostLease.join(server, learner.record, 1)
    again.renew(LearnerDigest())
    again.leave()
    other = LearnerLease.take(server, run_records.a_record(name="r", actor_slots=8), replace=True)
    HostLease.join(server, other.record, 1).leave()
    other.leave()


def test_the_number_for_a_host_goes_before_that_for_all(server: Server, record: RunRecord) -> None:
    host, client = HostLease.join(server, record, 1), HostLease.join(server, record, 1, kind="client")
    assert host.renew(HostDigest()).actors == ordered_actors(server, "r", HERE) == 0
    scale(server, "r", "all", 3)
    assert host.renew(HostDigest()).actors == ordered_actors(server, "r", HERE) == 3
    scale(server, "r", HERE, 5)
    assert host.renew(HostDigest()).actors == ordered_actors(server, "r", HERE) == 5
    assert ordered_actors(server, "r", "another") == 3
    assert client.renew(HostDigest()).actors == 0
    scale(server, "r", "all", 2)
    assert host.renew(HostDigest()).actors == 2
    host.leave()
    client.leave()


def test_orders_for_no_run_and_of_no_sense_are_refused(server: Server, redis_server: RedisServer) -> None:
    assert (drain(server, "r", "h"), scale(server, "r", "h", 1)) == ("none", "none")
    place = LearnerLease.take(server, run_records.a_record(name="r", actor_slots=8))
    for host in ("", "*", "all", 65 * "h"):
        with pytest.raises(ConfigError, match="say which host"):
            drain(server, "r", host)
    for actors in (0, -1, 5000):
        with pytest.raises(ConfigError, match="--actors must be from 1 to 4096"):
            scale(server, "r", "all", actors)
    with redis_server.client() as raw:
        for junk in (b"many", b"-3", b"1e3", b"99999999999999999999", b"5000"):
            raw.hset(place.keys.state, f"actors:{HERE}", junk)
            assert ordered_actors(server, "r", HERE) == 0
            host = HostLease.join(server, place.record, 1)
            assert host.renew(HostDigest()).actors == 0
            host.leave()
    place.finish({}, timeout=0.0)
    assert (drain(server, "r", "h"), scale(server, "r", "h", 1)) == ("finished", "finished")


def test_who_heeds_an_order_says_so(server: Server, record: RunRecord) -> None:
    host = HostLease.join(server, record, 1)
    host.outbox.order("drained", "drained: it leaves")
    host.leave()
    reader = MessageReader(server, host.keys)
    (message,) = reader.read(5.0)
    reader.close()
    assert (message.member, message.kind) == (host.member, "drained")
    assert message.values == {"text": "drained: it leaves", "count": 1}
    assert (host.outbox.said, host.outbox.told, host.outbox.dropped) == (1, 1, 0)


def said(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_command_waits_until_the_host_has_left(
    redis_server: RedisServer, server: Server, record: RunRecord
) -> None:
    console = Console(file=io.StringIO(), width=200)
    assert commands.drain(redis_server.url, "r", HERE, console=console) == 0
    assert f"no host {HERE} is at run r" in said(console)
    assert "there are: none" in said(console)
    assert commands.drain(redis_server.url, "r", HERE, undo=True, console=console) == 0
    host = HostLease.join(server, record, 2)
    assert commands.drain(redis_server.url, "r", HERE, wait_seconds=0.1, console=console) == 1
    assert "is still there after 0 s" in said(console)
    console = Console(file=io.StringIO(), width=200)

    def leave() -> None:
        while "was asked to leave" not in said(console) or not host.renew(HostDigest()).drained:
            time.sleep(0.01)
        host.leave()

    thread = threading.Thread(target=leave)
    thread.start()
    assert commands.drain(redis_server.url, "r", HERE, console=console) == 0
    thread.join()
    assert f"has left, and is refused until apexrl drain {HERE} --undo" in said(console)
    assert commands.drain(redis_server.url, "nope", HERE, console=console) == 1


def test_more_actors_than_there_are_slots_are_refused(
    redis_server: RedisServer, server: Server, record: RunRecord
) -> None:
    console = Console(file=io.StringIO(), width=200)
    assert commands.scale(redis_server.url, "r", "all", 2, console=console) == 1
    assert f"no actor host is at run r at {server.address}; there are: none" in said(console)
    hosts = [HostLease.join(server, record, 2), HostLease.join(server, record, 2)]
    client = HostLease.join(server, record, 1, kind="client")
    assert commands.scale(redis_server.url, "r", "all", 4, console=console) == 1
    assert "has 8 actor slots, of which others have 1: at most 3 for each of 2 hosts" in said(console)
    assert ordered_actors(server, "r", HERE) == 0
    assert commands.scale(redis_server.url, "r", "all", 3, console=console) == 0
    assert "each of 2 hosts was told to bring 3 actors" in said(console)
    assert commands.scale(redis_server.url, "r", HERE, 4, console=console) == 1
    assert f"at most 3 for each of 2 commands of host {HERE}" in said(console)
    assert [host.renew(HostDigest()).actors for host in hosts] == [3, 3]
    assert commands.scale(redis_server.url, "r", "elsewhere", 1, console=console) == 1
    assert f"there are: {HERE}" in said(console)
    hosts.pop().leave()
    assert commands.scale(redis_server.url, "r", "all", 8, console=console) == 1
    assert f"at most 7 for host {HERE}" in said(console)
    assert commands.scale(redis_server.url, "r", "all", 1, console=console) == 0
    assert f"host {HERE} was told to bring 1 actor to run r" in said(console)
    for one in (*hosts, client):
        one.leave()


@pytest.mark.parametrize("shown", ["gpu-9:1234", "gpu-9"])
def test_a_host_is_named_as_its_status_shows_it(shown: str) -> None:
    assert commands.checked_host(shown, "drain") == "gpu-9"
    assert commands.checked_host("a:b", "drain") == "a:b"
