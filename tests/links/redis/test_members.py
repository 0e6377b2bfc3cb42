from __future__ import annotations

import threading

import pytest
import records
from records import join_soon, wait_until

from apexrl.errors import ClosedError, ExhaustedError, LinkError
from apexrl.links.redis import members
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostPlace, Messages, SlotLease
from apexrl.links.redis.run import LearnerPlace
from apexrl.links.redis.scripts import PRUNE, Connection
from apexrl.links.redis.server import Server
from apexrl.links.redis.values import HostDigest, LearnerDigest, RunRecord
from apexrl.links.redis.view import look
from redis_server import RedisServer, binaries


def a_record(actor_slots: int = 8) -> RunRecord:
    return records.a_record(name="r", actor_slots=actor_slots)


@pytest.fixture
def record(server: Server):
    record = a_record()
    place = LearnerPlace.take(server, record)
    yield record
    place.leave()


def indices(place: HostPlace) -> list[int]:
    return [slot.index for slot in place.slots]


def test_the_lowest_free_slots_are_leased_and_come_back(server: Server, record: RunRecord) -> None:
    first, second = HostPlace.join(server, record, 3), HostPlace.join(server, record, 2)
    assert indices(first) == [0, 1, 2]
    assert indices(second) == [3, 4]
    assert [slot.generation for slot in first.slots + second.slots] == [1] * 5
    first.leave()
    third = HostPlace.join(server, record, 4)
    assert third.slots == [SlotLease(0, 2), SlotLease(1, 2), SlotLease(2, 2), SlotLease(5, 1)]
    assert first.generation < second.generation < third.generation
    assert len({first.member, second.member, third.member}) == 3
    second.leave()
    third.leave()


def test_all_or_none(server: Server, record: RunRecord) -> None:
    first = HostPlace.join(server, record, 6)
    with pytest.raises(ExhaustedError, match=r"has 8 actor slots and 2 free, 3 wanted: start at most 2 \(--actors 2\)"):
        HostPlace.join(server, record, 3)
    second = HostPlace.join(server, record, 2)
    with pytest.raises(ExhaustedError, match=r"0 free, 1 wanted: give the learner more \(--actor-slots\)"):
        HostPlace.join(server, record)
    first.leave()
    second.leave()


def test_fifty_at_once_get_slots_of_their_own(server: Server) -> None:
    record = a_record(100)
    learner = LearnerPlace.take(server, record)
    places: list[HostPlace] = []
    threads = [threading.Thread(target=lambda: places.append(HostPlace.join(server, record, 2))) for _ in range(50)]
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
    silent = HostPlace.join(server, record, 8, ttl=0.1)
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
    late, other = HostPlace.join(server, record, 2), HostPlace.join(server, record, 1)
    expire(redis_server, late)
    heir = HostPlace.join(server, record, 1)
    assert heir.slots == [SlotLease(0, 2)]
    assert late.renew(HostDigest()).lost_slots == (0,)
    assert late.slots == [SlotLease(1, 1), SlotLease(3, 1)]
    assert late.renew(HostDigest()).lost_slots == ()
    for place in (late, other, heir):
        place.leave()


def test_a_slot_that_another_had_meanwhile_comes_back_with_a_new_generation(
    server: Server, record: RunRecord, redis_server: RedisServer
) -> None:
    late = HostPlace.join(server, record, 1)
    expire(redis_server, late)
    HostPlace.join(server, record, 1).leave()
    assert late.renew(HostDigest()).lost_slots == ()
    assert late.slots == [SlotLease(0, 3)]
    late.leave()


def test_members_hear_of_the_learner(server: Server) -> None:
    record = a_record()
    learner = LearnerPlace.take(server, record, ttl=0.1)
    host = HostPlace.join(server, record)
    learner.renew(LearnerDigest(weights_version=42))
    orders = host.renew(HostDigest())
    assert orders.weights_version == 42
    wait_until(lambda: not host.renew(HostDigest()).learner_alive)
    learner.renew(LearnerDigest(weights_version=43))
    assert host.renew(HostDigest()).weights_version == 43
    learner.leave()
    assert not host.renew(HostDigest()).learner_alive
    LearnerPlace.take(server, a_record()).leave()
    assert host.renew(HostDigest()).replaced
    with pytest.raises(ClosedError, match="another run has taken the name r"):
        HostPlace.join(server, record)
    host.leave()


