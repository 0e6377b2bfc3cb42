from __future__ import annotations

import io
import re
import threading
import time
import uuid
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from apexrl.cli import redis_status
from apexrl.errors import ConfigError, LinkError
from apexrl.links.redis.checked_values import HostDigest, LearnerDigest, RunRecord
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_listing import MemberView, RunView
from apexrl.links.redis.run_record import LearnerLease
from apexrl.run.status import PolicyLag, RunStatus, Work, WorkerStatus
from redis_server import RedisServer


def a_record(name: str = "cartpole-1") -> RunRecord:
    return RunRecord(
        run_id=uuid.uuid4().hex, name=name, apexrl="0.1.0", config="", spec={}, step_spec={}, schema="",
        weights_nbytes=1, actor_slots=64, host="here", began=time.time(), local={},
    )  # fmt: skip


LEARNER = LearnerDigest(
    phase="training", elapsed_seconds=75.0, env_steps=123_456, env_steps_per_second=8123.0, updates=5123,
    updates_per_second=412.0, train_return=208.7, eval_return=213.4, best_eval_return=301.5, replay_size=41_234,
    replay_capacity=100_000, updates_per_step=0.0156, policy_lag=12.1, policy_lag_p95=31.0, weights_version=1200,
    actors=2, committed_items=98_765, missing_items=17, duplicate_items=3,
)  # fmt: skip


def a_member(index: int = 0, **changes: object) -> MemberView:
    digest = HostDigest(state="acting", env_steps=54_321, env_steps_per_second=812.0, weights_version=1180,
                        uncommitted_items=345, dropped_items=12, restarts=2)  # fmt: skip
    values: dict[str, object] = {
        "member": f"node-{index}-77-abcd", "generation": 3, "kind": "host", "host": f"node-{index}",
        "pid": 7000 + index, "slots": list(range(8 * index, 8 * index + 8)), "state": "alive",
        "age_seconds": 0.4, "digest": digest,
    }  # fmt: skip
    return MemberView(**{**values, **changes})  # type: ignore[arg-type]


def a_view(members: list[MemberView], **changes: object) -> RunView:
    values: dict[str, object] = {
        "name": "cartpole-1", "address": "redis.example:6379", "record": a_record(), "phase": "running",
        "stopping": False, "learner_alive": True, "learner_host": "big", "learner_pid": "4321",
        "learner_age_seconds": 0.3, "digest": LEARNER, "queue": 12, "members": members,
    }  # fmt: skip
    return RunView(**{**values, **changes})  # type: ignore[arg-type]


def drawn(view: RunView, width: int, rows: int = 256) -> str:
    console = plain(width)
    console.print(redis_status.picture_of_run(view, width, rows))
    return text_of(console)


