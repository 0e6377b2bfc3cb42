"""Records of runs, and what tests ask about them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from apexrl.errors import ExhaustedError, LinkError, OwnershipError
from apexrl.links.redis.checked_values import RunRecord
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_listing import RunView, look
from apexrl.links.redis.run_record import LearnerLease
from apexrl.links.redis.server import Server

T = TypeVar("T")


def a_record(**changes: object) -> RunRecord:
    values: dict[str, object] = {
        "run_id": uuid.uuid4().hex, "name": "cartpole-1", "apexrl": "0.1.0", "config": "seed = 1\n",
        "spec": {"observation": [4]}, "step_spec": {"q": [2]}, "schema": "00ff" * 4, "weights_nbytes": 1000,
        "actor_slots": 8, "host": "here", "began": 1.5e9, "local": {"capacity": 4096},
    }  # fmt: skip
    return RunRecord(**{**values, **changes})  # type: ignore[arg-type]


def take_soon(server: Server, record: RunRecord) -> LearnerLease:
    """The place, once its holder's time has run out."""
    ends = time.monotonic() + 120.0
    while True:
        try:
            return LearnerLease.take(server, record)
        except OwnershipError:
            assert time.monotonic() < ends
            time.sleep(0.02)


def seen(server: Server) -> RunView:
    connection = Connection(server)
    try:
        return look(connection, "cartpole-1")
    finally:
        connection.close()


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def again(call: Callable[[], T]) -> T:
    """What ``call`` returns once the server is back."""
    ends = time.monotonic() + 120.0
    while True:
        try:
            return call()
        except LinkError:
            assert time.monotonic() < ends
            time.sleep(0.05)


def join_soon(server: Server, record: RunRecord, actors: int) -> HostLease:
    """Slots, once they are free."""
    ends = time.monotonic() + 120.0
    while True:
        try:
            return HostLease.join(server, record, actors)
        except ExhaustedError:
            assert time.monotonic() < ends
            time.sleep(0.02)
