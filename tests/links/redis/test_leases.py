"""Leases when the server is full, or its clock is set back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_records import a_record, join_soon, seen, take_soon

from apexrl.errors import LinkError, OwnershipError
from apexrl.links.redis.checked_values import HostDigest, LearnerDigest
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostLease, MessageReader
from apexrl.links.redis.run_listing import look
from apexrl.links.redis.run_record import LearnerLease, find_run, stop_run
from apexrl.links.redis.scripts import PRUNE
from apexrl.links.redis.server import Server
from redis_server import RedisServer, binaries

HOUR = 3_600_000


@pytest.mark.parametrize("binary", binaries())
def test_whoever_lives_can_say_so_on_a_full_server(binary: str, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r", binary=binary, maxmemory_policy="noeviction") as redis_server:
        server, record = redis_server.server(), a_record()
        learner, host = LearnerLease.take(server, record, ttl=60.0), HostLease.join(server, record, 2, ttl=60.0)
        messages = MessageReader(server, host.keys)
        with redis_server.client() as raw:
            raw.config_set("maxmemory", 1)
            learner.renew(LearnerDigest(updates=7))
            host.outbox.warning("number 1", "warning")
            assert host.renew(HostDigest(env_steps=3)).learner_alive
            assert (seen(server).digest.updates, seen(server).alive[0].digest.env_steps) == (7, 3)
            late = HostLease.join(server, record, 1)
            late.outbox.warning("number 2", "warning")
            late.leave()  # what it had to say finds no room
            assert messages.read() == []
            raw.delete(learner.keys.record, learner.keys.generations)
            learner.renew(LearnerDigest())
            assert find_run(server, record.name, 5.0) == record
            raw.config_set("maxmemory", 0)
            host.renew(HostDigest())
            assert [message.values["text"] for message in messages.read()] == ["number 1"]
            assert host.outbox.dropped == 0
            raw.config_set("maxmemory", 1)
            learner.leave()
            again = LearnerLease.take(server, record)
            assert stop_run(server, record.name) == "asked"
            assert again.renew(LearnerDigest()).stop
            host.leave()
            again.finish({"why": "full"})
            assert seen(server).phase == "finished"
        messages.close()


@pytest.mark.parametrize("binary", binaries())
def test_what_is_not_a_matter_of_life_still_finds_the_server_full(binary: str, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r", binary=binary, maxmemory=1, maxmemory_policy="noeviction") as redis_server:
        connection = Connection(redis_server.server())
        with pytest.raises(LinkError, match="is full: raise its maxmemory"):
            connection.command("SET", "x", "y")
        connection.close()


def test_a_clock_that_was_set_back_frees_a_dead_learners_place(server: Server, raw: Any) -> None:
    record = a_record()
    LearnerLease.take(server, record, ttl=0.2)
    now = _now(raw)
    raw.hset(RunKeys(record.name).learner, mapping={"seen": now + HOUR, "until": now + HOUR + 200})
    second = take_soon(server, record)
    assert second.resumed
    second.renew(LearnerDigest())
    second.leave()


def test_a_clock_that_was_set_back_lets_a_living_learner_stay(server: Server, raw: Any) -> None:
    record = a_record()
    first = LearnerLease.take(server, record, ttl=60.0)
    now = _now(raw)
    raw.hset(first.keys.learner, mapping={"seen": now + HOUR, "until": now + HOUR + 60_000})
    with pytest.raises(OwnershipError, match=r"ends in \d\d\.\d s"):
        LearnerLease.take(server, record, ttl=0.001)
    first.renew(LearnerDigest())
    assert seen(server).learner_alive
    first.leave()


def test_a_clock_that_was_set_back_frees_the_slots_of_the_dead(server: Server, raw: Any) -> None:
    record = a_record()
    learner = LearnerLease.take(server, record)
    dead, living = HostLease.join(server, record, 2, ttl=0.2), HostLease.join(server, record, 6, ttl=60.0)
    now = _now(raw)
    for place, ttl in ((dead, 200), (living, 60_000)):
        for slot in place.slots:
            raw.hset(place.keys.slots, str(slot.index), f"{place.member} {slot.generation} {now + HOUR + ttl} {ttl}")
        heartbeat = raw.hget(place.keys.members, place.member).split(b" ", 2)[2]
        raw.hset(place.keys.members, place.member, b"%d %d %b" % (now + HOUR, now + HOUR + ttl, heartbeat))
    heir = join_soon(server, record, 2)
    assert [slot.index for slot in heir.slots] == [0, 1]
    assert living.renew(HostDigest()).lost_slots == ()
    states = {member.member: member.state for member in seen(server).members}
    assert states == {dead.member: "lost", living.member: "alive", heir.member: "alive"}
    connection = Connection(server)
    connection.script(PRUNE, [living.keys.members], 60_000)
    assert {member.member for member in look(connection, record.name).members} == {living.member, heir.member}
    connection.close()
    for place in (living, heir):
        place.leave()
    learner.leave()


def test_ghosts_of_a_clock_that_was_set_back_do_not_keep_a_run_from_ending(server: Server, raw: Any) -> None:
    record = a_record()
    learner = LearnerLease.take(server, record)
    host = HostLease.join(server, record)
    now = _now(raw)
    heartbeat = raw.hget(host.keys.members, host.member).split(b" ", 2)[2]
    ghost = b"%d %d %b" % (now + HOUR, now + HOUR + 200, heartbeat)
    raw.hset(host.keys.members, host.member, ghost)
    assert not learner._anybody()
    learner.leave()
    assert stop_run(server, record.name) == "deserted"


def _now(raw: Any) -> int:
    """The server's clock, in milliseconds."""
    seconds, micros = raw.time()
    return int(seconds) * 1000 + int(micros) // 1000
