"""The client of a gateway to parameter servers, on a host whose workers compute gradients.

Workers use links in this host's memory: what they read there are copies of the newest slices, and what they send is
passed on. A connection that broke is replaced under a higher generation; gradients that were under way are given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import FrameError, LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.local.gradient_ring import GradientLink, Ring
from apexrl.links.local.parameter_slices import Floats
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.links.tcp import frames
from apexrl.links.tcp.handshake import MOST_SLOTS, UnreachableError, enter
from apexrl.links.tcp.parameter_frames import (
    BOARDS,
    GRADIENT_HEAD,
    MOST_VALUES,
    SLICE_HEAD,
    Assembly,
    pieces,
    schema_of,
)
from apexrl.links.tcp.slot_leases import GENERATION_BITS, LEASE_BITS, Lease
from apexrl.links.tcp.tls import ClientTls

LOCAL_CAPACITY: Final = 1
"""Messages that may wait in a ring between a worker and the relay: others are under way, or wait at the servers."""
UNDER_WAY: Final = 2
"""Messages of one worker for one server that the server may not have taken yet."""

_QUIET_SECONDS = 5.0  # of silence before a ping
_DEAD_SECONDS = 15.0  # … and before the gateway counts as dead
_LOOK_SECONDS = 0.005  # between looks at rings that ring no bell here
_SLICE_SECONDS = 0.1  # between checks whether to end


@dataclass(frozen=True)
class ParameterGateway:
    """Where the gateway is, and as whom the relay asks. Picklable to local processes."""

    address: tuple[str, int]
    token: str = field(repr=False)
    leases: Sequence[Lease]
    """(slot, generation of its lease) of every worker here."""
    run: str = ""
    """Its id; empty: any."""
    member: str = ""
    """Id of this host."""
    tls: ClientTls | None = None
    connect_seconds: float = 3.0


class ParameterRelay:
    """Passes gradients of this host's workers on, and publishes here what parameter servers elsewhere publish. For one
    thread; one process at a time.

    Args:
        gradients: of this host, with ``LOCAL_CAPACITY``; its slots are those of ``gateway.leases``.
        parameters: of this host; nobody else writes there.
        generation: of this process among those that relay for the same leases.

    Attributes:
        passed: gradients that servers have taken, slice by slice.
        lost: slices of gradients that were under way when a connection or an earlier relay ended: the servers took
            them, or will never see them.

    Raises:
        LinkError: it is refused; the message says why.
    """

    def __init__(
        self,
        gateway: ParameterGateway,
        gradients: GradientLink,
        parameters: ShardedParameters,
        generation: int = 0,
    ) -> None:
        if len(gateway.leases) > MOST_SLOTS:
            raise LinkError(f"{len(gateway.leases)} workers on one host: one connection carries at most {MOST_SLOTS}")
        self._gateway, self._parameters = gateway, parameters
        self._schema = schema_of(gradients.shards)
        self._generation = generation << GENERATION_BITS
        self.rings: dict[tuple[int, int], Ring] = {
            (slot, k): gradients.ring(slot, k) for slot, _ in gateway.leases for k in range(gradients.shards.count)
        }
        self._first = next(iter(self.rings.values()))  # workers write there first
        self._ahead = [0] * gradients.shards.count  # that versions here are of those there: see publish
        self._connection: _Connection | None = None
        self._backoff = Backoff(least=0.1)
        self._retry_at = 0.0
        self.passed = self.lost = 0
        self._give_up()
        self._connect()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def waiting(self) -> bool:
        """Whether a worker's gradient waits to be passed on, or is under way."""
        return any(ring.unsettled for ring in self.rings.values())

    def step(self, timeout: float) -> bool:
        """Pass on what waits and may travel. False: nothing did, for ``timeout`` seconds.

        Raises:
            LinkError: after a broken connection this host was refused, or somebody tampers with the connection.
        """
        deadline = time.monotonic() + timeout
        first = self._first
        while True:
            if self._connection is None and time.monotonic() >= self._retry_at:
                self._connect()
            seen = first.segment.load(first.bells[0])
            moved = self._connection is not None and self._pass_on(self._connection)
            left = deadline - time.monotonic()
            if moved or left <= 0:
                return moved
            if self._connection is None:
                time.sleep(min(left, max(0.0, self._retry_at - time.monotonic())))
            else:
                first.segment.wait(first.bells[0], seen, min(left, _LOOK_SECONDS))

    def close(self) -> None:
        """Disconnect. What waits stays where it is."""
        self._hang_up()
        self._retry_at = float("inf")

    def publish(self, name: str, shard: int, version: int, values: Floats, lag: float) -> None:
        """Publish a slice here. Versions there go back when a learner that died resumes from a checkpoint; here they
        cannot, so the versions of this host are ahead from then on."""
        board = self._parameters.board(name, shard)
        assert board is not None
        here = version + self._ahead[shard]
        if here < board.version:
            self._ahead[shard] += board.version + 1 - here
            here = board.version + 1
        if here > board.version:
            ends = np.cumsum(list(board.sizes.values())).tolist()
            board.publish(
                {g: values[end - n : end] for (g, n), end in zip(board.sizes.items(), ends, strict=True)}, here
            )
        self._parameters.memory(shard).gradient_lag = lag

    def size(self, number: int, shard: int) -> int:
        """Values of a slice on a board, by its number; 0: there is no such board."""
        if number >= len(BOARDS) or shard >= len(self._ahead):
            return 0
        board = self._parameters.board(BOARDS[number], shard)
        return 0 if board is None else sum(board.sizes.values())

    def wake(self) -> None:
        """Let ``step`` look again."""
        self._first.segment.ring(self._first.bells[0])

    def _pass_on(self, connection: _Connection) -> bool:
        error = connection.error
        if error is None:
            try:
                moved = [self._send(connection, key) for key in self.rings]
                self._settle(connection)
                return any(moved)
            except OSError:
                pass
        self._hang_up()
        if isinstance(error, frames.TamperedError):
            raise LinkError(str(error)) from None
        return False

    def _send(self, connection: _Connection, key: tuple[int, int]) -> bool:
        """Send the next gradient of a ring, if it may travel."""
        ring = self.rings[key]
        if ring.empty or connection.sent[key] - connection.counts[key][0] >= UNDER_WAY:
            return False
        base, groups, values = ring.read()
        slot, shard = key
        connection.sent[key] += 1
        for begin, body in pieces(values):
            head = GRADIENT_HEAD.pack(slot, shard, base - self._ahead[shard], groups, begin)
            connection.peer.send(frames.GRADIENT, head=head, body=body)
        return True

    def _settle(self, connection: _Connection) -> None:
        """Tell workers whose gradients are all settled."""
        for key, (_, settled) in connection.counts.items():
            if settled == connection.sent[key]:
                self.rings[key].settle()
        taken = sum(max(0, count[0]) for count in connection.counts.values())
        self.passed += taken - connection.taken
        connection.taken = taken

    def _connect(self) -> None:
        gateway = self._gateway
        (first, lease), *also = gateway.leases
        self._generation += 1
        try:
            peer = enter(
                gateway.address,
                gateway.token,
                gateway.connect_seconds,
                run=gateway.run,
                member=gateway.member,
                worker=first,
                generation=(lease << LEASE_BITS) + self._generation,
                schema=self._schema,
                also=also,
                tls=gateway.tls,
            )
        except UnreachableError:
            self._retry_at = time.monotonic() + self._backoff.next()
            return
        self._backoff.reset()
        self._connection = _Connection(peer, self)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._give_up()
        self._retry_at = time.monotonic()

    def _give_up(self) -> None:
        """Count what is under way as lost: nobody knows whether it arrived, and nothing may be applied twice."""
        for ring in self.rings.values():
            self.lost += ring.unsettled - ring.waiting
            ring.settle()


