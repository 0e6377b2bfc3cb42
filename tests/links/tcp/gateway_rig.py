"""An inference gateway with the server behind it, its token and record, for several tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from apexrl.links.local.inference import InferenceLink, RequestServer
from apexrl.links.tcp.gateway_messages import Record
from apexrl.links.tcp.gateway_server import Gateway
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.inference_desk import InferenceDesk
from apexrl.links.tcp.remote_inference import RemoteInference, RemoteRequestClient
from apexrl.links.tcp.tls import ClientTls, ServerTls
from numbered_requests import REPLY, REQUEST

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

T = TypeVar("T")


def until(truth: Callable[[], T]) -> T:
    """Wait for what another thread does."""
    deadline = time.monotonic() + SECONDS
    while not (found := truth()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


class Place:
    """A gateway, with the server behind it."""

    def __init__(self, tls: ServerTls | None = None) -> None:
        self.told: list[str] = []
        self._link = InferenceLink(REQUEST, REPLY, 1, SPLITS)
        self.server: RequestServer = self._link.server()
        self.gateway = Gateway(
            InferenceDesk(self._link),
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


def play(place: Place, end: RemoteRequestClient) -> None:
    """A request and its answer."""
    assert end.room(0) is not None
    end.ask(0, 0.0)
    place.serve()
    until(lambda: end.wait(0.01) or end.answered())
    end.take(0)
