"""An actor host that joins a run: what it refuses, what it waits for, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recording_observer import Watcher, small

from apexrl import remote_api
from apexrl.agents.dqn import DQN
from apexrl.config import Config, HostsConfig, convert
from apexrl.errors import ConfigError, LinkError, WaitTimeout, WorkerError
from apexrl.launch import actor_host, redis_run
from apexrl.launch.beacon import Beacon
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.probe import probe
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_listing import look
from apexrl.links.redis.run_record import LearnerLease, RunRecord
from apexrl.links.redis.server import Server
from apexrl.links.redis.weights_uploader import WeightsUploader
from apexrl.run.status import RunStatus
from apexrl.topologies import topology
from apexrl.topologies.host_cut import with_slots
from redis_server import RedisServer

RUN_ID = "one-run-of-many"
BROKEN = "apexrl.envs.faulty:Raises-v0"


def a_record(config: Config) -> tuple[RunRecord, DQN]:
    """As a learner publishes it, and the agent whose weights it would send."""
    config = with_slots(config)
    seen = probe(config)
    record = redis_run.make_record(config, redis_run.Identity("r", RUN_ID, False), topology("apex")(config, seen), seen)
    return record, DQN(seen.spec, config.agent, "cpu", 0)


@dataclass
class Told:
    """Hears what an actor host tells, and does something at the first word, and at the second."""

    then: Any
    later: Any = lambda: None
    texts: list[str] = field(default_factory=list)

    def __call__(self, text: str, level: str = "info") -> None:
        self.texts.append(text)
        if len(self.texts) == 1:
            self.then()
        elif len(self.texts) == 2:
            self.later()


def test_a_record_that_names_what_nobody_trusts_is_refused_before_anything_is_made(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    record, _ = a_record(small(tmp_path))
    called = tmp_path / "called"
    hostile = small(tmp_path, env=convert.LazyCallable("subprocess:check_output"), args=f"touch {called}", shell=True)
    place = LearnerLease.take(
        redis_server.server(), msgspec.structs.replace(record, config=convert.to_toml(hostile)), 10.0
    )
    with pytest.raises(
        ConfigError, match=r"run r at 127\.0\.0\.1:\d+ names 'subprocess:check_output' as its environment"
    ):
        remote_api.join(redis_server.url, "r", out=str(tmp_path), show=False)
    with pytest.raises(ConfigError, match="--trust 'own:make' is no module"):
        remote_api.join(redis_server.url, "r", out=str(tmp_path), show=False, trust=("own:make",))
    place.leave()
    assert not called.exists()


def test_actors_that_always_fail_end_their_host_and_not_the_run(redis_server: RedisServer, tmp_path: Path) -> None:
    config = small(tmp_path, env=BROKEN, at_step=10**9)
    record, agent = a_record(config)
    server, keys = redis_server.server(), RunKeys("r")
    watcher = Watcher()
    with closing(Beacon(LearnerLease.take(server, record, 10.0), config)) as learner:
        with closing(WeightsUploader(server, keys, run_id=RUN_ID)) as uploader:
            uploader.publish(agent.weights(), 1)
        with pytest.raises(WorkerError, match="all 2 actors fail always") as caught:
            remote_api.join(
                redis_server.url, "r", actors=2, out=str(tmp_path), env_kwargs={"at_step": 1}, show=False,
                observers=[watcher],
            )  # fmt: skip
        assert "RuntimeError: the simulator broke at step 1" in str(caught.value)
        assert watcher.summary["stopped_by"] == "error"
        assert learner.update(RunStatus()) is None
        with closing(Connection(server)) as connection:
            seen = look(connection, "r")
        assert (seen.learner_alive, seen.alive, len(seen.members)) == (True, [], 1)
        assert [slot.index for slot in HostLease.join(server, record, 2, ttl=1.0).slots] == [0, 1]


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that forgets nothing when it is killed."""
    with RedisServer(tmp_path / "lasting", appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def learner(lasting: RedisServer, tmp_path: Path) -> Iterator[LearnerLease]:
    place = LearnerLease.take(lasting.server(), a_record(small(tmp_path))[0], 10.0)
    yield place
    place.leave()


def patient(minutes: float) -> Config:
    config = with_slots(small(Path("unused")))
    return replace(config, hosts=HostsConfig(lease_seconds=0.5, patience_minutes=minutes))


def test_a_server_that_is_away_while_slots_are_asked_for_is_waited_for(
    lasting: RedisServer, learner: LearnerLease
) -> None:
    lasting.kill()
    told = Told(then=lasting.start)
    place = actor_host._lease(
        lasting.server(), learner.record, patient(1.0), patient(1.0).actor.actors, told, Interrupts()
    )
    assert [slot.index for slot in place.slots] == [0, 1]
    assert len(told.texts) == 1
    assert "nothing listens there (connection refused); trying again" in told.texts[0]
    place.leave()


def test_slots_that_an_outage_left_leased_to_nobody_are_waited_for(lasting: RedisServer, learner: LearnerLease) -> None:
    record = msgspec.structs.replace(learner.record, actor_slots=2)
    ghost = HostLease.join(lasting.server(), record, 2, ttl=60.0)  # as if the reply had never come

    def expire() -> None:
        with lasting.client() as raw:
            for slot in ghost.slots:
                raw.hset(ghost.keys.slots, str(slot.index), f"{ghost.member} {slot.generation} 1000 1000")

    lasting.kill()
    told = Told(then=lasting.start, later=expire)
    config = replace(patient(1.0), hosts=HostsConfig(lease_seconds=60.0))
    place = actor_host._lease(lasting.server(), record, config, config.actor.actors, told, Interrupts())
    assert [slot.index for slot in place.slots] == [0, 1]
    assert [("trying again" in text, "of a dead host are free" in text) for text in told.texts] == [
        (True, False), (False, True),
    ]  # fmt: skip
    place.leave()


def test_patience_with_a_server_ends(lasting: RedisServer, learner: LearnerLease) -> None:
    lasting.kill()
    told = Told(then=lambda: None)
    with pytest.raises(LinkError, match="connection refused"):
        config = patient(0.5 / 60)
        actor_host._lease(lasting.server(), learner.record, config, config.actor.actors, told, Interrupts())
    assert len(told.texts) == 1
    with pytest.raises(WaitTimeout, match=r"connection refused.*\(waited 0\.005 minutes\)"):
        actor_host._find(lasting.server(), "r", "", 0.005, told, Interrupts())
    lasting.start()


def test_a_server_that_is_away_while_the_run_is_looked_for_is_waited_for(
    lasting: RedisServer, learner: LearnerLease
) -> None:
    lasting.kill()
    told = Told(then=lasting.start)
    assert actor_host._find(lasting.server(), "r", "", 1.0, told, Interrupts()) == learner.record
    assert told.texts == [f"waiting for run r at 127.0.0.1:{lasting.port}"]


def test_another_run_of_the_name_is_not_waited_out_for_ever(lasting: RedisServer, learner: LearnerLease) -> None:
    with pytest.raises(WaitTimeout, match=r"is another one than the one to join \(waited 0\.005 minutes\)"):
        actor_host._find(lasting.server(), "r", "not-this-one", 0.005, Told(then=lambda: None), Interrupts())
    later = msgspec.structs.replace(learner.record, run_id="that-one")

    def begin() -> None:
        learner.leave()
        LearnerLease.take(lasting.server(), later, 10.0, replace=True)

    assert actor_host._find(lasting.server(), "r", "that-one", 1.0, Told(then=begin), Interrupts()) == later


@pytest.mark.parametrize("away", [False, True])
def test_ctrl_c_ends_every_wait(lasting: RedisServer, learner: LearnerLease, away: bool) -> None:
    interrupts = Interrupts()

    def interrupt() -> None:
        interrupts.count += 1

    if away:
        lasting.kill()
    crowded = replace(patient(30.0), hosts=HostsConfig())
    crowded = replace(crowded, actor=replace(crowded.actor, actors=65))
    with pytest.raises(KeyboardInterrupt):
        actor_host._lease(lasting.server(), learner.record, crowded, crowded.actor.actors, Told(interrupt), interrupts)
    interrupts.count = 0
    with pytest.raises(KeyboardInterrupt):
        actor_host._find(lasting.server(), "nobodys", "", 30.0, Told(interrupt), interrupts)
    if away:
        lasting.start()


def test_a_host_that_joins_anew_is_as_patient_as_the_run(
    lasting: RedisServer, learner: LearnerLease, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = replace(small(tmp_path), hosts=HostsConfig(patience_minutes=0.005))
    record = msgspec.structs.replace(learner.record, config=convert.to_toml(config))
    learner.leave()
    place = LearnerLease.take(lasting.server(), record, 10.0)

    def work(server: Server, *_: object) -> dict[str, Any]:
        place.finish({})
        return {"stopped_by": "lost slots"}

    monkeypatch.setattr(actor_host, "_work", work)
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"it has ended.*waited 0\.005 minutes"):
        actor_host.join(lasting.url, "r", interrupts=Interrupts(), began=began)