class _Connection:
    """One connection, with a thread for what comes: slices, and how many gradients are taken and settled."""

    def __init__(self, peer: frames.Connection, relay: ParameterRelay) -> None:
        self.peer = peer
        self.error: Exception | None = None
        """What ended it."""
        self.sent = dict.fromkeys(relay.rings, 0)
        self.counts = dict.fromkeys(relay.rings, (-UNDER_WAY, -1))  # of messages taken and settled; until told, too few
        self.taken = 0  # that were counted
        self._relay = relay
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect, and wait until nothing is published any more."""
        self._over.set()
        self.peer.shutdown()
        self._thread.join()
        self.peer.close()

    def _run(self) -> None:
        try:
            self._receive()
        except (OSError, FrameError) as error:
            self.error = error
        self._relay.wake()

    def _receive(self) -> None:
        assembly, heard, pinged = Assembly(), time.monotonic(), False
        while not self._over.is_set():
            if not self.peer.readable(_SLICE_SECONDS):
                quiet = time.monotonic() - heard
                if quiet > _DEAD_SECONDS:
                    raise ConnectionResetError("the gateway has fallen silent")
                if quiet > _QUIET_SECONDS and not pinged:
                    self.peer.send(frames.PING)
                    pinged = True
                continue
            kind, _, head, body = self.peer.receive(4 * MOST_VALUES)
            heard, pinged = time.monotonic(), False
            if kind == frames.SLICE and len(head) == SLICE_HEAD.size:
                self._take_slice(assembly, head, body)
            elif kind == frames.SETTLED and not len(body) % 32:
                self._take_counts(np.frombuffer(body, np.int64).reshape(-1, 4))
            elif kind != frames.PONG or head or body:
                raise FrameError("the gateway sent what is neither a slice nor counts")

    def _take_slice(self, assembly: Assembly, head: bytes, body: memoryview) -> None:
        shard, board, version, lag, begin = SLICE_HEAD.unpack(head)
        size = self._relay.size(board, shard)
        if not size or version < 1:
            raise FrameError(f"version {version} of board {board} of slice {shard}: there is no such publication")
        values = assembly.add((shard, board, version), size, begin, body)
        if values is not None:
            self._relay.publish(BOARDS[board], shard, version, values, lag)

    def _take_counts(self, rows: NDArray[np.int64]) -> None:
        for slot, shard, taken, settled in rows.tolist():
            sent = self.sent.get((slot, shard))
            if sent is None or not settled <= taken <= sent:
                raise FrameError(f"counts of slot {slot} and server {shard} that cannot be: {taken}, {settled}")
            self.counts[slot, shard] = taken, settled
        self._relay.wake()
