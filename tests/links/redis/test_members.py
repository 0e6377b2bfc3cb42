from __future__ import annotations

import threading
from typing import Any

import pytest
import run_records
from run_records import join_soon, wait_until

from apexrl.errors import ClosedError, ExhaustedError, LinkError
from apexrl.links.redis import members
from apexrl.links.redis.checked_values import HostDigest, LearnerDigest, RunRecord
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostLease, MessageReader, SlotLease
from apexrl.links.redis.run_listing import look
from apexrl.links.redis.run_record import LearnerLease, Orders
from apexrl.links.redis.scripts import PRUNE
from apexrl.links.redis.server import Server
from redis_server import RedisServer, binaries


def a_record(actor_slots: int = 8) -> RunRecord:
    return run_records.a_record(name="r", actor_slots=actor_slots)


@pytest.fixture
def record(server: Server):
    record = a_record()
    place = LearnerLease.take(server, record)
    yield record
    place.leave()


def indices(place: HostLease) -> list[int]:
    return [slot.index for slot in place.slots]


def test_the_lowest_free_slots_are_leased_and_come_back(server: Server, record: RunRecord) -> None:
    first, second = HostLease.join(server, record, 3), HostLease.join(server, record, 2)
    assert indices(first) == [0, 1, 2]
    assert indices(second) == [3, 4]
    assert [slot.generation for slot in first.slots + second.slots] == [1] * 5
    first.leave()
    third = HostLease.join(server, record, 4)
    assert third.slots == [SlotLease(0, 2), SlotLease(1, 2), SlotLease(2, 2), SlotLease(5, 1)]
    assert first.generation < second.generation < third.generation
    assert len({first.member, second.member, third.member}) == 3
    second.leave()
    third.leave()


def test_all_or_none(server: Server, record: RunRecord) -> None:
    first = HostLease.join(server, record, 6)
    with pytest.raises(ExhaustedError, match=r"has 8 actor slots and 2 free, 3 wanted: start at most 2 \(--actors 2\)"):
        HostLease.join(server, record, 3)
    second = HostLease.join(server, record, 2)
    with pytest.raises(ExhaustedError, match=r"0 free, 1 wanted: give the learner more \(--actor-slots\)"):
        HostLease.join(server, record)
    first.leave()
    second.leave()


