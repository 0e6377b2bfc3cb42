from __future__ import annotations

import msgspec
import pytest
import redis
from run_records import a_record, again, seen

from apexrl.errors import LinkError, OwnershipError, WaitTimeout
from apexrl.links.redis.checked_values import HostDigest, LearnerDigest, encode
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_record import LearnerLease, find_run
from apexrl.links.redis.server import Server
from redis_server import RedisServer


@pytest.mark.parametrize("how", ["flushall", "restart"])
def test_an_empty_server_gets_everything_again(redis_server: RedisServer, server: Server, how: str) -> None:
    record = a_record()
    place, host = LearnerLease.take(server, record), HostLease.join(server, record, 3)
    other = HostLease.join(server, record, 2)
    place.renew(LearnerDigest())
    slots, generation = host.slots, host.generation
    if how == "flushall":
        with redis.Redis.from_url(redis_server.url) as raw:
            raw.flushall()
    else:
        redis_server.restart(keep_data=False)
    orders = again(lambda: host.renew(HostDigest(env_steps=5)))  # before the learner
    assert not orders.replaced
    assert not orders.learner_alive
    assert orders.lost_slots == ()
    assert host.slots == slots
    again(lambda: place.renew(LearnerDigest(updates=9)))
    again(lambda: other.renew(HostDigest()))
    assert find_run(server, record.name, 5.0) == record
    view = seen(server)
    assert (view.learner_alive, view.digest.updates, len(view.alive)) == (True, 9, 2)
    late = HostLease.join(server, record)
    assert late.generation > max(generation, other.generation)
    assert late.slots[0].index == 5
    for member in (host, other, late):
        member.leave()
    place.leave()


def test_generations_survive_an_empty_server_that_nobody_else_remembers(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    place, host = LearnerLease.take(server, record), HostLease.join(server, record)
    place.renew(LearnerDigest())
    host.leave()
    raw.flushall()
    place.renew(LearnerDigest())
    later = HostLease.join(server, record)
    assert later.generation > host.generation
    assert (later.slots[0].index, later.slots[0].generation) == (0, 2)
    later.leave()
    place.leave()


def test_an_old_snapshot_does_not_end_a_younger_run(server: Server, raw: redis.Redis) -> None:
    old, new = a_record(), a_record()
    LearnerLease.take(server, old).finish({})
    snapshot = {key: raw.dump(key) for key in raw.keys("*")}
    place, host = LearnerLease.take(server, new, replace=True), HostLease.join(server, new)

    def go_back() -> None:
        raw.flushall()
        for key, value in snapshot.items():
            raw.restore(key, 0, value)

    go_back()
    assert not host.renew(HostDigest()).replaced
    assert not host.renew(HostDigest()).finished
    place.renew(LearnerDigest())
    assert find_run(server, new.name, 5.0).run_id == new.run_id
    orders = host.renew(HostDigest())
    assert orders.learner_alive
    assert not orders.finished
    host.leave()
    place.leave()


def test_of_two_runs_of_one_name_the_younger_wins(server: Server, raw: redis.Redis) -> None:
    first = LearnerLease.take(server, a_record())
    raw.flushall()
    second = LearnerLease.take(server, a_record())  # before the first could renew
    with pytest.raises(OwnershipError):
        first.renew(LearnerDigest())
    second.renew(LearnerDigest())
    second.leave()


def test_a_server_that_is_gone_is_a_link_error_and_may_come_back(redis_server: RedisServer, server: Server) -> None:
    place = LearnerLease.take(server, a_record())
    redis_server.kill()
    with pytest.raises(LinkError):
        place.renew(LearnerDigest())
    with pytest.raises(LinkError):
        LearnerLease.take(server, a_record())
    with pytest.raises(WaitTimeout, match="was not there within"):
        find_run(server, "cartpole-1", 0.2)
    redis_server.restart(keep_data=False)
    again(lambda: place.renew(LearnerDigest()))
    place.leave()
    redis_server.kill()
    place.leave()


GARBAGE = (b"", b"\xff\xfe\x00", b"null", b"{}", b"[" * 100_000, b'{"phase": 1}', b"1e999", b"9" * 30, b"\x1b[2J")


@pytest.mark.parametrize("kind", ["string", "list", "hash", "stream"])
def test_garbage_in_every_key_is_healed_and_never_crashes(server: Server, raw: redis.Redis, kind: str) -> None:
    record = a_record()
    place, host = LearnerLease.take(server, record), HostLease.join(server, record, 2)
    keys = place.keys
    fields = ("phase", "stop", "learner", "token", "until", "seen", "host", "pid", "status", "version", "members",
              "slot:0", "0", "taken", "run_id", host.member)  # fmt: skip
    for garbage in GARBAGE:
        for key in (keys.record, keys.state, keys.learner, keys.generations, keys.slots, keys.members, keys.messages,
                    keys.committed, keys.steps):  # fmt: skip
            if kind != "hash" or raw.type(key) != b"hash":
                raw.delete(key)
            match kind:
                case "string":
                    raw.set(key, garbage)
                case "list":
                    raw.rpush(key, garbage)
                case "hash":
                    raw.hset(key, mapping=dict.fromkeys(fields, garbage))
                case "stream":
                    raw.xadd(key, {"kind": garbage})
        view = seen(server)
        assert view.unreadable > 0
        place.renew(LearnerDigest(updates=1))
        orders = host.renew(HostDigest(env_steps=1))
        assert not orders.replaced
        assert [slot.index for slot in host.slots] == [0, 1]
        if kind != "hash":
            assert not orders.stop  # with hashes, the wish to stop is as good as anybody's
        view = seen(server)
        assert view.learner_alive
        assert view.record == record
        assert view.digest.updates == 1
        assert [member.digest.env_steps for member in view.alive] == [1]
    raw.hdel(keys.state, "stop")
    host.leave()
    place.leave()
    assert LearnerLease.take(server, record).resumed


def test_the_record_is_what_was_published_even_after_somebody_changed_it(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    place = LearnerLease.take(server, record)
    raw.set(place.keys.record, encode(msgspec.structs.replace(record, actor_slots=7)))
    place.renew(LearnerDigest())
    assert find_run(server, record.name, 5.0) == record
    place.leave()
