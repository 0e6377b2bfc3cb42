"""Connections to an inference gateway that somebody tampers with, TLS and what can be wrong with it, and knockers."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import trustme

from apexrl.errors import ConfigError, LinkError
from apexrl.links.local.inference import InferenceLink, RequestServer
from apexrl.links.tcp import frames as wire
from apexrl.links.tcp import handshake_limits
from apexrl.links.tcp.gateway_messages import Record
from apexrl.links.tcp.gateway_server import Gateway
from apexrl.links.tcp.handshake import UnreachableError
from apexrl.links.tcp.handshake_limits import HandshakeLimits
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.remote_inference import RemoteInference, RemoteRequestClient
from apexrl.links.tcp.tls import ClientTls, ServerTls, self_signed
from numbered_requests import REPLY, REQUEST

Change = Callable[[bool, int, bytes], list[bytes]]
TOKEN = "a token of this test"
SPLITS = (2, 1)
SECONDS = 120.0
RECORD = Record(
    run_id="12345678-abcd",
    name="r",
    apexrl="0.1.0",
    host="h",
    config="x = 1",
    spec={},
    splits=[2, 1],
    lease_seconds=5.0,
)


class Place:
    """A gateway, with the server behind it."""

    def __init__(self, tls: ServerTls | None = None) -> None:
        self.told: list[str] = []
        self._link = InferenceLink(REQUEST, REPLY, 1, SPLITS)
        self.server: RequestServer = self._link.server()
        self.gateway = Gateway(
            self._link,
            TOKEN,
            RECORD,
            tell=lambda text, level: self.told.append(text),
            tls=tls.context() if tls else None,
        )

    def worker(
        self, tls: ClientTls | None = None, port: int = 0, host: str = "127.0.0.1", generation: int = 0
    ) -> RemoteRequestClient:
        address = host, port or self.gateway.address[1]
        link = RemoteInference(address, TOKEN, REQUEST, REPLY, SPLITS, tls=tls, connect_seconds=SECONDS)
        return link.worker(0, generation)

    def host(self, tls: ClientTls | None = None, port: int = 0) -> HostConnection:
        address = "127.0.0.1", port or self.gateway.address[1]
        return HostConnection(address, TOKEN, "there", 42, tls, connect_seconds=SECONDS)

    def serve(self) -> None:
        requests = self.server.read(until(self.server.pending))
        self.server.answer(requests, {name: np.zeros((2, *field.shape), field.dtype) for name, field in REPLY.items()})


@pytest.fixture
def places() -> Iterator[Callable[..., Place]]:
    with ExitStack() as stack:

        def make(tls: ServerTls | None = None) -> Place:
            place = Place(tls)
            stack.callback(place.gateway.close)
            return place

        yield make


def until(truth: Callable[[], object]) -> object:
    deadline = time.monotonic() + SECONDS
    while not (found := truth()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


def play(place: Place, end: RemoteRequestClient) -> None:
    """A request and its answer."""
    assert end.room(0) is not None
    end.ask(0, 0.0)
    place.serve()
    until(lambda: end.wait(0.01) or end.answered())
    end.take(0)


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
                far.sendall(said.read(16))
                near.sendall(far.recv(16 + 32))
                head = said.read(16)
                hello = bytearray(said.read(sum(struct.unpack("<8sII", head)[1:])))
                assert hello[-32 - 1 - 2 - 32 :][:2] == b"\xc4\x20"  # the schema, a flag, the proof
                hello[-32 - 1 - 2 - 32 - 1] ^= 1  # the generation
                far.sendall(head + hello)
                near.sendall(far.recv(4096))

        thread = threading.Thread(target=pass_on)
        thread.start()
        with pytest.raises(LinkError, match="does not know the run's token"):
            place.worker(port=listener.getsockname()[1])
        thread.join(SECONDS)
    assert place.gateway.counts.worker_connections == 0


# --- TLS


class Authority:
    """A certificate authority, with files for both sides."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._ca = trustme.CA()
        self.file = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def pair(self, *names: str, not_after: datetime | None = None) -> tuple[str, str]:
        leaf = self._ca.issue_cert(*names, not_after=not_after)
        files = [str(self._folder / f"{self._name}-{names[0]}-{what}.pem") for what in ("cert", "key")]
        leaf.private_key_pem.write_to_path(files[1])
        Path(files[0]).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        return files[0], files[1]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "right")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_answers_and_messages_travel_in_tls(
    places: Callable[..., Place], authority: Authority, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = places(ServerTls(*authority.pair("127.0.0.1"), ca=authority.file))
    own = authority.pair("a-host")
    tls = ClientTls(ca=authority.file, cert=own[0], key=own[1])
    context = tls.context()
    context.maximum_version = version
    monkeypatch.setattr(ClientTls, "context", lambda self: context)
    end = place.worker(tls)
    assert end._peer is not None
    assert end._peer.encrypted
    for _ in range(20):
        play(place, end)
    host = place.host(tls)
    assert host.connect() == RECORD
    assert host.beat(texts=[("info", "x" * 4000)] * 20).number == 1  # of more than one record
    host.leave()
    end.leave()
    until(lambda: "has left" in place.told[-1])
    assert not any("refused" in text for text in place.told)


def test_a_self_signed_certificate_is_made_once_and_pinned(places: Callable[..., Place], tmp_path: Path) -> None:
    file = tmp_path / "own.pem"
    tls = self_signed(str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert self_signed(str(file)).fingerprint == tls.fingerprint
    place = places(tls)
    digits = tls.fingerprint.removeprefix("sha256:").upper()
    as_openssl_says_it = ":".join(digits[at : at + 2] for at in range(0, 64, 2))
    for generation, fingerprint in enumerate((tls.fingerprint, as_openssl_says_it)):
        end = place.worker(ClientTls(fingerprint=fingerprint), host="localhost", generation=generation)
        play(place, end)
        end.leave()
    other = self_signed(str(tmp_path / "other.pem")).fingerprint
    with pytest.raises(LinkError, match=f"another certificate than .*: its own is {tls.fingerprint}"):
        place.worker(ClientTls(fingerprint=other))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("authority", "is not signed by an authority in --tls-ca"),
        ("dates", r"is out of date \(certificate has expired\): renew it there"),
        ("name", "is for another name .*: connect to the name in it, or pin it with --tls-fingerprint"),
        ("none here", "wants a certificate of this host: give --tls-cert and --tls-key"),
        ("other here", "does not accept this host's certificate"),
        ("plain gateway", "does not speak TLS: leave out --tls-ca and --tls-fingerprint, or start the run with"),
        ("plain worker", "it does not speak TLS, and this run does: give apexrl envs --tls-fingerprint or --tls-ca"),
    ],
)
def test_what_is_wrong_with_tls_is_said_at_once(
    places: Callable[..., Place], authority: Authority, tmp_path: Path, wrong: str, why: str
) -> None:
    elsewhere = Authority(tmp_path, "elsewhere")
    before = datetime.now(UTC) - timedelta(minutes=5)
    name = "another.host" if wrong == "name" else "127.0.0.1"
    pair = authority.pair(name, not_after=before if wrong == "dates" else None)
    tls = ServerTls(*pair, ca=authority.file if wrong.endswith("here") else "")
    place = places(None if wrong == "plain gateway" else tls)
    own = elsewhere.pair("a-host") if wrong == "other here" else ("", "")
    client = ClientTls((elsewhere if wrong == "authority" else authority).file, "", *own)
    began = time.monotonic()
    with pytest.raises(LinkError, match=why) as caught:
        place.worker(None if wrong == "plain worker" else client)
    assert not isinstance(caught.value, UnreachableError)
    assert time.monotonic() - began < SECONDS
    until(lambda: place.told)
    assert "was refused" in place.told[0]
    assert place.gateway.counts.workers == 0


