"""The record of learners on several hosts: the same for all of one run, and out of others' sight."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from apexrl.errors import LinkError
from apexrl.links.redis.averaging_record import FORGOTTEN_SECONDS, RedisRecord
from apexrl.links.redis.keys import RunKeys
from redis_server import RedisServer

KEYS = RunKeys("demo")


@pytest.fixture
def record(redis_server: RedisServer) -> RedisRecord:
    return RedisRecord(redis_server.server(), KEYS, "run-1")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis_server.client()) as client:
        yield client


def test_the_first_of_several_stands_for_every_host(record: RedisRecord) -> None:
    other: RedisRecord = pickle.loads(pickle.dumps(record))
    assert record.all() == {}
    assert record.put_first("a", b"one") == b"one"
    assert other.put_first("a", b"two") == b"one"
    assert other.put("b", bytes(range(256))) == {"a": b"one", "b": bytes(range(256))}
    assert record.all() == {"a": b"one", "b": bytes(range(256))}
    record.drop([])
    record.drop(["a", "c"])
    assert other.all() == {"b": bytes(range(256))}


def test_another_run_of_that_name_sees_none_of_it(record: RedisRecord, redis_server: RedisServer) -> None:
    record.put("a", b"one")
    assert RedisRecord(redis_server.server(), KEYS, "run-2").all() == {}


def test_it_goes_when_nobody_writes_any_more(record: RedisRecord, client: redis.Redis) -> None:
    for put in (lambda: record.put("a", b"1"), lambda: record.put_first("b", b"1")):
        put()
        assert 0 < client.ttl(KEYS.averaging) <= FORGOTTEN_SECONDS  # type: ignore[operator]
        client.persist(KEYS.averaging)


def test_what_is_too_long_or_no_text_is_passed_over(record: RedisRecord, client: redis.Redis) -> None:
    client.hset(KEYS.averaging, "run-1/long", bytes(2 << 20))
    client.hset(KEYS.averaging, b"run-1/\xff", b"x")
    client.hset(KEYS.averaging, b"\xff\xff", b"x")
    assert set(record.all().values()) <= {b"x"}
    assert "long" not in record.all()


def test_its_address_is_that_of_the_way_to_the_server(record: RedisRecord) -> None:
    assert record.address() == "127.0.0.1"


def test_a_server_that_is_gone_is_an_error_and_may_come_back(record: RedisRecord, redis_server: RedisServer) -> None:
    record.put("a", b"one")
    redis_server.kill()
    for call in (record.all, record.address, lambda: record.put("a", b"two"), lambda: record.put_first("a", b"two")):
        with pytest.raises(LinkError):
            call()
    redis_server.start()
    assert record.all() == {}
    record.put("a", b"three")
    assert record.all() == {"a": b"three"}
