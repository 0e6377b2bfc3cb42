"""Inference over TCP, on this machine: the same messages, refusals, and connections that break."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from gateway_rig import SECONDS, SPLITS, TOKEN, until

from apexrl.errors import LinkError
from apexrl.links.local.inference import InferenceLink, RequestServer
from apexrl.links.tcp import frames, gateway_server, remote_inference
from apexrl.links.tcp.gateway_server import Gateway
from apexrl.links.tcp.handshake import Hello
from apexrl.links.tcp.inference_desk import InferenceDesk
from apexrl.links.tcp.remote_inference import RemoteInference, RemoteRequestClient
from apexrl.spec import Field
from free_ports import free_port

REQUEST = {"observation": Field((3,), "float32"), "starts": Field((), "bool")}
REPLY = {"action": Field((2,), "int64")}


@dataclass
class Place:
    """A link with its server's end and a gateway."""

    link: InferenceLink
    server: RequestServer
    gateway: Gateway
    told: list[str]

    def remote(self, token: str = TOKEN, **changes: Any) -> RemoteInference:
        columns: dict[str, Any] = {"request": REQUEST, "reply": REPLY, "splits": SPLITS, **changes}
        return RemoteInference(self.gateway.address, token, **columns, connect_seconds=SECONDS)

    def serve(self) -> None:
        """Answer whoever asks within a while: the sums of what they show."""
        requests = self.server.read(until(self.server.pending))
        observation = requests.columns["observation"]
        sums = observation.sum(axis=1).astype(np.int64)
        self.server.answer(requests, {"action": np.stack([sums, requests.columns["starts"]], axis=1)})


@pytest.fixture
def place() -> Iterator[Place]:
    link = InferenceLink(REQUEST, REPLY, 2, SPLITS)
    told: list[str] = []
    gateway = Gateway(InferenceDesk(link), TOKEN, port=free_port(), tell=lambda text, level: told.append(text))
    yield Place(link, link.server(), gateway, told)
    gateway.close()


def ask(end: RemoteRequestClient, split: int, number: int) -> None:
    columns = end.room(split)
    assert columns is not None
    columns["observation"][...] = number + np.arange(SPLITS[split])[:, None]
    columns["starts"][...] = number % 2 == 1
    end.ask(split, 0.0)


def answer(end: RemoteRequestClient, split: int) -> list[list[int]]:
    def come() -> bool:
        end.wait(0.01)
        return split in end.answered()

    until(come)
    taken: list[list[int]] = end.take(split)["action"].tolist()
    return taken


def test_requests_and_answers_travel_row_by_row(place: Place) -> None:
    ends = [place.remote().worker(index, 0) for index in range(2)]
    for number in range(1, 50):
        for end in ends:
            ask(end, 0, number)
        until(lambda: place.server.pending() == [0, 2])
        place.serve()
        for end in ends:
            assert end.room(0) is None
            assert answer(end, 0) == [[3 * number, number % 2], [3 * number + 3, number % 2]]
            assert end.answered() == []
    ask(ends[1], 1, 5)
    assert until(place.server.pending) == [3]
    place.serve()
    assert answer(ends[1], 1) == [[15, 1]]
    for end in ends:
        end.leave()
    until(lambda: place.server.expected() == 0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"token": "guess"}, "does not know the run's token"),
        ({"splits": (3,)}, "is not that of this run"),
        ({"request": {**REQUEST, "more": Field((), "bool")}}, "is not that of this run"),
        ({"worker": 2}, "there is no worker 2: other hosts have the slots 0 to 1"),
        ({"run": "another"}, "works for another run"),
    ],
)
def test_whoever_does_not_belong_is_refused_with_the_reason(place: Place, changes: dict[str, Any], why: str) -> None:
    worker = changes.pop("worker", 0)
    with pytest.raises(LinkError, match=why):
        place.remote(**changes).worker(worker, 0)
    assert place.gateway.counts.refused == 1
    assert why in place.told[0]
    end = place.remote().worker(0, 0)  # others are let in
    ask(end, 0, 1)
    place.serve()
    assert answer(end, 0) == [[3, 1], [6, 1]]
    end.leave()


def frame(kind: int, head_bytes: int = 0, body_bytes: int = 0, version: int = frames.PROTOCOLS.least) -> bytes:
    """The beginning of one."""
    return struct.pack("<4sBBHII", b"apxi", version, kind, 0, head_bytes, body_bytes)


OPEN = frame(frames.OPEN)


