from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis
from link_pairs import Ends

from apexrl.links.redis.server import Server
from redis_server import RedisServer


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ends(redis_server: RedisServer, closing: ExitStack) -> Ends:
    return Ends(redis_server, closing)


@pytest.fixture
def server(redis_server: RedisServer) -> Server:
    return redis_server.server()


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A connection that may do anything, as anybody with the password may."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client