@pytest.mark.parametrize(
    ("content", "flag", "why"),
    [
        (None, "cert", "--tls-cert .* cannot be read: .*No such file"),
        (b"no certificate", "cert", "are no PEM files"),
        (None, "key", "--tls-key .* cannot be read"),
        (b"other", "key", "is not the key of --tls-cert"),
        (b"locked", "key", "has a passphrase"),
        (None, "ca", "--tls-ca .* cannot be read"),
        (b"", "ca", "holds no certificates"),
    ],
)
def test_files_that_are_no_certificates_are_refused(
    authority: Authority, tmp_path: Path, content: bytes | None, flag: str, why: str
) -> None:
    cert, key = authority.pair("127.0.0.1")
    files = {"cert": cert, "key": key, "ca": authority.file}
    files[flag] = str(tmp_path / "wrong.pem")
    if content == b"other":
        content = Path(authority.pair("another")[1]).read_bytes()
    if content == b"locked":
        from cryptography.hazmat.primitives import serialization

        private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
        content = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    if content is not None:
        Path(files[flag]).write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        ServerTls(**files).context()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (ClientTls(cert="x"), "TLS needs --tls-fingerprint"),
        (ClientTls(fingerprint="sha256:12"), "sha256: and 64 hex digits"),
    ],
)
def test_a_host_that_knows_nothing_of_the_run_does_not_connect(given: ClientTls, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        given.context()


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
    for _ in range(100):
        with socket.create_connection(place.gateway.address, timeout=SECONDS) as peer, suppress(OSError):
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while peer.recv(4096):
                pass
    assert len(place.told) == 1
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
