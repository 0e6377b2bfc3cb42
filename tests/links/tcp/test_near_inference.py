"""Workers of one launcher that ask a gateway from elsewhere, or in memory where the server is."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from gateway_rig import SECONDS, SPLITS, TOKEN, until

from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp.gateway_server import Gateway
from apexrl.links.tcp.inference_desk import InferenceDesk
from apexrl.links.tcp.near_inference import NearInference
from apexrl.links.tcp.remote_inference import RemoteInference
from apexrl.links.tcp.reserved_port import ReservedPort
from apexrl.links.tcp.tls import ClientTls, made_certificate
from numbered_requests import REPLY, REQUEST, actions_for, expected, serve, write


@pytest.fixture
def port() -> Iterator[ReservedPort]:
    held = ReservedPort("127.0.0.1")
    yield held
    held.close()


def test_a_gateway_listens_again_at_a_port_that_is_held_for_it(port: ReservedPort) -> None:
    """Nobody else gets it while there is no gateway, and nothing answers there."""
    link, certificate = InferenceLink(REQUEST, REPLY, 1, SPLITS), made_certificate()

    def listen() -> Gateway:
        host, number = port.address
        tls = certificate.context()
        return Gateway(InferenceDesk(link), TOKEN, host=host, port=number, tls=tls, shared_port=True)

    tls = ClientTls(fingerprint=certificate.fingerprint)
    gateway = listen()
    remote = RemoteInference(port.address, TOKEN, REQUEST, REPLY, SPLITS, tls=tls, connect_seconds=SECONDS)
    worker = remote.worker(0, 0)
    assert worker._peer is not None
    assert worker._peer.encrypted
    gateway.close()
    with pytest.raises(OSError, match="in use"):
        socket.create_server(port.address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(port.address, timeout=SECONDS)
    write(columns := worker.room(0) or {}, 1)
    worker.ask(0, 0.0)
    again = listen()
    server = link.server()
    until(lambda: worker.answered() or (serve(server) and False))  # it connects by itself, and asks anew
    assert (worker.take(0)["action"] == actions_for(columns["observation"])).all()
    worker.leave()
    again.close()


def test_a_worker_that_came_to_the_server_takes_the_place_of_one_elsewhere(port: ReservedPort) -> None:
    """Its predecessor is still connected, as when its node was cut off from the cluster and not from this one."""
    link = InferenceLink(REQUEST, REPLY, 1, SPLITS)
    told: list[str] = []
    host, number = port.address
    gateway = Gateway(
        InferenceDesk(link), TOKEN, host=host, port=number, shared_port=True, tell=lambda text, level: told.append(text)
    )
    server = link.server()
    old = RemoteInference(port.address, TOKEN, REQUEST, REPLY, SPLITS, connect_seconds=SECONDS).worker(0, 0)
    write(old.room(0) or {}, 1)
    old.ask(0, 0.0)
    until(lambda: old.answered() or (serve(server) and False))
    old.take(0)

    new = NearInference(link).worker(0, 1)
    write(new.room(0) or {}, 2)
    new.ask(0, 0.0)
    before = int(link.generations.max())
    write(old.room(0) or {}, 3)
    old.ask(0, 0.0)
    until(lambda: any("a newer generation of it works on this host" in text for text in told))
    assert link.generations.max() == before  # and nothing of it came into the memory
    until(lambda: new.answered() or (serve(server) and False))
    assert (new.take(0)["action"] == expected(2, SPLITS[0])).all()
    old.leave()
    until(lambda: not gateway.counts.workers)
    gateway.close()