def test_fifty_at_once_get_slots_of_their_own(server: Server) -> None:
    record = a_record(100)
    learner = LearnerLease.take(server, record)
    places: list[HostLease] = []
    threads = [threading.Thread(target=lambda: places.append(HostLease.join(server, record, 2))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sorted(index for place in places for index in indices(place)) == list(range(100))
    assert sorted(place.generation for place in places) == list(range(1, 51))
    for place in places:
        place.leave()
    learner.leave()


def test_who_falls_silent_loses_its_slots(server: Server, record: RunRecord) -> None:
    silent = HostLease.join(server, record, 8, ttl=0.1)
    heir = join_soon(server, record, 8)
    assert indices(heir) == indices(silent)
    assert silent.renew(HostDigest()).lost_slots == tuple(range(8))
    assert silent.slots == []
    heir.leave()
    assert silent.renew(HostDigest()).lost_slots == ()  # it gets slots again when there are any
    assert [slot.generation for slot in silent.slots] == [3] * 8
    silent.leave()


def test_a_late_host_keeps_what_is_free_and_gets_others_for_the_rest(
    server: Server, record: RunRecord, redis_server: RedisServer
) -> None:
    late, other = HostLease.join(server, record, 2), HostLease.join(server, record, 1)
    expire(redis_server, late)
    heir = HostLease.join(server, record, 1)
    assert heir.slots == [SlotLease(0, 2)]
    assert late.renew(HostDigest()).lost_slots == (0,)
    assert late.slots == [SlotLease(1, 1), SlotLease(3, 1)]
    assert late.renew(HostDigest()).lost_slots == ()
    for place in (late, other, heir):
        place.leave()


def test_a_slot_that_another_had_meanwhile_comes_back_with_a_new_generation(
    server: Server, record: RunRecord, redis_server: RedisServer
) -> None:
    late = HostLease.join(server, record, 1)
    expire(redis_server, late)
    HostLease.join(server, record, 1).leave()
    assert late.renew(HostDigest()).lost_slots == ()
    assert late.slots == [SlotLease(0, 3)]
    late.leave()


def test_members_hear_of_the_learner(server: Server) -> None:
    record = a_record()
    learner = LearnerLease.take(server, record, ttl=0.1)
    host = HostLease.join(server, record)
    learner.renew(LearnerDigest(weights_version=42))
    orders = host.renew(HostDigest())
    assert orders.weights_version == 42
    wait_until(lambda: not host.renew(HostDigest()).learner_alive)
    learner.renew(LearnerDigest(weights_version=43))
    assert host.renew(HostDigest()).weights_version == 43
    learner.leave()
    assert not host.renew(HostDigest()).learner_alive
    LearnerLease.take(server, a_record(), replace=True).leave()
    assert host.renew(HostDigest()).replaced
    with pytest.raises(ClosedError, match="another run has taken the name r"):
        HostLease.join(server, record)
    host.leave()


def test_hosts_hear_of_changed_settings_of_environments(server: Server) -> None:
    record = a_record()
    learner = LearnerLease.take(server, record)
    host = HostLease.join(server, record)
    learner.renew(LearnerDigest())
    assert host.renew(HostDigest()).env_change == b""
    learner.renew(LearnerDigest(), b'{"version": 1}')
    assert host.renew(HostDigest()).env_change == b'{"version": 1}'
    host.leave()
    learner.leave()


def test_what_members_say_arrives_once(server: Server, record: RunRecord) -> None:
    host, client = HostLease.join(server, record), HostLease.join(server, record, kind="client")
    messages = MessageReader(server, host.keys)
    assert messages.read() == []
    host.outbox.episodes([1.0, 2.0], [3, 4])
    for number in range(20):  # more than one renewal takes
        host.outbox.warning(f"number {number}", "warning")
    client.outbox.warning("über\x1b[2J", "error")
    host.renew(HostDigest())
    client.leave()
    host.leave()  # delivers the rest
    read = messages.read()
    mine = [(m.kind, m.values) for m in read if m.member == host.member]
    assert mine[0] == (
        "episodes",
        {"returns": [1.0, 2.0], "lengths": [3, 4], "count": 2, "mean_return": 1.5, "mean_length": 3.5},
    )
    assert [values["text"] for _, values in mine[1:]] == [f"number {number}" for number in range(20)]
    of_client = {"text": "über\x1b[2J", "level": "error", "count": 1}
    assert [(m.kind, m.values) for m in read if m.member == client.member] == [("log", of_client)]
    assert messages.read() == []
    assert (host.outbox.said, host.outbox.told, host.outbox.dropped) == (22, 22, 0)
    messages.close()


def test_a_queue_that_is_full_loses_nothing_until_the_member_leaves(
    server: Server, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MOST_MESSAGES", 10)
    host, messages = HostLease.join(server, record), MessageReader(server, RunKeys(record.name))
    for number in range(30):
        host.outbox.warning(f"number {number}", "warning")
        host.outbox.episodes([float(number)], [1])
    for _ in range(5):
        host.renew(HostDigest())
    assert (host.outbox.said, host.outbox.dropped) == (60, 0)
    assert host.outbox.told == 10 - 1 + 30  # one message of all episodes
    assert len(messages.read()) == 10
    for _ in range(3):
        host.renew(HostDigest())
    host.outbox.episodes([5.0], [1])
    host.leave()
    outbox = host.outbox
    assert (outbox.said, outbox.told, outbox.dropped) == (61, 10 - 1 + 30 + 10, 12)
    messages.close()


def test_what_members_say_outlives_an_absence_of_the_server(redis_server: RedisServer, record: RunRecord) -> None:
    server = redis_server.server()
    host, messages = HostLease.join(server, record), MessageReader(server, RunKeys(record.name))
    assert messages.read(0.01) == []
    redis_server.kill()
    assert messages.read() == messages.read() == []
    host.outbox.warning("one", "warning")
    with pytest.raises(LinkError):
        host.renew(HostDigest())
    host.outbox.warning("two", "warning")
    redis_server.restart(keep_data=False)
    host.renew(HostDigest())
    host.renew(HostDigest())
    assert [message.values["text"] for message in messages.read(30.0)] == ["one", "two"]
    host.leave()
    messages.close()


def test_all_that_a_thousand_members_say_is_read_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    record = a_record(1000)
    learner = LearnerLease.take(server, record)
    host = HostLease.join(server, record)
    messages = MessageReader(server, host.keys)
    for number in range(members.MOST_MESSAGES):  # as many hosts, each with one message
        host.outbox.episodes([float(number)], [1])
        orders = host.renew(HostDigest())
    assert orders.members == 1
    assert sum(message.values["count"] for message in messages.read()) == members.MOST_MESSAGES
    host.leave()
    learner.leave()
    messages.close()


def test_renewals_are_rarer_the_more_members_there_are() -> None:
    few, many = [[members.renewal_pause(Orders(members=n), 10.0) for _ in range(100)] for n in (3, 800)]
    assert 0.9 <= min(few) < max(few) <= 1.0
    assert 1.8 <= min(many) < max(many) <= 2.0
    assert members.renewal_pause(Orders(members=100_000), 10.0) <= 2.5  # four times in a lease


def test_the_learners_trouble_reaches_members(server: Server) -> None:
    learner = LearnerLease.take(server, a_record())
    host = HostLease.join(server, learner.record)
    learner.renew(LearnerDigest(weights_trouble="the server is full"))
    assert host.renew(HostDigest()).weights_trouble == "the server is full"
    learner.renew(LearnerDigest())
    assert host.renew(HostDigest()).weights_trouble == ""
    host.leave()
    learner.leave()


def test_what_is_no_message_is_counted_and_skipped(
    server: Server, record: RunRecord, redis_server: RedisServer
) -> None:
    host = HostLease.join(server, record)
    good = {"member": "m-1", "kind": "log", "values": b'{"a":1}'}
    hostile = [
        {"x": "y"}, {**good, "values": b"[1]"}, {**good, "values": b"[" * 50_000}, {**good, "values": b"\xff"},
        {**good, "kind": "a b"}, {**good, "kind": "k" * 200}, {**good, "member": b"\x1b[2J"}, {**good, "more": "1"},
        {**good, "values": b'{"a":"' + b"x" * 70_000 + b'"}'},
    ]  # fmt: skip
    with redis_server.client() as raw:
        for entry in hostile:
            raw.xadd(host.keys.messages, entry)
        raw.xadd(host.keys.messages, good)
        messages = MessageReader(server, host.keys)
        assert messages.read() == [("m-1", "log", {"a": 1})]
        assert messages.unreadable == len(hostile)
        raw.delete(host.keys.messages)
        raw.set(host.keys.messages, "not a stream")
        assert messages.read() == []
    host.leave()
    messages.close()


def test_the_dead_are_marked_and_vanish(redis_server: RedisServer, server: Server, record: RunRecord) -> None:
    connection = Connection(server)
    silent, gone = HostLease.join(server, record, 2, ttl=0.5), HostLease.join(server, record, 1)
    living = HostLease.join(server, record, 1, kind="client", ttl=60.0)
    gone.renew(HostDigest(env_steps=7))
    gone.leave()
    wait_until(lambda: "lost" in [member.state for member in look(connection, "r").members])
    view = look(connection, "r")
    assert [(m.member, m.state, m.kind) for m in view.members] == [
        (living.member, "alive", "client"), (silent.member, "lost", "host"), (gone.member, "left", "host"),
    ]  # fmt: skip
    assert view.members[2].digest.env_steps == 7
    assert view.members[1].slots == [0, 1]
    connection.script(PRUNE, [silent.keys.members], 60_000)
    assert len(look(connection, "r").members) == 3
    with redis_server.client() as raw:
        for place in (silent, gone):  # as if it had been silent for long
            said = raw.hget(place.keys.members, place.member)
            raw.hset(place.keys.members, place.member, b"1000 " + said.partition(b" ")[2])
    connection.script(PRUNE, [silent.keys.members], 60_000)
    assert [m.member for m in look(connection, "r").members] == [living.member]
    living.leave()
    connection.close()


def test_joining_a_run_of_thousands_of_slots_costs_the_server_few_commands(
    redis_server: RedisServer, server: Server
) -> None:
    record = a_record(actor_slots=5_000)
    LearnerLease.take(server, record, 60.0)
    first = HostLease.join(server, record, 4_000)
    with redis_server.client() as raw:
        raw.config_resetstat()
        late = HostLease.join(server, record, 3)
        told: Any = raw.info("commandstats")
    assert [slot.index for slot in late.slots] == [4_000, 4_001, 4_002]
    assert sum(stats["calls"] for stats in told.values()) < 100
    for lease in (first, late):
        lease.leave()


def test_thousands_of_slots_fit(server: Server) -> None:
    record = a_record(10_000)
    learner = LearnerLease.take(server, record)
    host = HostLease.join(server, record, 10_000)
    assert host.renew(HostDigest()).lost_slots == ()
    assert indices(host) == list(range(10_000))
    host.leave()
    learner.leave()


@pytest.mark.parametrize("binary", binaries())
def test_every_server_at_hand_runs_the_scripts(binary: str, tmp_path) -> None:
    with RedisServer(tmp_path / "other", binary=binary) as other:
        server, record = other.server(), a_record()
        learner = LearnerLease.take(server, record)
        host = HostLease.join(server, record, 2)
        host.outbox.warning("one", "error")
        assert host.renew(HostDigest()).learner_alive
        assert not learner.renew(LearnerDigest()).stop
        messages = MessageReader(server, host.keys)
        assert messages.read() == [(host.member, "log", {"text": "one", "level": "error", "count": 1})]
        messages.close()
        host.leave()
        learner.finish({})


def expire(redis_server: RedisServer, place: HostLease) -> None:
    """As if ``place`` had been silent for longer than its leases."""
    with redis_server.client() as raw:
        for slot in place.slots:
            raw.hset(place.keys.slots, str(slot.index), f"{place.member} {slot.generation} 1000 1000")


def test_a_name_is_found_among_other_keys(redis_server: RedisServer, record: RunRecord) -> None:
    from apexrl.links.redis.run_listing import runs

    with redis_server.client() as raw:
        raw.mset({f"other:{number}": "x" for number in range(3000)})
        raw.set("apexrl:{a b}:record", "x")
    assert runs(redis_server.server()) == ["r"]
