from __future__ import annotations

import dataclasses
import threading
import time

import msgspec
import pytest
import redis
from run_records import a_record, again, seen, take_soon, wait_until

from apexrl.errors import ClosedError, ConfigError, HeldError, LinkError, OwnershipError, WaitTimeout
from apexrl.links.redis.checked_values import GatewayAddress, HostDigest, LearnerDigest, encode
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_listing import runs
from apexrl.links.redis.run_record import LearnerLease, find_run, gateway_news, stop_run
from apexrl.links.redis.server import Server


def test_names() -> None:
    assert RunKeys("a.b_c+d=e@f-1").steps == "apexrl:{a.b_c+d=e@f-1}:steps"
    assert len(set(vars(RunKeys("x")).values())) == 1 + 15
    assert RunKeys("x").weights_part(12, 3) == "apexrl:{x}:weights:12:3"
    for name in ("", "a b", "a{b}", "a:b", "é", "a\n", "a*", "x" * 101, "../x"):
        with pytest.raises(ConfigError, match="cannot name a run"):
            RunKeys(name)
        assert RunKeys.of_record(f"apexrl:{{{name}}}:record") is None
    assert RunKeys.of_record(RunKeys("x").record) == RunKeys("x")


def test_a_second_learner_is_refused_and_told_of_the_first(server: Server) -> None:
    record = a_record()
    first = LearnerLease.take(server, record)
    assert not first.resumed
    for other in (record, a_record()):  # the same run once more, and another of the same name
        with pytest.raises(
            OwnershipError, match=r"cartpole-1 at .* has a learner: process \d+ on .*, last heard of \d"
        ):
            LearnerLease.take(server, other)
    first.renew(LearnerDigest())
    first.leave()


def test_a_learner_that_falls_silent_loses_its_place_and_hears_of_it(server: Server) -> None:
    record = a_record()
    first = LearnerLease.take(server, record, ttl=0.1)
    second = take_soon(server, record)
    assert second.resumed
    with pytest.raises(OwnershipError, match="another learner now"):
        first.renew(LearnerDigest())
    first.leave()  # must not free the place of the second
    assert second.renew(LearnerDigest()).learner_alive
    second.leave()
    third = LearnerLease.take(server, record)  # a place that was left is free at once
    third.leave()


def test_one_that_was_late_but_not_replaced_goes_on(server: Server) -> None:
    place = LearnerLease.take(server, a_record(), ttl=0.05)
    wait_until(lambda: not seen(server).learner_alive)
    place.renew(LearnerDigest())
    assert seen(server).phase == "running"
    place.leave()


def test_only_one_of_many_at_once_becomes_the_learner(server: Server) -> None:
    record, places, refused = a_record(), [], []

    def try_it() -> None:
        try:
            places.append(LearnerLease.take(server, record))
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
    first = LearnerLease.take(server, record)
    host = HostLease.join(server, record, 2)
    raw.xadd(keys.steps, {"frame": b"x"})
    raw.hset(keys.committed, "host/1", 7)
    raw.set(keys.weights_part(3, 0), b"w")
    first.leave()
    resumed = LearnerLease.take(server, record)
    assert resumed.resumed
    assert raw.xlen(keys.steps) == 1
    assert raw.hget(keys.committed, "host/1") == b"7"
    assert not host.renew(HostDigest()).replaced
    resumed.leave()

    other = RunKeys("cartpole-10")
    raw.set(other.weights_part(3, 0), b"w")
    new = LearnerLease.take(server, a_record(), replace=True)
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
    place = LearnerLease.take(server, record)
    host = HostLease.join(server, record)
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
    assert runs(server) == ["cartpole-1"]
    with pytest.raises(ClosedError, match="has ended"):
        HostLease.join(server, record)

    again = LearnerLease.take(server, record)  # `apexrl resume`
    assert again.resumed
    assert all(raw.ttl(key) == -1 for key in raw.keys("*"))
    assert seen(server).phase == "running"
    again.leave()


