"""The beacon on a real server: places are kept, wishes are heard, and trouble is told but never raised at once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from apexrl.config import Config, HostsConfig
from apexrl.errors import LinkError, OwnershipError
from apexrl.launch.beacon import Beacon
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostLease, MessageReader
from apexrl.links.redis.run_record import LearnerLease, RunRecord, find_run, stop_run
from apexrl.run.env_changes import EnvChange, decoded
from apexrl.run.status import RunStatus
from redis_server import RedisServer

TTL = 3.0


def record(run_id: str = "one-run-of-many") -> RunRecord:
    return RunRecord(
        run_id=run_id, name="r", apexrl="0", config="", spec={}, step_spec={}, schema="00", weights_nbytes=1,
        actor_slots=4, host="h", began=0.0, local={},
    )  # fmt: skip


def config(patience_minutes: float = 30.0) -> Config:
    hosts = HostsConfig(lease_seconds=TTL, learner_lease_seconds=TTL, patience_minutes=patience_minutes)
    return replace(Config(), hosts=hosts)


def wait_for(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What ``what`` answers once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
    return found


@pytest.fixture
def learner(redis_server: RedisServer) -> Iterator[Beacon]:
    with closing(Beacon(LearnerLease.take(redis_server.server(), record(), TTL), config())) as beacon:
        yield beacon


@pytest.fixture
def place(redis_server: RedisServer, learner: Beacon) -> HostLease:
    return HostLease.join(redis_server.server(), record(), 2, ttl=TTL)


def reason(beacon: Beacon) -> Callable[[], str | None]:
    return lambda: beacon.update(RunStatus())


def test_places_are_kept_beyond_their_leases(redis_server: RedisServer, learner: Beacon, place: HostLease) -> None:
    with closing(Beacon(place, config())) as host:
        time.sleep(1.2 * TTL)
        assert learner.update(RunStatus()) is None
        assert host.update(RunStatus()) is None
        with pytest.raises(OwnershipError, match="has a learner"):
            LearnerLease.take(redis_server.server(), record("another-run"), TTL)
        slots = [slot.index for slot in HostLease.join(redis_server.server(), record(), 2, ttl=TTL).slots]
    assert slots == [2, 3]


def test_the_end_of_the_run_reaches_an_actor_host(redis_server: RedisServer, learner: Beacon, place: HostLease) -> None:
    with closing(Beacon(place, config())) as host:
        told: list[str] = []
        host.announce(lambda text, level: told.append(text))
        learner.finished({"stopped_by": "env_steps"})
        ending = threading.Thread(target=learner.close)  # it waits for the host to leave
        ending.start()
        assert wait_for(reason(host)) == "finished"
        assert told == []
    ending.join(120.0)
    assert not ending.is_alive()


def test_a_wish_to_stop_reaches_both_sides(redis_server: RedisServer, learner: Beacon, place: HostLease) -> None:
    with closing(Beacon(place, config())) as host:
        assert stop_run(redis_server.server(), "r") == "asked"
        assert wait_for(reason(host)) == "stopped"
        assert wait_for(reason(learner)) == "stopped"
        learner.check()


def test_a_run_without_a_summary_only_leaves_its_place(redis_server: RedisServer, learner: Beacon) -> None:
    learner.close()
    assert find_run(redis_server.server(), "r", timeout=0.0) == record()
    LearnerLease.take(redis_server.server(), record(), TTL).leave()


def test_another_run_of_the_name_ends_both_sides(redis_server: RedisServer, learner: Beacon, place: HostLease) -> None:
    with closing(Beacon(place, config())) as host, redis_server.client() as client:
        client.delete(RunKeys("r").learner)  # as if this learner had been frozen for longer than its lease
        LearnerLease.take(redis_server.server(), record("another-run"), TTL, replace=True).leave()
        assert wait_for(reason(learner)) == "replaced"
        assert wait_for(reason(host)) == "replaced"
        with pytest.raises(OwnershipError, match="has another learner now"):
            learner.check()
        learner.close()
        assert not learner._thread.is_alive()


def test_lost_slots_are_told(redis_server: RedisServer, learner: Beacon, place: HostLease) -> None:
    with redis_server.client() as client:
        client.hdel(RunKeys("r").slots, "0", "1")  # as if this host had been frozen for longer than its leases
    others = HostLease.join(redis_server.server(), record(), 2, ttl=30.0)
    told: list[str] = []
    with closing(Beacon(place, config())) as host:
        host.announce(lambda text, level: told.append(text))
        assert wait_for(reason(host)) == "lost slots"
        wait_for(lambda: host.update(RunStatus()) and told)
    assert "other hosts have taken the slots 0, 1" in told[0]
    others.leave()


def test_a_server_that_goes_and_comes_back_is_told_of_and_nothing_ends(
    redis_server: RedisServer, learner: Beacon, place: HostLease
) -> None:
    told: list[str] = []
    with closing(Beacon(place, config())) as host:
        host.announce(lambda text, level: told.append(text))
        redis_server.kill()
        wait_for(lambda: host.update(RunStatus()) or told)
        assert "trying again" in told[0]
        assert redis_server.url not in told[0]
        redis_server.start()
        wait_for(lambda: host.update(RunStatus()) or "the Redis server is back" in told)
        wait_for(lambda: learner.update(RunStatus()) or find_run(redis_server.server(), "r", timeout=20.0))
        assert host.update(RunStatus()) is None
        host.check()


def test_weights_that_cannot_be_published_are_told_on_actor_hosts(learner: Beacon, place: HostLease) -> None:
    told: list[tuple[str, str]] = []
    with closing(Beacon(place, config())) as host:
        host.announce(lambda text, level: told.append((text, level)))
        learner.update(RunStatus(weights_version=9))
        learner.event("intake", {"weights_trouble": "Redis is full", "weights_published": 4})
        wait_for(lambda: host.update(RunStatus(weights_version=4)) or told)
        learner.event("intake", {"weights_trouble": ""})
        wait_for(lambda: host.update(RunStatus(weights_version=4)) or len(told) > 1)
    assert re.fullmatch(
        r"the learner cannot publish its weights \(Redis is full\): those here are 5 versions, and \d+ s old",
        told[0][0],
    )
    assert told[0][1] == "warning"
    assert told[1:] == [("the learner publishes its weights again", "info")]


def test_a_host_hears_how_many_steps_the_whole_run_has_made(
    redis_server: RedisServer, learner: Beacon, place: HostLease
) -> None:
    """``--exploration-steps`` goes by them there (``roles.schedules``)."""
    board = ControlBoard(2)
    with closing(Beacon(place, config())) as host:
        host.tell_steps(board)
        learner.update(RunStatus(env_steps=5000))
        wait_for(lambda: board.total("run_env_steps") == 5000)
        assert board.total("env_steps") == 0
        redis_server.kill()
        redis_server.start()  # empty
        learner.update(RunStatus(env_steps=6000))
        wait_for(lambda: board.total("run_env_steps") != 5000)
        assert board.total("run_env_steps") == 6000


def test_an_actor_host_does_not_wait_for_ever(redis_server: RedisServer, learner: Beacon, place: HostLease) -> None:
    learner.close()  # it leaves without ending the run
    told: list[str] = []
    with closing(Beacon(place, config(patience_minutes=0.5 / 60))) as host:
        host.announce(lambda text, level: told.append(text))
        assert wait_for(reason(host)) == "lost learner"
        with pytest.raises(LinkError, match=r"no learner of run r for 0\.00833333 minutes"):
            host.check()
    assert told[0] == "the learner of run r is away: waiting for it"


def test_episodes_and_warnings_reach_the_learners_side(
    redis_server: RedisServer, learner: Beacon, place: HostLease
) -> None:
    messages = MessageReader(redis_server.server(), RunKeys("r"))
    with closing(messages), closing(Beacon(place, config())) as host:
        host.announce(host.message)
        host._news.put(("what it found out itself is no news for the learner", "warning"))
        host.update(RunStatus())
        for episode in range(1500):
            host.event("episodes", {"returns": [float(episode)], "lengths": [episode], "env_steps": 5})
        host.event("metrics", {"values": {}})
        host.message("nothing to worry about")
        host.message("actor-3: broken; starting it again", "warning")
        heard: list[Any] = []
        wait_for(lambda: heard.extend(messages.read()) or any(m.kind == "episodes" for m in heard))
        wait_for(lambda: heard.extend(messages.read()) or any(m.kind == "log" for m in heard))
        wait_for(lambda: place.outbox.waiting == 0)
        heard.extend(messages.read())
    assert {message.member for message in heard} == {place.member}
    episodes = [message.values for message in heard if message.kind == "episodes"]
    assert sum(values["count"] for values in episodes) == 1500
    assert sum(values["count"] * values["mean_return"] for values in episodes) == pytest.approx(1500 * 1499 / 2)
    assert episodes[-1]["returns"][-1] == 1499.0
    logs = [message.values for message in heard if message.kind == "log"]
    assert logs == [{"text": "actor-3: broken; starting it again", "level": "warning", "count": 1}]


def test_changed_settings_of_environments_reach_the_roles_of_other_hosts(learner: Beacon, place: HostLease) -> None:
    board = ControlBoard(1)
    with closing(Beacon(place, config())) as host:
        host.tell_steps(board)
        learner.event("env_change", {"version": 2, "attributes": {"level": 3}, "options": {}})
        wait_for(lambda: board.env_changes)
        assert decoded(board.env_change(), "here") == EnvChange(2, {"level": 3}, {})
        learner._env_change = b"something of a stranger's"
        told: list[str] = []
        host.announce(lambda text, level: told.append(text))
        wait_for(lambda: host.update(RunStatus()) or told)
        assert told[0].endswith("environments here stay as they are")
    assert board.env_changes == 1
