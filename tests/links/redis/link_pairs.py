"""Both ends of experience and weights, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import redis

from apexrl._native import ChunkHeads
from apexrl.links.redis.experience_stream import ExperienceReceiver, ExperienceSender, Received
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.weights_downloader import WeightsDownloader
from apexrl.links.redis.weights_uploader import WeightsUploader
from apexrl.protocols import ChunkHead
from redis_server import RedisServer

KEYS = RunKeys("r")
SCHEMA = b"8 bytes."
ITEMS = 64


class Intake:
    """What a learner's host does with frames: commits each chunk once, in order, and counts what is missing."""

    def __init__(self) -> None:
        self.committed: dict[tuple[str, int], int] = {}
        self.items_seen: dict[tuple[str, int], int] = {}
        self.bodies: dict[str, list[bytes]] = {}
        self.held: list[Received] = []
        self.missing = self.items = self.duplicates = 0

    def take(self, receiver: ExperienceReceiver, timeout: float = 0.05, most: int | None = None) -> list[Received]:
        """Commit and acknowledge up to ``most`` frames, and hold the others."""
        self.held += receiver.receive(timeout)
        got, self.held = self.held[:most], self.held[most:] if most is not None else []
        for one in got:
            self.commit(one)
        if got:
            receiver.acknowledge(got, {(one.member, one.generation): self._of(one) for one in got})
        return got

    def commit(self, one: Received) -> None:
        who = (one.member, one.generation)
        if one.sequence < self.committed.get(who, 0):
            self.duplicates += 1
            return
        gap = one.item_index - self.items_seen.get(who, 0)
        assert gap >= 0
        self.missing += gap
        items = one.heads.items()
        self.items += items
        self.items_seen[who] = one.item_index + items
        self.committed[who] = one.sequence + len(one.heads)
        self.bodies.setdefault(one.member, []).append(bytes(one.body))

    def _of(self, one: Received) -> int:
        return self.committed[one.member, one.generation]


class Ends:
    """Makes both ends of experience and weights, and closes them after the test."""

    def __init__(self, server: RedisServer, stack: ExitStack) -> None:
        self.redis, self._stack = server, stack

    def sender(self, member: str = "m", **other: Any) -> ExperienceSender:
        """Each body in a frame of its own, unless ``joined_bytes`` says otherwise."""
        options: dict[str, Any] = {"run_id": "run", "generation": 1, "schema": SCHEMA, "window_bytes": 2**20}
        options |= {"joined_bytes": 0, **other}
        sender = ExperienceSender(self.redis.server(), KEYS, member=member, **options)
        self._stack.callback(sender.close, 0.0)
        return sender

    def receiver(self, **other: Any) -> ExperienceReceiver:
        receiver = ExperienceReceiver(
            self.redis.server(), KEYS, **{"run_id": "run", "schema": SCHEMA, **other}
        )  # fmt: skip
        self._stack.callback(receiver.close)
        return receiver

    def uploader(self, **other: Any) -> WeightsUploader:
        uploader = WeightsUploader(self.redis.server(), KEYS, **{"run_id": "run", **other})
        self._stack.callback(uploader.close)
        return uploader

    def downloader(self, **other: Any) -> WeightsDownloader:
        downloader = WeightsDownloader(self.redis.server(), KEYS, **{"run_id": "run", **other})
        self._stack.callback(downloader.close)
        return downloader

    def client(self) -> redis.Redis:
        client = self.redis.client()
        self._stack.callback(client.close)
        return client


def body_of(number: int, size: int = 1000) -> bytes:
    return (b"%8d" % number) * (size // 8)


def offer(sender: ExperienceSender, numbers: range, size: int = 1000) -> None:
    for number in numbers:
        sender.offer(
            ChunkHeads([ChunkHead(1, 2, 0, ITEMS, 67, 0, ITEMS, size)]), body_of(number, size), {"env_steps": number}
        )


def until(done: Callable[[], bool], *acts: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        for act in acts:
            act()
        assert time.monotonic() < deadline, "it did not come to that"


def books_close(sender: ExperienceSender, intake: Intake) -> None:
    assert sender.sent_items == sender.committed_items + sender.dropped_items + sender.uncommitted_items
    assert (sender.uncommitted_bytes == 0) == (sender.uncommitted_items == 0)


def gather(receiver: ExperienceReceiver, number: int) -> list[Received]:
    """Exactly ``number`` frames, in several reads."""
    got: list[Received] = []
    until(lambda: len(got) >= number, lambda: got.extend(receiver.receive(0.1)))
    assert len(got) == number
    return got
