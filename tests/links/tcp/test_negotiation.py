"""Callers of two adjacent releases are let in by one gateway, each in the newest protocol that both speak."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from apexrl.errors import FrameError, LinkError
from apexrl.links.protocol_numbers import Protocols
from apexrl.links.tcp import frames
from apexrl.links.tcp.gateway_messages import Record, _told
from apexrl.links.tcp.handshake import Caller, Hello, _Secret, challenge, welcome

TOKEN = "a-token-of-sixteen-letters"
HELLO = Hello(bytes(32), "", "member", 3, 7, b"schema", False)
OLD, NEW = frames.PROTOCOLS


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
        (OLD, b"", OLD),  # the last release, which offers nothing
        (OLD, msgspec.msgpack.encode((OLD, NEW)), NEW),
        (NEW, msgspec.msgpack.encode((NEW, NEW + 1)), NEW),  # the next release
        (OLD, b"\xc1 what is this", OLD),
    ],
)
def test_the_newest_common_protocol_is_spoken(gateway: Gateway, first: int, offer: bytes, spoken: int) -> None:
    caller = gateway.caller
    caller.protocol = first
    caller.send(frames.OPEN, head=offer)
    begun = caller.receive(seconds=10.0)
    assert (begun.kind, caller.heard) == (frames.CHALLENGE, spoken)
    caller.agree(spoken)
    said = HELLO.encoded(spoken)
    assert len(msgspec.msgpack.decode(said)) == (8 if spoken == NEW else 7)
    caller.send(frames.HELLO, head=said, body=_Secret(TOKEN, begun.text + said).proof(b"worker"))
    assert caller.receive(seconds=10.0).kind == frames.WELCOME
    assert caller.heard == spoken
    gateway.close()
    assert isinstance(gateway.found, Caller)
    assert gateway.found.hello == HELLO


def test_a_caller_two_releases_ahead_is_refused(gateway: Gateway) -> None:
    gateway.caller.protocol = NEW + 1
    gateway.caller.send(frames.OPEN, head=msgspec.msgpack.encode((NEW + 1, NEW + 2)))
    gateway._thread.join(10.0)
    assert isinstance(gateway.found, FrameError)
    assert f"of protocol {NEW + 1}, and this side speaks {Protocols(OLD, NEW)}" in str(gateway.found)


def test_no_side_changes_its_protocol_later(gateway: Gateway) -> None:
    caller = gateway.caller
    caller.send(frames.OPEN)
    caller.receive(seconds=10.0)
    caller.protocol = NEW  # the gateway heard OLD
    caller.send(frames.HELLO)
    gateway._thread.join(10.0)
    assert isinstance(gateway.found, FrameError)


def test_workers_that_the_last_release_does_not_know_are_not_hidden_from_it() -> None:
    several = msgspec.structs.replace(HELLO, also=[(4, 1)])
    assert several.encoded(NEW)
    with pytest.raises(LinkError, match=f"workers that bring gradients need {NEW}"):
        several.encoded(OLD)


def test_the_last_release_can_read_the_record_of_environment_workers() -> None:
    record = Record(run_id="12345678", name="r", apexrl="0", host="h", config="", spec={}, splits=[1],
                    lease_seconds=1.0, brings="".join(("environ", "ments")))  # fmt: skip
    assert set(_told(record)) == {"run_id", "name", "apexrl", "host", "config", "spec", "splits", "lease_seconds"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(_told(record)), type=Record) == record