def test_messages_arrive_once_and_in_order(server: Server, record: RunRecord) -> None:
    host, client = HostPlace.join(server, record), HostPlace.join(server, record, kind="client")
    messages = Messages(server, host.keys)
    assert messages.read() == []
    for number in range(100):  # more than one renewal takes
        assert host.send("episodes", {"number": number})
    client.send("log", {"text": "über\x1b[2J"})
    host.renew(HostDigest())
    client.leave()
    host.leave()  # delivers the rest
    read = messages.read()
    assert [m.values["number"] for m in read if m.member == host.member] == list(range(100))
    assert [(m.kind, m.values) for m in read if m.member == client.member] == [("log", {"text": "über\x1b[2J"})]
    assert messages.read() == []
    messages.close()


def test_messages_are_bounded_and_drops_are_counted(
    server: Server, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MOST_MESSAGES", 10)
    host = HostPlace.join(server, record)
    assert not host.send("log", {"text": "x" * 70_000})
    assert host.dropped_messages == 1
    sent = sum(host.send("log", {"number": number}) for number in range(300))
    assert sent == members._MOST_QUEUED
    assert host.dropped_messages == 1 + 300 - sent
    host.leave()
    assert host.dropped_messages == 1 + 300 - 10
    messages = Messages(server, host.keys)
    assert [message.values["number"] for message in messages.read()] == list(range(10))
    messages.close()


def test_messages_outlive_an_absence_of_the_server(redis_server: RedisServer, record: RunRecord) -> None:
    server = redis_server.server()
    host, messages = HostPlace.join(server, record), Messages(server, RunKeys(record.name))
    assert messages.read(0.01) == []
    redis_server.kill()
    assert messages.read() == messages.read() == []
    host.send("log", {"number": 1})
    with pytest.raises(LinkError):
        host.renew(HostDigest())
    host.send("log", {"number": 2})
    redis_server.restart(keep_data=False)
    host.renew(HostDigest())
    assert [message.values["number"] for message in messages.read(30.0)] == [1, 2]
    host.leave()
    messages.close()


def test_what_is_no_message_is_counted_and_skipped(
    server: Server, record: RunRecord, redis_server: RedisServer
) -> None:
    host = HostPlace.join(server, record)
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
        messages = Messages(server, host.keys)
        assert messages.read() == [("m-1", "log", {"a": 1})]
        assert messages.unreadable == len(hostile)
        raw.delete(host.keys.messages)
        raw.set(host.keys.messages, "not a stream")
        assert messages.read() == []
    host.leave()
    messages.close()


def test_the_dead_are_marked_and_vanish(redis_server: RedisServer, server: Server, record: RunRecord) -> None:
    connection = Connection(server)
    silent, gone = HostPlace.join(server, record, 2, ttl=0.5), HostPlace.join(server, record, 1)
    living = HostPlace.join(server, record, 1, kind="client", ttl=60.0)
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


def test_thousands_of_slots_fit(server: Server) -> None:
    record = a_record(10_000)
    learner = LearnerPlace.take(server, record)
    host = HostPlace.join(server, record, 10_000)
    assert host.renew(HostDigest()).lost_slots == ()
    assert indices(host) == list(range(10_000))
    host.leave()
    learner.leave()


@pytest.mark.parametrize("binary", binaries())
def test_every_server_at_hand_runs_the_scripts(binary: str, tmp_path) -> None:
    with RedisServer(tmp_path / "other", binary=binary) as other:
        server, record = other.server(), a_record()
        learner = LearnerPlace.take(server, record)
        host = HostPlace.join(server, record, 2)
        host.send("log", {"a": 1})
        assert host.renew(HostDigest()).learner_alive
        assert not learner.renew(LearnerDigest()).stop
        messages = Messages(server, host.keys)
        assert messages.read() == [(host.member, "log", {"a": 1})]
        messages.close()
        host.leave()
        learner.finish({})


def expire(redis_server: RedisServer, place: HostPlace) -> None:
    """As if ``place`` had been silent for longer than its leases."""
    with redis_server.client() as raw:
        for slot in place.slots:
            raw.hset(place.keys.slots, str(slot.index), f"{place.member} {slot.generation} 1000 1000")


def test_a_name_is_found_among_other_keys(redis_server: RedisServer, record: RunRecord) -> None:
    from apexrl.links.redis.view import runs

    with redis_server.client() as raw:
        raw.mset({f"other:{number}": "x" for number in range(3000)})
        raw.set("apexrl:{a b}:record", "x")
    connection = Connection(redis_server.server())
    assert runs(connection) == ["r"]
    connection.close()
