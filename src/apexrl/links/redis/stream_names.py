"""What sender and receiver agree on: the stream of experience and the table of what was committed."""

from __future__ import annotations

from typing import Any, Final

import redis

from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.values import MOST_SEQUENCE

GROUP: Final = "learner"
CONSUMER: Final = "intake"
"""One name: what a dead intake had not acknowledged is its successor's own."""

LAST_OF_LIFE: Final = 62
"""Index of the last character of a stream's life that is looked at."""


def stream_of(keys: RunKeys, life: bytes) -> bytes:
    """The key of the stream in one of its lives."""
    return b"%b:%b" % (keys.steps.encode(), life)


def field_of(member: str, generation: int) -> str:
    """A member's field of ``keys.committed``."""
    return f"{member}/{generation}"


def sequence_of(value: bytes | None) -> int:
    """A value of ``keys.committed``; 0 when it is none that a sender can have reached."""
    sequence = int(value) if value and len(value) < 17 and value.isdigit() else 0
    return sequence if sequence < MOST_SEQUENCE else 0


def depth(client: redis.Redis, keys: RunKeys) -> int:
    """Frames on the server that were not acknowledged yet. Raises redis-py's errors."""
    life: Any = client.getrange(keys.steps, 0, LAST_OF_LIFE)
    return int(client.xlen(stream_of(keys, life))) if life else 0
