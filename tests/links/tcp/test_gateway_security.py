"""Connections to an inference gateway that somebody tampers with, and strangers who connect."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from gateway_rig import SECONDS, Place, play, until

from apexrl.errors import LinkError
from apexrl.links.tcp import frames as wire
from apexrl.links.tcp import handshake_limits
from apexrl.links.tcp.handshake import UnreachableError
from apexrl.links.tcp.handshake_limits import HandshakeLimits

Change = Callable[[bool, int, bytes], list[bytes]]


@pytest.fixture
def meddle() -> Iterator[Callable[[Place, Change], Meddler]]:
    with ExitStack() as stack:

        def make(place: Place, change: Change) -> Meddler:
            meddler = Meddler(place.gateway.address, change)
            stack.callback(meddler.close)
            return meddler

        yield make


class Meddler:
    """A man in the middle who understands frames: ``change`` says what becomes of each one after the welcome.

    Args:
        change: (whether it comes from the worker, its number on that way, its bytes) -> what is handed on.
    """

    def __init__(self, to: tuple[str, int], change: Change) -> None:
        self._to, self._change = to, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                for one, other, hello, up in ((near, far, 2, True), (far, near, 2, False)):
                    threading.Thread(target=self._pass_on, args=(one, other, hello, up), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, hello: int, up: bool) -> None:
        with suppress(OSError), one.makefile("rb") as stream:
            number = -hello  # frames before the first that has a code
            while head := stream.read(16):
                text, body = struct.unpack("<8sII", head)[1:]
                frame = head + stream.read(text + body + (wire._CODE_BYTES if number >= 0 else 0))
                for data in [frame] if number < 0 else self._change(up, number, frame):
                    other.sendall(data)
                number += 1
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


def flip(at: int) -> Callable[[bytes], list[bytes]]:
    def change(frame: bytes) -> list[bytes]:
        data = bytearray(frame)
        data[at] ^= 1
        return [bytes(data)]

    return change


CHANGES: dict[str, Callable[[bytes], list[bytes]]] = {
    "its kind": flip(5),
    "its length": flip(12),
    "its body": flip(20),
    "its code": flip(-1),
    "again": lambda frame: [frame, frame],
    "dropped": lambda frame: [],
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("up", [True, False], ids=["requests", "answers"])
@pytest.mark.parametrize("gmac", [True, False], ids=["gmac", "hmac"])
def test_a_frame_that_is_changed_repeated_or_dropped_is_noticed(
    places: Callable[..., Place],
    meddle: Callable[[Place, Change], Meddler],
    name: str,
    up: bool,
    gmac: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wire.HAS_GMAC
    monkeypatch.setattr(wire, "HAS_GMAC", gmac)
    place = places()

    def change(of_worker: bool, number: int, frame: bytes) -> list[bytes]:
        return CHANGES[name](frame) if of_worker == up and number == 1 else [frame]

    meddler = meddle(place, change)
    end = place.worker(port=meddler.port)
    play(place, end)
    if up:
        for split in (0, 1):  # the second shows that the first is missing
            end.ask(split, 0.0)
        until(lambda: place.told)
        assert "worker 0 at 127.0.0.1" in place.told[0]
        assert "was changed, repeated, dropped or put elsewhere on its way" in place.told[0]
    else:
        with pytest.raises(LinkError, match="was changed, repeated, dropped or put elsewhere on its way"):
            for _ in range(2):
                play(place, end)
                play(place, end)
    end.leave()


def test_frames_that_change_places_are_noticed(
    places: Callable[..., Place], meddle: Callable[[Place, Change], Meddler]
) -> None:
    place = places()
    held: list[bytes] = []

    def change(of_worker: bool, number: int, frame: bytes) -> list[bytes]:
        if of_worker and number == 0:
            held.append(frame)
            return []
        return [frame, *held] if of_worker and number == 1 else [frame]

    meddler = meddle(place, change)
    end = place.worker(port=meddler.port)
    for split in (0, 1):
        end.ask(split, 0.0)
    until(lambda: place.told)
    assert "put elsewhere on its way" in place.told[0]
    assert place.server.pending() == []  # nothing of it was believed
    end.leave()


def test_frames_of_another_connection_are_not_taken(
    places: Callable[..., Place], meddle: Callable[[Place, Change], Meddler]
) -> None:
    place = places()
    heard: list[bytes] = []

    def change(of_worker: bool, number: int, frame: bytes) -> list[bytes]:
        if not of_worker:
            return [frame]
        heard.append(frame)
        return [heard[0]]  # of the first connection, at the same place

    meddler = meddle(place, change)
    first = place.worker(port=meddler.port)
    play(place, first)
    second = place.worker(port=meddler.port, generation=1)
    second.ask(0, 0.0)
    until(lambda: place.told)
    assert "put elsewhere on its way" in place.told[0]
    for end in (first, second):
        end.leave()


def test_what_a_host_hears_cannot_be_changed_and_it_comes_again(
    places: Callable[..., Place], meddle: Callable[[Place, Change], Meddler]
) -> None:
    place = places()
    damaged: list[int] = []

    def change(of_worker: bool, number: int, frame: bytes) -> list[bytes]:
        if of_worker or number != 1 or damaged:
            return [frame]
        damaged.append(number)
        return flip(20)(frame)

    meddler = meddle(place, change)
    host = place.host(port=meddler.port)
    host.connect()
    with pytest.raises(UnreachableError, match="was changed, repeated, dropped or put elsewhere on its way"):
        host.join(1)
    host.connect()
    assert host.beat().number == 1
    host.leave()


def test_a_hello_that_was_changed_is_refused(places: Callable[..., Place]) -> None:
    """Who asks, and for what, is part of the proof: a worker cannot be made another one on the way."""
    place = places()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pass_on() -> None:
            near, _ = listener.accept()
            with near, socket.create_connection(place.gateway.address) as far, near.makefile("rb") as said:
                far.sendall(said.read(16 + 3))  # with the protocols that it speaks
                near.sendall(far.recv(16 + 32))
                head = said.read(16)
                hello = bytearray(said.read(sum(struct.unpack("<8sII", head)[1:])))
                assert hello[-32 - 2 - 2 - 32 :][:2] == b"\xc4\x20"  # the schema, a flag, no others, the proof
                hello[-32 - 2 - 2 - 32 - 1] ^= 1  # the generation
                far.sendall(head + hello)
                near.sendall(far.recv(4096))

        thread = threading.Thread(target=pass_on)
        thread.start()
        with pytest.raises(LinkError, match="does not know the run's token"):
            place.worker(port=listener.getsockname()[1])
        thread.join(SECONDS)
    assert place.gateway.counts.worker_connections == 0


# --- who knocks


def test_knockers_get_one_line_a_period_with_their_counts() -> None:
    told: list[str] = []
    now = [0.0]
    greetings = HandshakeLimits(lambda text, level: told.append(text), lambda: now[0])
    for n in range(5000):
        greetings.fail("10.0.0.3", "somebody at 10.0.0.3:1", "it does not know the run's token")
        if n < 300:
            greetings.fail(f"10.0.1.{n}", "somebody", "it did not say hello")
        greetings.look()
    assert told == ["somebody at 10.0.0.3:1 was refused: it does not know the run's token"]
    now[0] = handshake_limits.PERIOD_SECONDS
    greetings.look()
    assert len(told) == 2
    assert told[1].startswith(
        "5299 more connections refused within 10 s: 4999 from 10.0.0.3 (it does not know the run's"
    )
    assert told[1].endswith("297 from others")
    assert len(told[1]) < 500
    assert greetings.failed == 5300
    now[0] *= 2
    greetings.look()  # a quiet period
    now[0] *= 2
    greetings.look()
    greetings.fail("10.0.0.3", "somebody at 10.0.0.3:1", "it hung up")
    assert len(told) == 3


def test_unknown_connections_are_bounded_in_all_and_from_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    greetings = HandshakeLimits(lambda text, level: None, lambda: now[0])
    of_one = sum(greetings.begin("10.0.0.3") for _ in range(1000))
    assert of_one == handshake_limits.MOST_OF_ADDRESS
    others = sum(greetings.begin(f"10.0.{n}.4") for n in range(1000))
    assert of_one + others == handshake_limits.MOST
    for _ in range(of_one):
        greetings.end("10.0.0.3")
    assert greetings.begin("10.0.0.5")  # its own failures have no part in it
    assert not greetings.begin("10.0.0.3")  # too many failures
    now[0] = handshake_limits.PERIOD_SECONDS
    greetings.look()
    assert greetings.begin("10.0.0.3")


def test_many_who_say_nothing_right_leave_few_lines_and_workers_come_in(places: Callable[..., Place]) -> None:
    place = places()
    began = time.monotonic()
    for _ in range(100):
        with socket.create_connection(place.gateway.address, timeout=SECONDS) as peer, suppress(OSError):
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while peer.recv(4096):
                pass
    periods = int((time.monotonic() - began) / handshake_limits.PERIOD_SECONDS)  # where the cores are busy
    assert 1 <= len(place.told) <= 1 + periods
    until(lambda: place.gateway.counts.refused == 100)
    end = place.worker()
    play(place, end)
    end.leave()


def test_who_says_nothing_is_sent_away_in_time(places: Callable[..., Place], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HELLO_SECONDS", 0.05)
    place = places()
    with socket.create_connection(place.gateway.address, timeout=SECONDS) as peer:
        while peer.recv(4096):
            pass
    until(lambda: place.told)
    assert "stopped in the midst of a frame" in place.told[0]