def test_finish_does_not_wait_for_the_dead_and_may_be_repeated(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    place = LearnerLease.take(server, record)
    HostLease.join(server, record, ttl=0.05)  # says nothing more
    raw.hset(place.keys.members, "garbage", b"no heartbeat")
    place.finish({}, timeout=60.0)
    place.finish({}, timeout=60.0)
    assert not raw.exists(place.keys.members)


def test_finish_leaves_a_successor_alone(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    first = LearnerLease.take(server, record, ttl=0.05)
    second = take_soon(server, record)
    raw.xadd(second.keys.steps, {"frame": b"x"})
    first.finish({})
    assert raw.xlen(second.keys.steps) == 1
    assert seen(server).phase == "running"
    second.leave()


def test_hosts_wait_for_a_run_and_can_be_stopped(server: Server) -> None:
    record, found = a_record(), []
    waiter = threading.Thread(target=lambda: found.append(find_run(server, record.name, 30.0)))
    waiter.start()
    place = LearnerLease.take(server, record)
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
    with pytest.raises(ConfigError, match=r"run x, of apexrl 7\.0, speaks protocol 99, and apexrl here 2"):
        find_run(server, "x", 30.0)


@pytest.mark.parametrize(
    "wrong",
    [{"actor_slots": 0}, {"actor_slots": 10**9}, {"run_id": "a b"}, {"began": 1e300}, {"schema": "xyz"},
     {"weights_nbytes": -1}, {"config": "x" * (5 << 20)}],
)  # fmt: skip
def test_a_record_that_no_host_would_accept_is_not_published(server: Server, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no host would accept"):
        LearnerLease.take(server, a_record(**wrong))


def test_stop(server: Server) -> None:
    record = a_record()
    assert stop_run(server, record.name) == "none"
    place, host = LearnerLease.take(server, record), HostLease.join(server, record)
    assert not place.renew(LearnerDigest()).stop
    assert stop_run(server, record.name) == "asked"
    assert place.renew(LearnerDigest()).stop
    assert host.renew(HostDigest()).stop
    with pytest.raises(ClosedError):
        HostLease.join(server, record)
    host.leave()
    place.leave()
    assert stop_run(server, record.name) == "deserted"
    assert stop_run(server, record.name) == "finished"
    again_ = LearnerLease.take(server, record)
    assert not again_.renew(LearnerDigest()).stop
    again_.leave()


def test_a_host_that_finds_no_gateway_is_told_whether_the_run_goes_on(server: Server) -> None:
    known = a_record(gateway=GatewayAddress(host="127.0.0.1", port=7000))
    assert gateway_news(server, known) == "here", "who has forgotten the run says nothing against it"
    place = LearnerLease.take(server, known)
    assert gateway_news(server, known) == "here"
    elsewhere = msgspec.structs.replace(known, gateway=GatewayAddress(host="127.0.0.1", port=7001))
    assert gateway_news(server, elsewhere) == "elsewhere"
    stop_run(server, known.name)
    assert gateway_news(server, known) == "ended"
    place.finish({"stopped_by": "stop_at_return"}, timeout=5.0)
    assert gateway_news(server, known) == "ended"
    another = LearnerLease.take(server, a_record(), replace=True)
    assert gateway_news(server, known) == "elsewhere"
    another.leave()


def test_what_is_never_written(server: Server, raw: redis.Redis) -> None:
    """NaN in a status becomes nothing; the address of the server, and what it is protected by, is in no key."""
    from apexrl.run.status import RunStatus

    place = LearnerLease.take(server, a_record())
    place.renew(LearnerDigest.of(RunStatus(train_return=float("nan"), env_steps_per_second=float("inf")), {"x": 1}))
    assert seen(server).digest == LearnerDigest()
    assert all(b"redis://" not in raw.dump(key) for key in raw.keys("*"))
    assert "redis://" not in repr(dataclasses.asdict(seen(server)))
    place.leave()


def dumped(raw: redis.Redis) -> dict[bytes, bytes]:
    return {key: raw.dump(key) for key in raw.keys("*")}


@pytest.mark.parametrize("finished", [False, True])
def test_another_run_of_the_name_is_asked_about_and_not_touched(
    server: Server, raw: redis.Redis, finished: bool
) -> None:
    first = a_record()
    place = LearnerLease.take(server, first)
    raw.xadd(place.keys.steps, {"frame": b"x"})
    raw.set(place.keys.weights_part(3, 0), b"w")
    if finished:
        place.finish({})
    else:
        place.leave()
    before = dumped(raw)
    ended = "has ended" if finished else "has not ended"
    with pytest.raises(
        ConfigError, match=rf"keeps another run cartpole-1, which {ended}.*--replace-run.*another --run"
    ):
        LearnerLease.take(server, a_record())
    assert dumped(raw) == before
    assert LearnerLease.take(server, first).resumed
    with pytest.raises(HeldError, match="has a learner"):  # whoever lives is not replaced, even where it is wanted
        LearnerLease.take(server, a_record(), replace=True)


def test_a_living_run_is_not_wiped_by_one_that_a_forgetful_server_lost(server: Server, raw: redis.Redis) -> None:
    """The server came back empty, with its clock set back: whoever began there since then looks older, but lives."""
    first = LearnerLease.take(server, a_record(), ttl=0.2)
    raw.flushall()
    second = LearnerLease.take(server, a_record(), ttl=60.0)
    raw.hset(second.keys.state, "taken", first.taken - 1000)
    raw.xadd(second.keys.steps, {"frame": b"x"})
    before = dumped(raw)
    with pytest.raises(LinkError, match="waiting for its lease to expire"):
        first.renew(LearnerDigest())
    wait_until(lambda: shut_out(first))
    assert dumped(raw) == before


def shut_out(place: LearnerLease) -> bool:
    """Whether it has given up."""
    try:
        place.renew(LearnerDigest())
    except LinkError:
        return False
    except OwnershipError:
        return True
    raise AssertionError("it took the place")


def test_a_place_that_only_an_old_snapshot_remembers_is_waited_for(server: Server, raw: redis.Redis) -> None:
    old = LearnerLease.take(server, a_record(), ttl=0.5)
    snapshot = dumped(raw)
    old.leave()
    new = LearnerLease.take(server, a_record(), ttl=60.0, replace=True)
    raw.flushall()
    for key, value in snapshot.items():
        raw.restore(key, 0, value)
    again(lambda: new.renew(LearnerDigest()))  # first it finds a place that nobody renews
    assert seen(server).record == new.record
    new.leave()


def test_a_run_that_ends_late_does_not_clear_away_its_successor(server: Server, raw: redis.Redis) -> None:
    record = a_record()
    first = LearnerLease.take(server, record)
    ended: list[float] = []

    def anybody() -> bool:  # a learner goes on with the run while this one waits for its hosts to leave
        if not ended:
            ended.append(0.0)
            LearnerLease.take(server, record)
            raw.xadd(first.keys.steps, {"frame": b"x"})
        return False

    first._anybody = anybody  # type: ignore[method-assign]
    first.finish({})
    assert raw.xlen(first.keys.steps) == 1
