from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from redis_server import RedisServer

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _no_leftovers_in_shm():
    """Whatever a test does, nothing of ours may lie in /dev/shm afterwards."""
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    yield
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not [name for name in after - before if "apexrl" in name]


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A fresh server without persistence."""
    from redis_server import RedisServer  # other tests need no redis

    with RedisServer(tmp_path / "redis") as server:
        yield server
