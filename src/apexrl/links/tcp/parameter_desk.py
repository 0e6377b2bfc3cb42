"""What a gateway does for hosts that compute gradients: puts them into the rings of the parameter servers of this
host, and sends what these publish."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from apexrl.errors import FrameError
from apexrl.links.local.gradient_ring import GradientLink, Ring
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.links.tcp import frames
from apexrl.links.tcp.gateway_server import SLICE_SECONDS
from apexrl.links.tcp.handshake import Hello
from apexrl.links.tcp.parameter_frames import (
    BOARDS,
    GRADIENT_HEAD,
    MOST_VALUES,
    SLICE_HEAD,
    Assembly,
    pieces,
    schema_of,
)

_LOOK_SECONDS: Final = 0.005  # between looks at rings and boards that ring no bell here
_ROOM_SECONDS: Final = 0.001  # between looks whether a predecessor's message has left a ring
_FRESH_SECONDS: Final = 0.1
"""After which newer slices are sent even if no gradient of the host was settled, unless sending them takes long."""
_BUSY_SHARE: Final = 0.1  # of the time, that slices which nobody waits for may take


class ParameterDesk:
    """For a gateway: senders of ``gradients`` and readers of ``parameters`` on other hosts.

    Args:
        first: slot of a remote sender; those before it are this host's.
    """

    def __init__(self, gradients: GradientLink, parameters: ShardedParameters, first: int = 0) -> None:
        self._gradients, self._parameters = gradients, parameters
        self.beats = gradients.beats
        self.slots = range(first, gradients.senders)
        self.schema = schema_of(gradients.shards)

    def known_leases(self) -> dict[int, int]:
        return {slot: int(self._gradients.leases[slot]) for slot in self.slots}

    def begin(
        self, peer: frames.Connection, hello: Hello, over: threading.Event, stepped: Callable[[int], None]
    ) -> ParameterTraffic:
        for slot, lease in hello.leases.items():
            self._gradients.leases[slot] = lease
        return ParameterTraffic(self._gradients, self._parameters, peer, sorted(hello.leases), over)


class ParameterTraffic:
    """One relay's gradients, and the slices for it: always the newest, and none while the last ones are on their way.

    Slices that contain a gradient are sent before the relay hears that it is settled.
    """

    def __init__(
        self,
        gradients: GradientLink,
        parameters: ShardedParameters,
        peer: frames.Connection,
        slots: list[int],
        over: threading.Event,
    ) -> None:
        self._shards, self._parameters = gradients.shards, parameters
        self._peer, self._over = peer, over
        self._rings: dict[tuple[int, int], Ring] = {
            (slot, k): gradients.ring(slot, k) for slot in slots for k in range(self._shards.count)
        }
        self._put = dict.fromkeys(self._rings, 0)  # messages of this connection

    def leave(self) -> None:
        pass  # nobody waits for a sender

    def receive(self) -> None:
        assembly = Assembly()
        while not self._over.is_set():
            if not self._peer.readable(SLICE_SECONDS):
                continue
            kind, _, head, body = self._peer.receive(4 * MOST_VALUES)
            if kind == frames.PING and not (head or body):
                self._peer.send(frames.PONG)
                continue
            if kind != frames.GRADIENT or len(head) != GRADIENT_HEAD.size:
                raise FrameError("a relay sent what is no gradient")
            slot, shard, base, groups, begin = GRADIENT_HEAD.unpack(head)
            ring = self._rings.get((slot, shard))
            if ring is None:
                raise FrameError(f"a gradient of slot {slot} for server {shard}: the relay has no such sender")
            if groups >> len(self._shards.groups):
                raise FrameError(f"a gradient has groups {groups:b}, and there are {len(self._shards.groups)}")
            values = assembly.add((slot, shard, base, groups), self._shards.size(shard), begin, body)
            if values is None:
                continue
            if not np.isfinite(values).all():
                raise FrameError(f"a gradient of slot {slot} has values that are no finite numbers")
            while ring.full:
                if self._over.wait(_ROOM_SECONDS):
                    return
            ring.write(base, groups, [(0, values)])
            self._put[slot, shard] += 1

    def send(self) -> None:
        ring = next(iter(self._rings.values()))
        sent = dict.fromkeys(((name, k) for name in BOARDS for k in range(self._shards.count)), 0)
        told: dict[tuple[int, int], tuple[int, int]] = {}
        fresh_at = 0.0
        while not self._over.is_set():
            seen = ring.segment.load(ring.bells[1])
            counts = {key: self._counts(key) for key in self._rings}  # before slices: these are published first
            news = {key: count for key, count in counts.items() if told.get(key) != count}
            settled = any(key not in told or told[key][1] != count[1] for key, count in news.items())
            if settled or time.monotonic() >= fresh_at:
                began = time.monotonic()
                self._send_newer(sent)
                took = time.monotonic() - began
                fresh_at = began + max(_FRESH_SECONDS, took / _BUSY_SHARE)
            if news:
                told |= news
                rows = [(*key, *count) for key, count in news.items()]
                self._peer.send(frames.SETTLED, columns={"counts": np.array(rows, np.int64)})
            else:
                ring.segment.wait(ring.bells[1], seen, _LOOK_SECONDS)

    def _counts(self, key: tuple[int, int]) -> tuple[int, int]:
        """(taken, settled) messages of this connection on a ring."""
        put, ring = self._put[key], self._rings[key]  # first: what is put meanwhile counts as waiting
        unsettled = ring.unsettled
        return put - min(ring.waiting, unsettled), put - unsettled

    def _send_newer(self, sent: dict[tuple[str, int], int]) -> None:
        """Send the slices that were published since; ``sent``: (board, shard) -> version, updated."""
        for name, shard in sent:
            board = self._parameters.board(name, shard)
            found = None if board is None else board.latest(sent[name, shard])
            if found is None:
                continue
            version, slices = found
            values = np.concatenate(list(slices.values()))
            lag = self._parameters.memory(shard).gradient_lag
            for begin, body in pieces(values):
                head = SLICE_HEAD.pack(shard, BOARDS.index(name), version, lag, begin)
                self._peer.send(frames.SLICE, head=head, body=body)
            sent[name, shard] = version