def plain(width: int = 120) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def text_of(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_picture_shows_everything() -> None:
    dead = a_member(1, state="lost", age_seconds=42.0)
    client = a_member(2, kind="client", slots=[3, 20, 21, 22, 24])
    text = drawn(a_view([a_member(), client, dead], unreadable=2), 120)
    for words in (
        "cartpole-1", "redis.example:6379", "● training", "01:15", "learner on big (4321)", "heard of 0.3 s ago",
        "208.7", "eval 213.4", "best 301.5", "123.5k", "8123/s", "5123", "412/s", "weights 1200", "41.2k",
        "41% of 100.0k", "0.0156", "12.1", "p95 31.0", "98.8k", "12 frames queued", "17", "3 duplicate",
        "0 frames refused", "node-0:7000", "● acting", "0-7", "54.3k", "812", "1180", "20", "345", "node-2:7002 client",
        "3 20-22 24", "node-1:7001", "● lost", "42.0 s", "2 alive, 13 actors, 1624 steps/s together",
        "2 keys or entries at the server are not this run's",
    ):  # fmt: skip
        assert words in text, words
    row = next(line for line in text.splitlines() if "node-0:7000" in line)
    assert row.strip("│ ").split() == [
        "node-0:7000", "●", "acting", "0-7", "8", "54.3k", "812", "1180", "20", "345", "12", "2", "0.4", "s",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("members", [0, 1, 40])
def test_the_picture_fits(width: int, members: int) -> None:
    names = ["n" * 64, "a.rather.long.name.of.a.machine.example.org"]
    views = [a_member(i, host=names[i % 2], slots=list(range(2 * i, 1000, 2))) for i in range(members)]
    lines = drawn(a_view(views, learner_host="l" * 64), width, rows=8).splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= 17 + min(members, 8)
    for line in lines:
        if "●" in line and "learner" not in line:
            assert "0.4 s" in line
    assert members < 40 or "40 hosts alive" in "\n".join(lines)


def test_of_many_members_the_worst_are_shown_and_all_counted() -> None:
    members = [a_member(i, digest=HostDigest(state="acting", weights_version=1200)) for i in range(1000)]
    members[700] = a_member(700, state="lost", age_seconds=42.0)
    members[800] = a_member(800, digest=HostDigest(state="acting", weights_trouble="no \x1b[2Jroom"))
    members[900] = a_member(900, digest=HostDigest(state="acting", weights_version=1200, dropped_messages=3))
    members[950] = a_member(950, state="left")
    learner = {"weights_trouble": "Redis is full", "weights_published": 1100, "dropped_messages": 7}
    text = drawn(a_view(members, digest=msgspec.structs.replace(LEARNER, **learner)), 120, rows=4)
    lines = [line.strip("│ ") for line in text.splitlines() if re.search(r"node-\d+:\d+", line)]
    assert [re.split(r"\s\s+", line)[::2][:2] for line in lines] == [
        ["node-700:7700/5600 +7", "dead"], ["node-800:7800/6400 +7", "stale"], ["node-900:7900/7200 +7", "dropping"],
    ]  # fmt: skip
    assert "998 hosts alive, 1 left" in text
    assert re.search(r"actor +7992 +7968 .*8 dead  8 stale  8 dropping", text)
    assert "7968 more are well" in text
    assert "the learner cannot publish its weights (100 versions behind): Redis is full" in text
    assert "1 host cannot get new weights; node-800: no ?[2Jroom" in text
    assert "7 episodes and warnings of hosts were not told of" in text
    assert len(text.splitlines()) < 30


def test_states_of_a_run() -> None:
    assert "● no learner" in drawn(a_view([], learner_alive=False), 80)
    assert "● stopping" in drawn(a_view([], stopping=True), 80)
    finished = drawn(a_view([], phase="finished", learner_alive=False), 80)
    assert "● finished" in finished
    assert "heard of" not in finished
    assert "apexrl actor --redis URL --run cartpole-1" in drawn(a_view([]), 120)
    nothing = a_view([], record=None, digest=LearnerDigest(), learner_host="", learner_alive=False, phase="")
    assert "● no learner" in drawn(nothing, 80)


def test_ranges() -> None:
    assert [redis_status.ranges(x) for x in ([], [3], [2, 0, 1], [1, 3, 4, 9])] == ["", "3", "0-2", "1 3-4 9"]


def test_digests_of_a_status() -> None:
    workers = [
        WorkerStatus("actor-0", "actor", 0, state="waiting"),
        WorkerStatus("uplink-0", "uplink", 0, work=Work("sent_items", "items/s", "carrying")),
    ]
    status = RunStatus(
        env_steps=5, policy_lag=PolicyLag(1.0, float("nan"), 3.0), workers=workers, restarts={"actor": 2}
    )
    learner = LearnerDigest.of(status, {"committed_items": 7, "unknown": 1})
    assert (learner.env_steps, learner.policy_lag, learner.policy_lag_p95) == (5, 1.0, None)
    assert (learner.committed_items, learner.actors, learner.restarts) == (7, 1, 2)
    host = HostDigest.of(status, {"sent_items": 9, "committed_items": 7})
    assert (host.state, host.env_steps, host.sent_items, host.restarts) == ("waiting", 5, 9, 2)
    assert HostDigest.of(RunStatus()).state == "starting"


def test_status_of_a_real_run(redis_server: RedisServer) -> None:
    server = redis_server.server()
    empty = plain()
    assert redis_status.show_status(redis_server.url, console=empty) == 0
    assert "no run is at" in text_of(empty)
    assert redis_status.show_status(redis_server.url, "nope", console=empty) == 1
    assert f"there is no run nope at {server.address}; no run is there" in text_of(empty)

    learner = LearnerLease.take(server, a_record())
    host = HostLease.join(server, learner.record, 2)
    learner.renew(LEARNER)
    host.renew(HostDigest(state="acting", env_steps_per_second=55.5, weights_version=1199))
    other = LearnerLease.take(server, a_record("other"))
    console = plain()
    assert redis_status.show_status(redis_server.url, "cartpole-1", console=console) == 0
    assert re.search(r"● acting +0-1 +2 .* 1199 +1 ", text_of(console))
    for width in (60, 80, 120):
        console = plain(width)
        assert redis_status.show_status(redis_server.url, console=console) == 0
        lines = text_of(console).splitlines()
        assert len(lines) == 3
        assert all(len(line) <= width for line in lines)
        assert "● training" in lines[1]
        assert lines[1].endswith(" 4")  # actors: two here, two there
        assert lines[2].startswith("other")
    console = plain()
    assert redis_status.show_status(redis_server.url, "nope", console=console) == 1
    assert "runs there: cartpole-1, other" in text_of(console)
    other.leave()
    host.leave()
    learner.leave()


def test_control_characters_of_others_never_reach_the_terminal(redis_server: RedisServer) -> None:
    server = redis_server.server()
    learner = LearnerLease.take(server, a_record())
    host = HostLease.join(server, learner.record)
    learner.renew(LearnerDigest(phase="tr\x1b[2J\nx"))
    evil = b'9 9999999999999 1 {"kind":"\\u001b[31m","host":"\\u001b]0;x\\u0007[bold]","pid":1,"slots":[],"digest":' \
           b'{"state":"\\u001b[2J\\n"}}'  # fmt: skip
    with redis_server.client() as raw:
        raw.hset(learner.keys.members, b"\x1b[2Jm", evil)
        raw.hset(learner.keys.learner, "host", b"\x1b[2J\r\n[red]")
        console = plain(100)
        assert redis_status.show_status(redis_server.url, "cartpole-1", console=console) == 0
        text = text_of(console)
        assert "[red]" in text
        assert "[bold]" in text
        assert not [c for c in text if not c.isprintable() and c != "\n"]
        assert redis_status.show_status(redis_server.url, console=console) == 0
        assert "\x1b" not in text_of(console)
    host.leave()
    learner.leave()


def test_stop_waits_for_the_end(redis_server: RedisServer) -> None:
    server, console = redis_server.server(), plain()
    assert redis_status.stop(redis_server.url, "cartpole-1", console=console) == 1
    assert "there is no run cartpole-1" in text_of(console)
    learner = LearnerLease.take(server, a_record())
    host = HostLease.join(server, learner.record)
    assert redis_status.stop(redis_server.url, "cartpole-1", 0.0, console) == 1
    assert "still runs after 0 s: its learner, " in text_of(console)
    codes = []
    stopper = threading.Thread(
        target=lambda: codes.append(redis_status.stop(redis_server.url, "cartpole-1", 60.0, console))
    )
    stopper.start()
    ends = time.monotonic() + 30.0
    while text_of(console).count("was asked to stop") < 2:
        assert time.monotonic() < ends
        time.sleep(0.02)
    assert learner.renew(LEARNER).stop
    host.leave()
    learner.finish({"stopped_by": "stop"})
    stopper.join(60.0)
    assert codes == [0]
    assert text_of(console).rstrip().endswith("has ended")
    assert redis_status.stop(redis_server.url, "cartpole-1", console=console) == 0
    assert "had ended before" in text_of(console)
    LearnerLease.take(server, learner.record).leave()
    assert redis_status.stop(redis_server.url, "cartpole-1", console=console) == 0
    assert "nobody works at" in text_of(console)


@pytest.mark.parametrize("terminal", [True, False])
def test_watching_goes_on_while_the_server_is_away(
    redis_server: RedisServer, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server.server()
    learner = LearnerLease.take(server, a_record())
    learner.renew(LEARNER)
    turns = iter([lambda: None, redis_server.kill, lambda: redis_server.restart(keep_data=False), lambda: None])

    def turn(seconds: float) -> None:
        assert 0.0 < seconds <= 5.0
        step = next(turns, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("apexrl.cli.redraw.time", SimpleNamespace(sleep=turn))
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=terminal)
    assert redis_status.show_status(redis_server.url, "cartpole-1", watch=True, console=console) == 0
    text = text_of(console)
    before, _, after = text.partition("trying again")
    assert before.count("208.7") >= 3  # twice, and once more while the server is away
    assert "there is no run cartpole-1" in after  # the new server knows nothing
    learner.leave()


def test_no_password_is_shown(redis_server: RedisServer) -> None:
    console = plain()
    for url in (redis_server.url.replace("redis://", "redis://:geheim@"), "redis://:geheim@127.0.0.1:1"):
        with pytest.raises(LinkError) as caught:
            redis_status.show_status(url, "cartpole-1", console=console)
        assert "geheim" not in str(caught.value)
    with pytest.raises(ConfigError):
        redis_status.show_status(redis_server.url, "no name", console=console)
    with pytest.raises(ConfigError):
        redis_status.stop(redis_server.url, "", console=console)
    assert "geheim" not in text_of(console)


def test_every_key_as_garbage_can_be_looked_at(redis_server: RedisServer) -> None:
    from apexrl.links.redis.keys import RunKeys

    keys, console = RunKeys("x"), plain()
    every = [keys.record, keys.state, keys.learner, keys.members, keys.steps]
    with redis_server.client() as raw:
        for write in (
            lambda key: raw.set(key, b"\xff"),
            lambda key: raw.rpush(key, "x"),
            lambda key: raw.zadd(key, {"x": 1}),
        ):
            for key in every:
                raw.delete(key)
                write(key)
            redis_status.show_status(redis_server.url, "x", console=console)
            redis_status.show_status(redis_server.url, console=console)
    connection = Connection(redis_server.server())
    assert redis_status.look(connection, "x").unreadable == len(every)
    connection.close()
