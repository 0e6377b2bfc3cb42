from __future__ import annotations

import dataclasses
import threading
import time
import uuid

import msgspec
import pytest
import redis

from apexrl.errors import ClosedError, ConfigError, LinkError, OwnershipError, WaitTimeout
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostPlace
from apexrl.links.redis.run import LearnerPlace, find_run, stop_run
from apexrl.links.redis.scripts import Connection
from apexrl.links.redis.server import Server
from apexrl.links.redis.values import PROTOCOL, HostDigest, LearnerDigest, RunRecord, encode
from apexrl.links.redis.view import look, runs
from redis_server import RedisServer


def a_record(**changes: object) -> RunRecord:
    values: dict[str, object] = {
        "run_id": uuid.uuid4().hex, "name": "cartpole-1", "apexrl": "0.1.0", "config": "seed = 1\n",
        "spec": {"observation": [4]}, "step_spec": {"q": [2]}, "schema": "00ff" * 4, "weights_nbytes": 1000,
        "actor_slots": 8, "host": "here", "began": 1.5e9, "local": {"capacity": 4096},
    }  # fmt: skip
    return RunRecord(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def server(redis_server: RedisServer) -> Server:
    return redis_server.server()


@pytest.fixture
def raw(redis_server: RedisServer):
    """A connection that may do anything, as anybody with the password may."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def test_names() -> None:
    assert RunKeys("a.b_c+d=e@f-1").steps == "apexrl:{a.b_c+d=e@f-1}:steps"
    assert len({getattr(RunKeys("x"), f) for f in dir(RunKeys) if isinstance(getattr(RunKeys, f), property)}) == 12
    assert RunKeys("x").weights_part(12, 3) == "apexrl:{x}:weights:12:3"
    for name in ("", "a b", "a{b}", "a:b", "é", "a\n", "a*", "x" * 101, "../x"):
        with pytest.raises(ConfigError, match="cannot name a run"):
            RunKeys(name)
        assert RunKeys.of_record(f"apexrl:{{{name}}}:record") is None
    assert RunKeys.of_record(RunKeys("x").record) == RunKeys("x")


def test_a_second_learner_is_refused_and_told_of_the_first(server: Server) -> None:
    record = a_record()
    first = LearnerPlace.take(server, record)
    assert not first.resumed
    for other in (record, a_record()):  # the same run once more, and another of the same name
        with pytest.raises(
            OwnershipError, match=r"cartpole-1 at .* has a learner: process \d+ on .*, last heard of \d"
        ):
            LearnerPlace.take(server, other)
    first.renew(LearnerDigest())
    first.leave()


def test_a_learner_that_falls_silent_loses_its_place_and_hears_of_it(server: Server) -> None:
    record = a_record()
    first = LearnerPlace.take(server, record, ttl=0.1)
    second = take_soon(server, record)
    assert second.resumed
    with pytest.raises(OwnershipError, match="another learner now"):
        first.renew(LearnerDigest())
    first.leave()  # must not free the place of the second
    assert second.renew(LearnerDigest()).learner_alive
    second.leave()
    third = LearnerPlace.take(server, record)  # a place that was left is free at once
    third.leave()


def test_one_that_was_late_but_not_replaced_goes_on(server: Server) -> None:
    place = LearnerPlace.take(server, a_record(), ttl=0.05)
    wait_until(lambda: not seen(server).learner_alive)
    place.renew(LearnerDigest())
    assert seen(server).phase == "running"
    place.leave()


def test_only_one_of_many_at_once_becomes_the_learner(server: Server) -> None:
    record, places, refused = a_record(), [], []

    def try_it() -> None:
        try:
            places.append(LearnerPlace.take(server, record))
        except OwnershipError as error:
            refused.append(error)

    threads = [threading.Thread(target=try_it) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert (len(places), len(refused)) == (1, 15)
    places[0].leave()


def test_resume_keeps_what_is_under_way_and_a_new_run_clears_it(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    keys = RunKeys(record.name)
    first = LearnerPlace.take(server, record)
    host = HostPlace.join(server, record, 2)
    raw.xadd(keys.steps, {"frame": b"x"})
    raw.hset(keys.committed, "host/1", 7)
    raw.set(keys.weights_part(3, 0), b"w")
    first.leave()
    resumed = LearnerPlace.take(server, record)
    assert resumed.resumed
    assert raw.xlen(keys.steps) == 1
    assert raw.hget(keys.committed, "host/1") == b"7"
    assert not host.renew(HostDigest()).replaced
    resumed.leave()

    other = RunKeys("cartpole-10")
    raw.set(other.weights_part(3, 0), b"w")
    new = LearnerPlace.take(server, a_record())
    assert not new.resumed
    left = {key.decode() for key in raw.keys("*")}
    assert left == {keys.record, keys.state, keys.learner, other.weights_part(3, 0)}
    assert host.renew(HostDigest()).replaced
    host.leave()  # writes nothing into the other run
    assert {key.decode() for key in raw.keys("*")} == left
    new.leave()


def test_a_finished_run_tells_its_members_and_leaves_only_its_record(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    keys = RunKeys(record.name)
    place = LearnerPlace.take(server, record)
    host = HostPlace.join(server, record)
    raw.xadd(keys.steps, {"frame": b"x"})
    raw.set(keys.weights_part(1, 0), b"w")
    heard = []

    def work() -> None:
        while not (orders := host.renew(HostDigest())).finished:
            time.sleep(0.02)
        heard.append(orders)
        host.leave()

    worker = threading.Thread(target=work)
    worker.start()
    place.finish({"stopped_by": "minutes"}, timeout=30.0)  # returns when the host has left
    worker.join(30.0)
    assert heard[0].finished
    assert not heard[0].learner_alive
    assert {key.decode() for key in raw.keys("*")} == {keys.record, keys.state, keys.learner, keys.generations}
    assert all(raw.ttl(key) > 6 * 86400 for key in raw.keys("*"))
    assert seen(server).phase == "finished"
    assert runs(Connection(server)) == ["cartpole-1"]
    with pytest.raises(ClosedError, match="has ended"):
        HostPlace.join(server, record)

    again = LearnerPlace.take(server, record)  # `apexrl resume`
    assert again.resumed
    assert all(raw.ttl(key) == -1 for key in raw.keys("*"))
    assert seen(server).phase == "running"
    again.leave()


def test_finish_does_not_wait_for_the_dead_and_may_be_repeated(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    place = LearnerPlace.take(server, record)
    HostPlace.join(server, record, ttl=0.05)  # says nothing more
    raw.hset(place.keys.members, "garbage", b"no heartbeat")
    place.finish({}, timeout=60.0)
    place.finish({}, timeout=60.0)
    assert not raw.exists(place.keys.members)


def test_finish_leaves_a_successor_alone(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    first = LearnerPlace.take(server, record, ttl=0.05)
    second = take_soon(server, record)
    raw.xadd(second.keys.steps, {"frame": b"x"})
    first.finish({})
    assert raw.xlen(second.keys.steps) == 1
    assert seen(server).phase == "running"
    second.leave()


@pytest.mark.parametrize("how", ["flushall", "restart"])
def test_an_empty_server_gets_everything_again(redis_server: RedisServer, server: Server, how: str) -> None:
    record = a_record()
    place, host = LearnerPlace.take(server, record), HostPlace.join(server, record, 3)
    other = HostPlace.join(server, record, 2)
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
    late = HostPlace.join(server, record)
    assert late.generation > max(generation, other.generation)
    assert late.slots[0].index == 5
    for member in (host, other, late):
        member.leave()
    place.leave()


def test_generations_survive_an_empty_server_that_nobody_else_remembers(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    place, host = LearnerPlace.take(server, record), HostPlace.join(server, record)
    place.renew(LearnerDigest())
    host.leave()
    raw.flushall()
    place.renew(LearnerDigest())
    later = HostPlace.join(server, record)
    assert later.generation > host.generation
    assert (later.slots[0].index, later.slots[0].generation) == (0, 2)
    later.leave()
    place.leave()


def test_an_old_snapshot_does_not_end_a_younger_run(server: Server, raw: redis.Redis) -> None:
    old, new = a_record(), a_record()
    LearnerPlace.take(server, old).finish({})
    snapshot = {key: raw.dump(key) for key in raw.keys("*")}
    place, host = LearnerPlace.take(server, new), HostPlace.join(server, new)

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
    first = LearnerPlace.take(server, a_record())
    raw.flushall()
    second = LearnerPlace.take(server, a_record())  # before the first could renew
    with pytest.raises(OwnershipError):
        first.renew(LearnerDigest())
    second.renew(LearnerDigest())
    second.leave()


def test_a_server_that_is_gone_is_a_link_error_and_may_come_back(redis_server: RedisServer, server: Server) -> None:
    place = LearnerPlace.take(server, a_record())
    redis_server.kill()
    with pytest.raises(LinkError):
        place.renew(LearnerDigest())
    with pytest.raises(LinkError):
        LearnerPlace.take(server, a_record())
    with pytest.raises(WaitTimeout, match="was not there within"):
        find_run(server, "cartpole-1", 0.2)
    redis_server.restart(keep_data=False)
    again(lambda: place.renew(LearnerDigest()))
    place.leave()
    redis_server.kill()
    place.leave()


def test_hosts_wait_for_a_run_and_can_be_stopped(server: Server) -> None:
    record, found = a_record(), []
    waiter = threading.Thread(target=lambda: found.append(find_run(server, record.name, 30.0)))
    waiter.start()
    place = LearnerPlace.take(server, record)
    waiter.join(30.0)
    assert found == [record]
    with pytest.raises(ClosedError, match="stopped while waiting"):
        find_run(server, "another", 30.0, stopped=lambda: True)
    with pytest.raises(WaitTimeout, match=r"nobody has started it.*--run another"):
        find_run(server, "another", 0.0)
    place.finish({})
    with pytest.raises(WaitTimeout, match="it has ended"):
        find_run(server, record.name, 0.0)


def test_another_protocol_is_refused_with_both_versions(server: Server, raw: redis.Redis) -> None:
    raw.set(RunKeys("x").record, encode({"protocol": 99, "apexrl": "7.0", "and": "more"}))
    with pytest.raises(ConfigError, match=rf"7\.0 \(protocol 99\).*protocol {PROTOCOL}"):
        find_run(server, "x", 30.0)


@pytest.mark.parametrize(
    "wrong",
    [{"actor_slots": 0}, {"actor_slots": 10**9}, {"run_id": "a b"}, {"began": 1e300}, {"schema": "xyz"},
     {"weights_nbytes": -1}, {"config": "x" * (5 << 20)}],
)  # fmt: skip
def test_a_record_that_no_host_would_accept_is_not_published(server: Server, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no host would accept"):
        LearnerPlace.take(server, a_record(**wrong))


def test_stop(server: Server) -> None:
    record = a_record()
    assert stop_run(server, record.name) == "none"
    place, host = LearnerPlace.take(server, record), HostPlace.join(server, record)
    assert not place.renew(LearnerDigest()).stop
    assert stop_run(server, record.name) == "asked"
    assert place.renew(LearnerDigest()).stop
    assert host.renew(HostDigest()).stop
    with pytest.raises(ClosedError):
        HostPlace.join(server, record)
    host.leave()
    place.leave()
    assert stop_run(server, record.name) == "deserted"
    assert stop_run(server, record.name) == "finished"
    again_ = LearnerPlace.take(server, record)
    assert not again_.renew(LearnerDigest()).stop
    again_.leave()


GARBAGE = (b"", b"\xff\xfe\x00", b"null", b"{}", b"[" * 100_000, b'{"phase": 1}', b"1e999", b"9" * 30, b"\x1b[2J")


@pytest.mark.parametrize("kind", ["string", "list", "hash", "stream"])
def test_garbage_in_every_key_is_healed_and_never_crashes(server: Server, raw: redis.Redis, kind: str) -> None:
    record = a_record()
    place, host = LearnerPlace.take(server, record), HostPlace.join(server, record, 2)
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
    assert LearnerPlace.take(server, record).resumed


def test_the_record_is_what_was_published_even_after_somebody_changed_it(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    place = LearnerPlace.take(server, record)
    raw.set(place.keys.record, encode(msgspec.structs.replace(record, actor_slots=7)))
    place.renew(LearnerDigest())
    assert find_run(server, record.name, 5.0) == record
    place.leave()


def test_what_is_never_written(server: Server, raw: redis.Redis) -> None:
    """NaN in a status becomes nothing; the address of the server, and what it is protected by, is in no key."""
    from apexrl.status import RunStatus

    place = LearnerPlace.take(server, a_record())
    place.renew(LearnerDigest.of(RunStatus(train_return=float("nan"), env_steps_per_second=float("inf")), {"x": 1}))
    assert seen(server).digest == LearnerDigest()
    assert all(b"redis://" not in raw.dump(key) for key in raw.keys("*"))
    assert "redis://" not in repr(dataclasses.asdict(seen(server)))
    place.leave()


def take_soon(server: Server, record: RunRecord) -> LearnerPlace:
    """The place, once its holder's time has run out."""
    ends = time.monotonic() + 30.0
    while True:
        try:
            return LearnerPlace.take(server, record)
        except OwnershipError:
            assert time.monotonic() < ends
            time.sleep(0.02)


def seen(server: Server):
    connection = Connection(server)
    try:
        return look(connection, "cartpole-1")
    finally:
        connection.close()


def wait_until(condition) -> None:
    ends = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def again(call):
    """What ``call`` returns once the server is back."""
    ends = time.monotonic() + 30.0
    while True:
        try:
            return call()
        except LinkError:
            assert time.monotonic() < ends
            time.sleep(0.05)
