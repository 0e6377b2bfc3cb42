"""Uplink and intake over a real server: what actors of one host wrote is in the learner's replay of another, once."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from apexrl._native import ChunkHeads
from apexrl.config import Config, HostsConfig
from apexrl.links.redis.checked_values import PROTOCOLS, HostDigest
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_record import LearnerLease, RunRecord
from apexrl.links.redis.server import Server
from apexrl.replay import Field, Replay
from apexrl.replay.chunks import Receipts, schema
from apexrl.roles import Intake, Uplink
from apexrl.roles.newest_weights import NewestWeights
from apexrl.roles.uplink import Pace
from apexrl.shared.weights_board import WeightsBoard

FIELDS = {"observation": Field((2,), "float32"), "number": Field((), "int64")}
OPTIONS = {"kind": "transition", "n_step": 2}
CONFIG = Config(hosts=HostsConfig(send_period=0.01))
RUN_ID = "00000000-1111-2222-3333-444444444444"


class Hosts:
    """A learner's host and an actor host, with the roles in this process."""

    def __init__(self, stage, make_stage, server, capacity=10_000):
        self.server, self.keys = Server(server.url, timeout=120.0), RunKeys("r")
        self.here, self.there = make_stage(), make_stage()
        self.there.run.totals["env_steps"] = 0
        self.learners = Replay(capacity, FIELDS, writers=1, streams=8, **OPTIONS)
        self.actors = Replay(4096, FIELDS, sampler="fifo", streams=2, **OPTIONS)
        self.receipts, self.board, self.copy = Receipts(16), WeightsBoard(1000), WeightsBoard(1000)
        self.writer = self.actors.writer(streams=2)
        self.number = 0
        self.roles = []
        self.others = []  # replays of further learners

    def intake(self):
        return self._made(
            Intake(
                Waiting(self.there.context("intake")),
                config=CONFIG,
                server=self.server,
                keys=self.keys,
                run_id=RUN_ID,
                replays=[self.learners, *self.others],
                weights=self.board,
                receipts=self.receipts,
                streams=4,
            )
        )

    def uplink(self, config=CONFIG, generation=1, restarts=0):
        return self._made(
            Uplink(
                Waiting(self.here.context("uplink"), restarts),
                config=config,
                server=self.server,
                keys=self.keys,
                run_id=RUN_ID,
                member="host-a",
                generation=generation,
                protocol=PROTOCOLS.newest,
                replay=self.actors,
                weights=self.copy,
            )
        )

    def _made(self, role):
        self.roles.append(role)
        return role

    def write(self, steps):
        no = np.zeros(2, bool)
        for _ in range(steps):
            self.number += 1
            values = {"observation": np.zeros((2, 2), np.float32), "number": np.array([self.number, -self.number])}
            end = np.array([self.number % 50 == 0, False])
            self.writer.append({**values, "reward": np.zeros(2, np.float32), "terminated": no, "truncated": end})
            self.here.run.totals["env_steps"] += 2

    def write_frames(self, frames, uplink, intake):
        """Write 40 steps at a time, and let the intake commit them."""
        for _ in range(frames):
            self.write(20)
            before = len(self.learners)
            turn(lambda before=before: len(self.learners) > before and not len(self.actors), uplink, intake)

    def resume(self):
        """What a learner's successor begins with: what its log tells, and nothing in memory."""
        self.learners.close()
        self.learners = Replay(10_000, FIELDS, writers=1, streams=8, **OPTIONS)
        self.receipts = Receipts(16, resumed=True)

    def close(self):
        for one in (self.writer, self.learners, *self.others, self.actors):
            one.close()


class Waiting:
    """A context whose clock goes, though roles take turns."""

    patience = 0.01

    def __init__(self, context, generation=0):
        self._context = context
        self.generation = generation

    def __getattr__(self, name):
        return getattr(self._context, name)

    def clock(self):
        return time.monotonic()


