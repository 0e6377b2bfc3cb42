"""What a gateway does for remote workers of an inference link: copies requests into its memory, and answers back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from apexrl.errors import FrameError
from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp import frames
from apexrl.links.tcp.gateway_server import SLICE_SECONDS
from apexrl.links.tcp.handshake import Hello
from apexrl.links.tcp.slot_leases import LEASE_BITS

_ROOM_SECONDS = 0.001  # between checks whether the server has read a predecessor's request


class InferenceDesk:
    """For a gateway: lets workers of other hosts ask the servers of ``link``.

    Args:
        first: slot of a remote worker; those before it are this host's.
    """

    def __init__(self, link: InferenceLink, first: int = 0) -> None:
        self._link = link
        self.beats = link.beats
        self.slots = range(first, link.workers)
        self.schema = frames.schema_of(link.request, link.reply, link.splits)
        for slot in self.slots:
            link.worker(slot, 0).leave()  # of an earlier gateway that was killed

    def known_leases(self) -> dict[int, int]:
        splits = len(self._link.splits)
        newest = self._link.generations.max(axis=0).reshape(-1, splits).max(axis=1)
        return {slot: int(newest[slot]) >> LEASE_BITS for slot in self.slots}

    def begin(
        self, peer: frames.Connection, hello: Hello, over: threading.Event, stepped: Callable[[int], None]
    ) -> InferenceTraffic:
        return InferenceTraffic(self._link, peer, hello, over, stepped)


class InferenceTraffic:
    """Copies a remote worker's requests into the memory, and the answers back."""

    def __init__(
        self,
        link: InferenceLink,
        peer: frames.Connection,
        hello: Hello,
        over: threading.Event,
        stepped: Callable[[int], None],
    ) -> None:
        self._peer, self._over, self._stepped = peer, over, stepped
        self._end = link.worker(hello.worker, hello.generation)
        self._splits = link.splits
        own = slice(hello.worker * len(link.splits), (hello.worker + 1) * len(link.splits))
        self._generation, self._newest = hello.generation, link.generations[:, own]  # of requests, whoever made them
        self._request_bytes = frames.nbytes(link.request)
        self._known = [False] * len(link.splits)  # groups with a request of this connection

    def leave(self) -> None:
        self._end.leave()

    def receive(self) -> None:
        most = max(self._splits) * self._request_bytes
        while not self._over.is_set():
            if not self._peer.readable(SLICE_SECONDS):
                continue
            kind, split, head, body = self._peer.receive(most)
            if kind == frames.PING and not body:
                self._peer.send(frames.PONG)
                continue
            if kind != frames.REQUEST or head or split >= len(self._splits):
                raise FrameError("a worker sent what is no request")
            if len(body) != self._splits[split] * self._request_bytes:
                raise FrameError(f"a request of {len(body)} bytes is not that of {self._splits[split]} environments")
            while (columns := self._end.room(split)) is None:
                if self._over.wait(_ROOM_SECONDS):
                    return
            if self._newest.max() > self._generation:
                raise FrameError("a newer generation of it works on this host")
            frames.fill(columns, body)
            # The results in a connection's first request are of actions that the server no longer knows.
            rests = np.logical_or(columns["starts"], columns.get("idle", False))
            steps = self._splits[split] - int(np.count_nonzero(rests)) if self._known[split] else 0
            self._known[split] = True
            self._end.ask(split, time.monotonic())
            self._stepped(steps)

    def send(self) -> None:
        while not self._over.is_set():
            for split in self._end.answered():
                self._peer.send(frames.REPLY, split, columns=self._end.take(split))
            self._end.wait(SLICE_SECONDS)
