"""Callers of two adjacent releases are let in by one gateway, each in the newest protocol that both speak."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from apexrl.errors import FrameError, LinkError
from apexrl.links.tcp import frames
from apexrl.links.tcp.gateway_messages import Record, _told
from apexrl.links.tcp.handshake import Caller, Hello, _Secret, challenge, welcome

TOKEN = "a-token-of-sixteen-letters"
HELLO = Hello(bytes(32), "", "member", 3, 7, b"schema", False)
NEW = frames.PROTOCOLS.newest
OLD = NEW - 1


class Gateway:
    """One side of a pair of sockets greets who is at the other."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        self.peer, self.caller = frames.Connection(near), frames.Connection(far)
        self.found: Caller | Exception | None = None
        self._thread = threading.Thread(target=self._greet)
        self._thread.start()

    def _greet(self) -> None:
        try:
            self.found = challenge(self.peer, TOKEN)
            welcome(self.peer, self.found)
        except (LinkError, FrameError, OSError) as error:
            self.found = error

    def close(self) -> None:
        self.caller.close()
        self._thread.join(10.0)
        self.peer.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.close()


@pytest.mark.parametrize(
    ("first", "offer", "spoken"),
    [
        (OLD, msgspec.msgpack.encode((OLD, NEW)), NEW),  # the last release speaks that of the one before it, too
        (NEW, msgspec.msgpack.encode((NEW, NEW)), NEW),
        (NEW, msgspec.msgpack.encode((NEW, NEW + 1)), NEW),  # the next release
        (NEW, b"\xc1 what is this", NEW),
    ],
)
def test_the_newest_common_protocol_is_spoken(gateway: Gateway, first: int, offer: bytes, spoken: int) -> None:
    caller = gateway.caller
    caller.protocol = first
    caller.send(frames.OPEN, head=offer)
    begun = caller.receive(seconds=10.0)
    assert (begun.kind, caller.heard) == (frames.CHALLENGE, spoken)
    caller.agree(spoken)
    said = msgspec.msgpack.encode(HELLO)
    caller.send(frames.HELLO, head=said, body=_Secret(TOKEN, begun.text + said).proof(b"worker"))
    assert caller.receive(seconds=10.0).kind == frames.WELCOME
    assert caller.heard == spoken
    gateway.close()
    assert isinstance(gateway.found, Caller)
    assert gateway.found.hello == HELLO


@pytest.mark.parametrize(
    ("first", "offer", "behind"),
    [
        (NEW + 1, msgspec.msgpack.encode((NEW + 1, NEW + 2)), "this one"),
        (OLD, msgspec.msgpack.encode((OLD, OLD)), "the other"),
        (OLD, b"", "the other"),
        (OLD, msgspec.msgpack.encode((NEW, NEW)), "the other"),  # its frame does not say so
    ],
)
def test_a_caller_two_releases_away_is_refused(gateway: Gateway, first: int, offer: bytes, behind: str) -> None:
    gateway.caller.protocol = first
    gateway.caller.send(frames.OPEN, head=offer)
    gateway._thread.join(10.0)
    assert isinstance(gateway.found, LinkError)
    assert f"{behind} is more than one release behind" in str(gateway.found)


def test_no_side_changes_its_protocol_later(gateway: Gateway) -> None:
    caller = gateway.caller
    caller.send(frames.OPEN)
    caller.receive(seconds=10.0)
    caller.protocol = OLD
    caller.send(frames.HELLO)
    gateway._thread.join(10.0)
    assert isinstance(gateway.found, FrameError)


def test_the_last_release_can_read_the_record_of_environment_workers() -> None:
    record = Record(run_id="12345678", name="r", apexrl="0", host="h", config="", spec={}, splits=[1],
                    lease_seconds=1.0, brings="".join(("environ", "ments")))  # fmt: skip
    assert set(_told(record)) == {"run_id", "name", "apexrl", "host", "config", "spec", "splits", "lease_seconds"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(_told(record)), type=Record) == record
