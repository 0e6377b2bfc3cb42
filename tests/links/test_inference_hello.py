"""How connections to an inference gateway begin, seen by whoever makes one; and what every connection can."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
from typing import Any

import pytest
from asking import REPLY, REQUEST

from apexrl.errors import LinkError
from apexrl.links import inference_hello
from apexrl.links import inference_wire as wire
from apexrl.links.inference_hello import RefusedError, UnreachableError
from apexrl.links.inference_host import HostEnd
from apexrl.links.inference_remote import RemoteInference

TOKEN = "a token of this test"
RUN = "12345678-abcd"
SPLITS = (2, 1)
SECONDS = 120.0


@pytest.mark.parametrize("kind", ["host", "worker"])
def test_a_refusal_of_somebody_without_the_token_is_shown_and_believed_in_nothing(kind: str) -> None:
    def pretend(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        wire.prepare(peer)
        wire.send(peer, wire.CHALLENGE, head=bytes(32))
        wire.receive_head(peer)
        inference_hello.refuse(peer, "\x1b]0;mine\x07" + "x" * 3000, replaced=bytes(32))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pretend, args=(listener,))
        thread.start()
        address = listener.getsockname()[:2]
        with pytest.raises(RefusedError) as caught:
            if kind == "host":
                HostEnd(address, TOKEN, "there", 42).connect(RUN)
            else:
                RemoteInference(address, TOKEN, REQUEST, REPLY, SPLITS).worker(2, 0)
        thread.join(SECONDS)
    assert not caught.value.replaced
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 600
    assert "?]0;mine?xxx" in text


@pytest.mark.parametrize(
    ("run", "error", "again"),
    [
        ("", socket.EAI_NONAME, False),
        ("", socket.EAI_AGAIN, True),
        (RUN, socket.EAI_NONAME, True),
    ],
)
def test_a_name_that_was_good_once_is_looked_up_again(
    run: str, error: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> socket.socket:
        raise socket.gaierror(error, "in words")

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(LinkError, match="in words") as caught:
        HostEnd(("learner-host", 7000), TOKEN, "there", 42).connect(run)
    assert isinstance(caught.value, UnreachableError) == again


def test_what_is_sent_has_its_own_time_whatever_was_left_when_something_came() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(SECONDS)
        wire.send(other, wire.PONG)
        assert wire.receive_head(one, 0.5).kind == wire.PONG
        with pytest.raises(TimeoutError):
            wire.receive_head(one, 0.001)
        assert one.gettimeout() == SECONDS


def test_a_connection_may_have_any_descriptor() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    one, other = socket.socketpair()
    try:
        with one, other, socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 1100)) as high:
            assert high.fileno() >= 1100
            assert not wire.readable(high, 0.0)
            other.sendall(b"x")
            assert wire.readable(high, SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
