"""The gateway that hosts find through Redis: its address, certificate and secret, and what the run's record says."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import msgspec
import pytest

from apexrl.errors import ConfigError, LinkError
from apexrl.launch.actor_host import _place
from apexrl.launch.open_gateway import OpenGateway
from apexrl.links.redis.checked_values import GatewayAddress, RunRecord, decode, encode
from apexrl.links.redis.server import Server
from apexrl.links.redis.signing import sign, trusted_modules
from apexrl.links.tcp import tls
from free_ports import free_port

SERVER = Server("redis://127.0.0.1:1")
RECORD = RunRecord(
    run_id="one-run-of-many", name="r", apexrl="0.1.0", config="", spec={}, step_spec={}, schema="", weights_nbytes=1,
    actor_slots=4, host="h", began=0.0, local={},
)  # fmt: skip


@pytest.fixture
def open_() -> Iterator[Callable[..., OpenGateway]]:
    with ExitStack() as stack:

        def make(listen: str = "", advertise: str = "", token: str = "", server: Server = SERVER) -> OpenGateway:
            return stack.enter_context(closing(OpenGateway(server, listen, advertise, token)))

        yield make


def test_a_free_port_of_the_interface_towards_the_server_is_reserved(open_: Callable[..., OpenGateway]) -> None:
    gateway = open_()
    assert gateway.address.host == "127.0.0.1"
    address = gateway.listen.address
    assert address == (gateway.address.host, gateway.address.port)
    for _ in range(2):  # a gateway and its successor listen there
        with socket.create_server(address, reuse_port=True) as listener, socket.create_connection(address):
            listener.accept()[0].close()
    with pytest.raises(OSError, match="Address already in use"):
        socket.create_server(address)
    assert "this machine alone" in gateway.warnings[0]
    assert open_().address.token != gateway.address.token


def test_its_certificate_is_made_in_memory_and_pinned(open_: Callable[..., OpenGateway]) -> None:
    gateway = open_()
    assert gateway.listen.tls is not None
    assert isinstance(gateway.listen.tls.context(), ssl.SSLContext)
    assert gateway.address.fingerprint == gateway.listen.tls.fingerprint
    assert "PRIVATE" not in repr(gateway.listen)
    assert gateway.listen.token not in repr(gateway.listen)


def test_without_cryptography_frames_are_authenticated_only(
    open_: Callable[..., OpenGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> bytes:
        raise ConfigError("it is not installed")

    monkeypatch.setattr(tls, "_make_pair", missing)
    gateway = open_()
    assert gateway.listen.tls is None
    assert gateway.address.fingerprint == ""
    assert "apexrl[tls]" in gateway.warnings[-1]


@pytest.mark.parametrize(
    ("listen", "advertise", "told"),
    [
        ("127.0.0.1:{0}", "", ("127.0.0.1", None)),
        ("0.0.0.0:{0}", "", ("127.0.0.1", None)),
        ("0.0.0.0:{0}", "learner.example:7000", ("learner.example", 7000)),
        ("", "10.0.0.9:9", ("10.0.0.9", 9)),
    ],
)
def test_what_is_said_explicitly_holds(
    open_: Callable[..., OpenGateway], listen: str, advertise: str, told: tuple[str, int | None]
) -> None:
    port = free_port()
    gateway = open_(listen.format(port), advertise)
    assert (gateway.address.host, gateway.address.port) == (told[0], told[1] or port)
    if listen:
        assert gateway.listen.address == (listen.partition(":")[0], port)


@pytest.mark.parametrize(
    ("listen", "advertise", "why"),
    [
        ("here", "", "--listen 'here' is no HOST:PORT"),
        ("", "::1:7", "--advertise '::1:7' is no HOST:PORT"),
        ("192.0.2.1:7", "", "nobody can listen at 192.0.2.1:7"),
    ],
)
def test_an_address_that_cannot_be_is_refused(
    open_: Callable[..., OpenGateway], listen: str, advertise: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        open_(listen, advertise)


def test_a_server_without_an_address_is_refused(open_: Callable[..., OpenGateway]) -> None:
    with pytest.raises(LinkError, match="there is no way to that host"):
        open_(server=Server("redis://no-such-host.invalid:1"))
    assert Server("unix:///tmp/socket").own_address() == "127.0.0.1"


def test_the_record_carries_it_signed_and_one_of_experience_is_as_it_was(open_: Callable[..., OpenGateway]) -> None:
    token = "a-token-that-is-long-enough"
    gateway = open_(token=token)
    assert gateway.address.token == ""  # hosts have it
    record = sign(msgspec.structs.replace(RECORD, gateway=gateway.address), token)
    known = decode(encode(record), RunRecord)
    assert known == record
    assert trusted_modules(record, token, (), "run r") == ()
    moved = msgspec.structs.replace(gateway.address, host="10.6.6.6")
    with pytest.raises(ConfigError, match="is signed with another token"):
        trusted_modules(msgspec.structs.replace(record, gateway=moved), token, (), "run r")
    assert b"gateway" not in encode(RECORD)
    place = _place(SERVER, record, gateway.address, token)
    assert (place.address, place.token) == (gateway.listen.address, token)
    with pytest.raises(ConfigError, match="lets in hosts with its token alone: give --token-file"):
        _place(SERVER, record, gateway.address, "")


@pytest.mark.parametrize(
    "change",
    [{"host": "a b"}, {"host": ""}, {"port": 0}, {"port": 65536}, {"fingerprint": "sha256:00"}, {"token": "x\n"},
     {"token": "x" * 201}, {"host": "x" * 254}],
)  # fmt: skip
def test_what_is_no_address_on_the_server_is_not_believed(change: dict[str, Any]) -> None:
    values = {"host": "10.0.0.1", "port": 7, "fingerprint": "", "token": "x", **change}
    assert decode(msgspec.json.encode(values), GatewayAddress) is None
