"""Keys and fields that the experience sender and receiver share."""

from __future__ import annotations

from typing import Any, Final

import redis

from apexrl.links.redis.checked_values import MOST_SEQUENCE
from apexrl.links.redis.keys import RunKeys

GROUP: Final = "learner"
CONSUMER: Final = "intake"
"""A fixed name, so that a new intake receives what its dead predecessor had not acknowledged."""

LAST_OF_GENERATION: Final = 62
"""Index of the last character read of a stream's generation."""


def stream_of(keys: RunKeys, generation: bytes) -> bytes:
    return b"%b:%b" % (keys.steps.encode(), generation)


def field_of(member: str, generation: int) -> str:
    """A member's field of ``keys.committed``."""
    return f"{member}/{generation}"


def sequence_of(value: bytes | None) -> int:
    """A value of ``keys.committed``; 0 if it is invalid."""
    sequence = int(value) if value and len(value) < 17 and value.isdigit() else 0
    return sequence if sequence < MOST_SEQUENCE else 0


def depth(client: redis.Redis, keys: RunKeys) -> int:
    """Number of frames on the server that are not acknowledged. Raises redis-py's errors."""
    generation: Any = client.getrange(keys.steps, 0, LAST_OF_GENERATION)
    return int(client.xlen(stream_of(keys, generation))) if generation else 0