def turn(until, *roles, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "it never came to that"
        for role in roles:
            role.step()


@pytest.fixture
def hosts(stage, make_stage, redis_server):
    made = Hosts(stage, make_stage, redis_server)
    yield made
    for stage_ in (made.here, made.there):
        stage_.run.hurried = True  # nobody takes the last steps
    for role in reversed(made.roles):
        role.close()
    made.close()


def test_steps_go_up_and_weights_come_down(hosts):
    intake, uplink = hosts.intake(), hosts.uplink()
    hosts.board.publish({"w": np.arange(3.0)}, 5)
    hosts.write(200)
    turn(lambda: len(hosts.learners) >= 390 and hosts.copy.version == 5, uplink, intake)
    np.testing.assert_array_equal(hosts.copy.latest()[1]["w"], np.arange(3.0))
    turn(lambda: hosts.there.run.totals["env_steps"] == 400, uplink, intake)
    assert hosts.here.run.totals["env_steps"] == 400
    assert hosts.there.run.totals["chunks"] == hosts.here.run.totals["chunks"] > 0
    turn(lambda: hosts.there.values("intake")[-1]["committed"] == len(hosts.learners), uplink, intake)
    turn(lambda: uplink._sender.uncommitted_items == 0, uplink, intake)
    newest = hosts.there.values("intake")[-1]
    assert (newest["missing"], newest["repeated"], newest["refused"]) == (0, 0, 0)


def test_a_successor_takes_nothing_twice(hosts):
    """The first intake commits and never acknowledges: for its successor all of it comes again."""
    first, uplink = hosts.intake(), hosts.uplink()
    first._receiver.acknowledge = lambda done, committed: None
    hosts.write(200)
    turn(lambda: len(hosts.learners) >= 390, uplink, first)
    before = len(hosts.learners)
    first._sink.close()
    second = hosts.intake()
    turn(lambda: uplink._sender.uncommitted_items == 0, uplink, second)
    assert len(hosts.learners) == before == hosts.receipts.totals().committed
    assert hosts.receipts.totals().repeated == before


def test_a_resumed_run_counts_no_step_twice_that_its_dead_learner_had_committed(hosts):
    """The learner's host dies before the server hears what was committed: for its successor all of it comes again."""
    first, uplink = hosts.intake(), hosts.uplink()
    first._receiver._tell = lambda: None
    hosts.write_frames(10, uplink, first)
    first.step()
    first._sink.close()
    hosts.resume()
    second = hosts.intake()
    turn(lambda: not uplink._sender.uncommitted_items, uplink, second)
    turn(lambda: hosts.there.run.totals["env_steps"] > 0, second)
    assert hosts.there.run.totals["env_steps"] <= hosts.here.run.totals["env_steps"] == 400


def test_a_resumed_run_counts_no_step_twice_of_a_host_whose_uplink_began_anew(hosts):
    first, uplink = hosts.intake(), hosts.uplink()
    hosts.write_frames(10, uplink, first)
    turn(lambda: hosts.there.run.totals["env_steps"] == 400, uplink, first)
    turn(lambda: not uplink._sender.uncommitted_items, uplink, first)
    for role in (first, uplink):
        role.close()
        hosts.roles.remove(role)
    hosts.resume()
    second = hosts.intake()
    restarted = hosts.uplink(restarts=1)
    hosts.write(20)
    turn(lambda: not len(hosts.actors) and restarted._sender.committed_items, restarted, second)
    turn(lambda: not restarted._sender.uncommitted_items, restarted, second)
    assert 400 <= hosts.there.run.totals["env_steps"] <= hosts.here.run.totals["env_steps"] == 440


def test_several_learners_are_dealt_everything_once_whatever_dies(hosts, redis_server):
    """An intake dies before it acknowledges, and the server comes back empty."""
    hosts.others.append(Replay(10_000, FIELDS, writers=1, streams=8, **OPTIONS))
    replays = [hosts.learners, *hosts.others]
    first, uplink = hosts.intake(), hosts.uplink()
    first._receiver.acknowledge = lambda done, committed: None
    hosts.write(200)
    turn(lambda: sum(map(len, replays)) >= 390, uplink, first)
    first._sink.close()
    second = hosts.intake()
    with redis_server.client() as client:
        client.flushall()
    for _ in range(20):
        hosts.write(20)
        turn(lambda: not len(hosts.actors) and not uplink._sender.uncommitted_items, uplink, second)
    numbers = [np.unique(replay.sample(20_000).data["number"]).tolist() for replay in replays]
    assert not set(numbers[0]) & set(numbers[1])
    assert sum(map(len, replays)) == hosts.receipts.totals().committed == uplink._sender.sent_items
    assert hosts.receipts.totals().missing == 0
    assert abs(len(replays[0]) - len(replays[1])) <= 256  # a slot of each stream


def test_frames_that_lie_are_said_and_done_with(hosts):
    intake, uplink = hosts.intake(), hosts.uplink()
    take = uplink._source.take
    uplink._source.take = lambda most, linger, allowed: lie(take(most, linger, allowed))
    hosts.write(100)
    turn(lambda: hosts.there.values("log"), uplink, intake)
    assert "host-a/1000" in hosts.there.values("log")[0]["text"]
    turn(lambda: uplink._sender.uncommitted_items == 0, uplink, intake)
    assert len(hosts.learners) == 0
    uplink._source.take = take
    hosts.write(100)
    turn(lambda: len(hosts.learners) >= 190, uplink, intake)
    assert hosts.receipts.totals().missing > 0


def lie(taken):
    heads, body = taken
    return ChunkHeads([head._replace(rows=head.rows + 1) for head in heads]), body


def test_weights_that_the_server_lost_are_sent_again(hosts, redis_server):
    intake, _uplink = hosts.intake(), hosts.uplink()
    hosts.board.publish({"w": np.arange(3.0)}, 5)
    turn(lambda: hosts.copy.version == 5, intake)
    with redis_server.client() as client:
        client.flushall()
    newcomer = WeightsBoard(1000)
    hosts.copy = newcomer
    hosts.uplink(generation=2)
    turn(lambda: newcomer.version == 5, intake)


def test_a_host_takes_the_weights_of_a_learner_that_went_on_from_an_earlier_version(hosts):
    first, uplink = hosts.intake(), hosts.uplink()
    acting = NewestWeights(hosts.here.context("actor"), SimpleNamespace(load=lambda arrays: None), hosts.copy)
    hosts.board.publish({"w": np.arange(3.0)}, 50)
    turn(lambda: acting.pull() or acting.version == 50, first)
    first.close()
    hosts.board = WeightsBoard(1000)
    second = hosts.intake()
    for version in (7, 8):
        hosts.board.publish({"w": np.arange(3.0) + version}, version)
        turn(lambda v=version: acting.pull() or acting.version == v, second)
        np.testing.assert_array_equal(hosts.copy.latest()[1]["w"], np.arange(3.0) + version)
    uplink.close()
    hosts.roles.remove(uplink)
    hosts.uplink(generation=2)  # it knows of the learner before by the board
    hosts.board.publish({"w": np.arange(3.0)}, 51)
    turn(lambda: acting.pull() or acting.version == 51, second)


def test_a_full_server_loses_nothing_and_is_told_of(hosts, redis_server):
    with redis_server.client() as client:
        intake, uplink = hosts.intake(), hosts.uplink()
        hosts.board.publish({"w": np.arange(3.0)}, 5)
        hosts.write(50)
        turn(lambda: len(hosts.learners) >= 90 and hosts.copy.version == 5, uplink, intake)
        client.config_set("maxmemory", 1)  # whatever it holds: it is full
        hosts.board.publish({"w": np.arange(3.0) + 1}, 6)
        hosts.write(200)
        turn(lambda: hosts.there.values("log") and uplink._sender.trouble, uplink, intake)
        told = hosts.there.values("log")[0]
        assert told["text"].startswith("weights for other hosts: they cannot be published: Redis at")
        assert "is full: raise its maxmemory" in told["text"]
        assert told["level"] == "warning"
        turn(lambda: hosts.there.run.totals["failed_weights"], uplink, intake)
        newest = hosts.there.values("intake")[-1]
        assert (newest["weights_published"], "is full" in newest["weights_trouble"]) == (5, True)
        assert not list(client.scan_iter("apexrl:{r}:weights:6:*"))  # what came in part does not fill it further
        client.config_set("maxmemory", 0)
        turn(lambda: len(hosts.learners) >= 490 and hosts.copy.version == 6, uplink, intake)
        turn(lambda: hosts.there.values("log")[-1]["text"].endswith("they are published again"), uplink, intake)
        turn(lambda: hosts.there.values("intake")[-1]["weights_trouble"] == "", uplink, intake)
        assert hosts.receipts.totals()[2:] == (0, 0)


def test_weights_that_may_not_be_published_are_told_of(hosts, redis_server):
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-setex")
        hosts.server = Server(redis_server.url.replace("redis://", "redis://limited:x@"), timeout=120.0)
        intake = hosts.intake()
        hosts.board.publish({"w": np.arange(3.0)}, 5)
        turn(lambda: hosts.there.values("log"), intake)
        assert "does not allow this user what a run does" in hosts.there.values("log")[0]["text"]
        client.execute_command("ACL", "SETUSER", "limited", "+setex")
        turn(lambda: hosts.there.values("log")[-1]["text"].endswith("they are published again"), intake)


def test_what_hosts_say_is_passed_on_and_junk_is_not(hosts, redis_server):
    options = {"capacity": 10_000, "fields": FIELDS, **OPTIONS}
    record = RunRecord(
        run_id=RUN_ID,
        name="r",
        apexrl="1",
        config="",
        spec={},
        step_spec={},
        schema=schema(**options).hex(),
        weights_nbytes=8,
        actor_slots=4,
        host="h",
        began=0.0,
        local={},
    )
    learner = LearnerLease.take(hosts.server, record)
    place = HostLease.join(hosts.server, record, 1, "host", 10.0)
    intake = hosts.intake()
    place.outbox.episodes([1.0, 2.5], [3, 4])
    place.outbox.warning("careful", "warning")
    place.renew(HostDigest())
    turn(lambda: hosts.there.values("log"), intake)
    with redis_server.client() as client:
        client.xadd(place.keys.messages, {"member": "m", "kind": "checkpoint", "values": b'{"path":"/"}'})
        client.xadd(place.keys.messages, {"no": "message"})
    turn(lambda: hosts.there.run.totals["host_messages"] == 2, intake)
    (episodes,) = hosts.there.values("episodes")
    assert (episodes["returns"], episodes["lengths"], episodes["env_steps"]) == ([1.0, 2.5], [3, 4], 0)
    assert hosts.there.values("log")[0]["text"] == f"{place.member}: careful"
    place.leave()
    learner.leave()


def test_actors_wait_when_nobody_commits(hosts):
    """Without an intake the window fills, then the host's own replay; nothing is lost, and all arrives later."""
    uplink = hosts.uplink(replace(CONFIG, hosts=HostsConfig(send_period=0.01, window_mb=0.01)))
    uplink._pace = None  # bytes alone
    for _ in range(30):
        hosts.write(10)
        for _ in range(5):
            uplink.step()
    waiting = hosts.actors.stats()["size"]
    assert waiting > 100
    intake = hosts.intake()
    turn(lambda: len(hosts.learners) >= 590, uplink, intake)
    assert hosts.receipts.totals()[2:] == (0, 0)


def test_the_pace_follows_what_is_committed():
    pace = Pace(linger=0.1)
    offered = committed = 0
    for tick in range(400):  # 10 ms each: 2000 items a second, 50 ms on the way
        now = tick / 100
        offered += 20
        pace.offered(now, offered)
        if tick >= 5:
            committed += 20
            pace.committed(now, committed)
    assert pace.items == pytest.approx(2000 * 0.2, rel=0.05)
    for tick in range(400, 1000):  # a learner that takes a tenth of that
        committed += 2
        pace.committed(tick / 100, committed)
    assert pace.items == Pace.LEAST


def test_the_pace_gives_a_long_way_room():
    pace = Pace(linger=0.1)
    for tick in range(1000):  # 1000 items a second, 0.4 s on the way
        pace.offered(tick / 100, 10 * tick + 10)
        pace.committed(tick / 100, max(0, 10 * (tick - 40)))
    assert pace.items == pytest.approx(1000 * 0.9, rel=0.05)