def hello(**changes: Any) -> bytes:
    """Frames like a hello, of somebody who does not know the token."""
    fields = {
        "nonce": bytes(32),
        "run": "",
        "member": "",
        "worker": 0,
        "generation": 0,
        "schema": b"",
    }
    head = msgspec.msgpack.encode([*(fields | changes).values()])
    return OPEN + frame(frames.HELLO, len(head), 32) + head + bytes(32)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "begins with b'GET '"),
        (frame(frames.OPEN, version=frames.PROTOCOLS.newest + 1), "this one is more than one release behind"),
        (frame(frames.REQUEST, version=frames.PROTOCOLS.newest + 1), "install the same apexrl"),
        (OPEN + frame(frames.HELLO, 2**31), "at most 4096"),
        (OPEN + frame(frames.HELLO, 0, 33), "at most 32"),
        (frame(frames.REQUEST), "did not say hello"),
        (OPEN + frame(frames.REQUEST), "did not say hello"),
        (OPEN + frame(frames.HELLO, 3) + b"abc", "hello cannot be read"),
        (hello(nonce=b"short"), "hello cannot be read"),
        (hello(), "does not know the run's token"),
        (hello(worker=-2), "hello cannot be read"),
        (hello(more="than it has"), "hello cannot be read"),
        (b"", "hung up"),
    ],
)
def test_what_is_no_hello_is_refused(place: Place, data: bytes, why: str) -> None:
    with socket.create_connection(place.gateway.address, timeout=SECONDS) as peer, suppress(OSError):
        peer.sendall(data)  # it may not read on
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(4096):
            pass
    until(lambda: place.told)
    assert why in place.told[0]


@pytest.mark.parametrize(
    ("kind", "split", "nbytes"),
    [(frames.REPLY, 0, 26), (frames.REQUEST, 2, 26), (frames.REQUEST, 0, 25), (frames.HELLO, 0, 0)],
)
def test_a_worker_that_sends_something_else_is_cut_off_and_the_other_goes_on(
    place: Place, kind: int, split: int, nbytes: int
) -> None:
    bad, good = (place.remote().worker(index, 0) for index in range(2))
    assert bad._peer is not None
    bad._peer.send(kind, split, body=bytes(nbytes))
    with pytest.raises(ConnectionResetError):
        bad._peer.receive(seconds=SECONDS)
    until(lambda: place.told)
    assert "worker 0" in place.told[0]
    assert "cut off" in place.told[0]
    assert place.server.pending() == []
    ask(good, 1, 2)
    place.serve()
    assert answer(good, 1) == [[6, 0]]
    for end in (bad, good):
        end.leave()


def test_a_bool_that_is_none_arrives_as_one(place: Place) -> None:
    end = place.remote().worker(0, 0)
    columns = end.room(1)
    assert columns is not None
    columns["starts"].view(np.uint8)[...] = 200
    end.ask(1, 0.0)
    requests = place.server.read(until(place.server.pending))
    assert requests.columns["starts"].view(np.uint8).tolist() == [1]
    end.leave()


def test_a_connection_that_broke_is_a_new_life_and_asks_again(place: Place) -> None:
    end = place.remote().worker(0, 0)
    ask(end, 0, 1)
    place.serve()
    assert answer(end, 0) == [[3, 1], [6, 1]]
    ask(end, 0, 7)
    ask(end, 1, 8)
    first = place.server.read(until(lambda: place.server.pending() == [0, 1] and [0, 1]))
    with place.gateway._lock:
        place.gateway._open[0].end()  # the answer will find nobody
    place.server.answer(first, {"action": np.zeros((3, 2), np.int64)})

    def asked_again() -> list[int]:
        end.answered()
        waiting = place.server.pending()
        return waiting if waiting == [0, 1] else []

    again = place.server.read(until(asked_again))
    assert (again.generations > first.generations).all()
    np.testing.assert_array_equal(again.columns["observation"], first.columns["observation"])
    place.serve()
    assert answer(end, 0) == [[21, 1], [24, 1]]
    assert answer(end, 1) == [[24, 0]]
    end.leave()


def test_a_gateway_that_comes_again_is_found_again(place: Place) -> None:
    end = place.remote().worker(0, 0)
    place.gateway.close()
    ask(end, 0, 3)
    for _ in range(20):
        assert end.answered() == []
        end.wait(0.001)
    again = Gateway(InferenceDesk(place.link), TOKEN, port=place.gateway.address[1])
    try:

        def asked() -> list[int]:
            end.wait(0.01)
            assert end.answered() == []
            return place.server.pending()

        until(asked)
        place.serve()
        assert answer(end, 0) == [[9, 1], [12, 1]]
        end.leave()
    finally:
        again.close()


