"""How connections to an inference gateway begin, seen by whoever makes one; and what every connection can."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
from typing import Any

import pytest
from gateway_rig import SECONDS, SPLITS, TOKEN

from apexrl.errors import FrameError, LinkError
from apexrl.links.tcp import frames, handshake
from apexrl.links.tcp.handshake import RefusedError, UnreachableError
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.remote_inference import RemoteInference
from numbered_requests import REPLY, REQUEST

RUN = "12345678-abcd"


@pytest.mark.parametrize("kind", ["host", "worker"])
def test_a_refusal_of_somebody_without_the_token_is_shown_and_believed_in_nothing(kind: str) -> None:
    def pretend(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        end = frames.Connection(peer)
        end.receive()
        end.send(frames.CHALLENGE, head=bytes(32))
        end.receive(32)
        handshake.refuse(end, "\x1b]0;mine\x07" + "x" * 3000, replaced=bytes(32))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pretend, args=(listener,))
        thread.start()
        address = listener.getsockname()[:2]
        with pytest.raises(RefusedError) as caught:
            if kind == "host":
                HostConnection(address, TOKEN, "there", 42).connect(RUN)
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
        HostConnection(("learner-host", 7000), TOKEN, "there", 42).connect(run)
    assert isinstance(caught.value, UnreachableError) == again


def test_frames_of_any_size_arrive_one_by_one_and_an_absent_one_is_not_waited_for() -> None:
    one, other = socket.socketpair()
    with one, other:
        ends = frames.Connection(one), frames.Connection(other)
        bodies = [bytes([n % 251]) * n for n in (0, 1, 40_000, 40_000, 65_536, 300_000, 7)]
        sender = threading.Thread(target=lambda: [ends[1].send(frames.REQUEST, body=body) for body in bodies])
        sender.start()
        for body in bodies:
            assert bytes(ends[0].receive(300_000, SECONDS).body) == body
        sender.join(SECONDS)
        with pytest.raises(TimeoutError):
            ends[0].receive(seconds=0.001)
        ends[1].send(frames.REQUEST, body=b"xx")
        with pytest.raises(FrameError, match="a body of 2 bytes; at most 1"):
            ends[0].receive(1, SECONDS)


def test_a_connection_may_have_any_descriptor() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    one, other = socket.socketpair()
    try:
        with one, other, socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 1100)) as high:
            assert high.fileno() >= 1100
            end = frames.Connection(high)
            assert not end.readable(0.0)
            other.sendall(b"x")
            assert end.readable(SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