def test_a_run_that_has_another_token_now_is_told_to_the_worker(place: Place) -> None:
    end = place.remote().worker(0, 0)
    place.gateway.close()
    again = Gateway(InferenceDesk(place.link), "another token than before", port=place.gateway.address[1])
    try:
        with pytest.raises(LinkError, match="does not know the run's token"):
            until(lambda: end.wait(0.01) or end.answered())
    finally:
        again.close()


def test_the_newer_of_two_lives_is_the_worker(place: Place) -> None:
    old = place.remote().worker(0, 1)
    new = place.remote().worker(0, 2)
    with pytest.raises(LinkError, match="worker 0 is there already"):
        place.remote().worker(0, 1)
    ask(new, 1, 2)
    place.serve()
    assert answer(new, 1) == [[6, 0]]
    for end in (old, new):
        end.leave()


def test_a_worker_waits_for_a_gateway_that_is_not_there_yet(place: Place) -> None:
    port = free_port()
    remote = place.remote()
    remote.address = ("127.0.0.1", port)
    end = remote.worker(0, 0)
    ask(end, 0, 5)
    assert end.answered() == []
    gateway = Gateway(InferenceDesk(place.link), TOKEN, port=port)
    try:

        def asked() -> list[int]:
            end.wait(0.01)
            assert end.answered() == []
            return place.server.pending()

        until(asked)
        place.serve()
        assert answer(end, 0) == [[15, 1], [18, 1]]
        end.leave()
    finally:
        gateway.close()


def test_the_token_never_travels_and_a_gateway_without_it_is_not_believed() -> None:
    heard = bytearray()

    def pretend(listener: socket.socket) -> None:
        """Welcome whoever comes, and remember all that it says."""
        peer, _ = listener.accept()
        with peer:
            end = frames.Connection(peer)
            end.receive()
            end.send(frames.CHALLENGE, head=bytes(range(32)))
            said = end.receive(32)
            heard.extend(said.text + said.body)
            end.send(frames.WELCOME, head=bytes(32))
            peer.settimeout(SECONDS)
            while data := peer.recv(4096):
                heard.extend(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pretend, args=(listener,))
        thread.start()
        remote = RemoteInference(listener.getsockname()[:2], TOKEN, REQUEST, REPLY, SPLITS)
        with pytest.raises(LinkError, match="does not know the run's token"):
            remote.worker(0, 0)
        thread.join(SECONDS)
    assert heard
    assert TOKEN.encode() not in heard


def test_a_connection_that_fails_in_any_way_is_cleaned_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    def broken(peer: frames.Connection, seconds: float) -> bool:
        raise ValueError("nobody thought of this")

    monkeypatch.setattr(gateway_server.frames.Connection, "readable", broken)
    one, other = socket.socketpair()
    with one, other:
        peer = frames.Connection(one)
        hello = Hello(bytes(32), "", "", 0, 1)
        desk = InferenceDesk(place.link)
        connection = gateway_server._Connection(desk, peer, hello, lambda steps: None, lambda why: None)
        until(lambda: not any(thread.is_alive() for thread in connection._threads))
        assert connection.over.is_set()
        assert other.recv(1) == b""
    assert place.server.expected() == 0


def test_environment_steps_are_counted_once_and_not_those_that_nobody_can_learn_from(place: Place) -> None:
    end = place.remote().worker(0, 0)
    for number in (1, 2, 3, 4):  # the first tells of no action; odd ones begin episodes
        ask(end, 0, number)
        place.serve()
        answer(end, 0)
    assert place.gateway.news().counts == {"env_steps": 4}
    assert place.gateway.news().counts == {}
    ask(end, 0, 6)
    until(place.server.pending)
    with place.gateway._lock:
        place.gateway._open[0].end()  # asked once more on a new connection, of which it is the first
    until(lambda: end.answered() == [] and place.gateway.counts.worker_connections == 2)

    def served() -> bool:
        if place.server.pending():  # of either generation: the old one's stays until somebody has looked at it
            place.serve()
        return end.answered() == [0]

    until(served)
    end.take(0)
    assert place.gateway.news().counts == {"env_steps": 2}
    end.leave()


def test_who_waits_long_hears_that_the_gateway_lives_and_hangs_up_when_it_does_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_inference, "_QUIET_SECONDS", 0.01)
    end = place.remote().worker(0, 0)
    ask(end, 0, 2)
    sent = end._peer
    pinged = 0

    def heard_of() -> bool:
        nonlocal pinged
        end.wait(0.02)
        assert end.answered() == []
        pinged += end._pinged
        return pinged > 2 and not end._pinged

    until(heard_of)
    assert end._peer is sent  # the same connection all the while
    monkeypatch.setattr(remote_inference, "_DEAD_SECONDS", 0.0)
    end.answered()
    assert end._peer is not sent
    end.leave()
