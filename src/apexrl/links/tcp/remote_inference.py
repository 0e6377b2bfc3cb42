"""The end of inference over TCP on a worker's host.

A connection that broke is made anew under a higher generation: to the server that is a new life of the worker, so an
answer that was lost on its way harms no stream.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from apexrl.errors import FrameError, LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.tcp import frames as wire
from apexrl.links.tcp.handshake import UnreachableError, enter
from apexrl.links.tcp.slot_leases import LEASE_BITS, LIFE_BITS, Lease
from apexrl.links.tcp.tls import ClientTls
from apexrl.spec import Array, Field

_QUIET_SECONDS = 5.0  # without a word while an answer is awaited, before the gateway is asked for a sign of life
_DEAD_SECONDS = 15.0  # … and before it counts as gone


class RemoteInference:
    """Stands for a link whose server is on another host, as far as a worker needs it. Picklable to local processes.

    Args:
        address: (host, port) of its gateway.
        token: of the run; never sent.
        request, reply, splits: as of the link.
        run: id of the run; empty: whichever is there.
        member: id of this host's life, and the slots that are leased to it.
        connect_seconds: that making a connection may take.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        request: Mapping[str, Field],
        reply: Mapping[str, Field],
        splits: Sequence[int],
        run: str = "",
        member: str = "",
        leases: Sequence[Lease] = (),
        tls: ClientTls | None = None,
        connect_seconds: float = 3.0,
    ) -> None:
        self.address, self.token, self.tls = address, token, tls
        self.request, self.reply, self.splits = dict(request), dict(reply), tuple(splits)
        self.run, self.member, self.leases = run, member, dict(leases)
        self.connect_seconds = connect_seconds

    def worker(self, index: int, generation: int) -> RemoteRequestClient:
        """The end of worker ``index`` in its ``generation``-th life.

        Raises:
            LinkError: this worker is refused; the message says why.
        """
        return RemoteRequestClient(self, index, generation)


class RemoteRequestClient:
    """Asks for the groups of one worker, as ``links.local.inference.RequestClient`` does, over TCP. For one thread.

    While nobody can be reached nothing is answered, and it is tried again; then what waits is asked once more.
    """

    def __init__(self, link: RemoteInference, worker: int, generation: int) -> None:
        self._link, self._worker = link, worker
        self._generation = (link.leases.get(worker, 0) << LEASE_BITS) + (generation << LIFE_BITS)
        self._columns = [wire.empty(link.request, size) for size in link.splits]
        self._replies: list[dict[str, Array] | None] = [None] * len(link.splits)
        self._waiting = [False] * len(link.splits)
        self._reply_bytes = wire.nbytes(link.reply)
        self._schema = wire.schema_of(link.request, link.reply, link.splits)
        self._peer: wire.Peer | None = None
        self._heard = 0.0  # monotonic seconds of the gateway's last word, or of the first request after it
        self._pinged = False
        self._backoff = Backoff(least=0.1)
        self._retry_at = 0.0
        self._connect()

    def room(self, split: int) -> dict[str, Array] | None:
        """Columns [E, ...] for the next request of a group; None while it waits for an answer."""
        return None if self._waiting[split] else self._columns[split]

    def ask(self, split: int, now: float) -> None:
        """Ask what to do; the columns are written. ``now`` is of this host's clock, and stays here."""
        if not any(self._waiting):
            self._hear()
        self._waiting[split] = True
        self._replies[split] = None
        self._send(split)

    def answered(self) -> list[int]:
        """The groups whose answer has come and was not taken yet.

        Raises:
            LinkError: the connection broke, and at another attempt this worker was refused; or it is tampered with.
        """
        if self._peer is None and time.monotonic() >= self._retry_at:
            self._connect()
        try:
            while self._peer is not None and self._peer.readable(0.0):
                self._take_frame(self._peer)
            self._look_whether_alive()
        except wire.TamperedError as error:
            self._hang_up()
            raise LinkError(str(error)) from None
        except (OSError, FrameError):
            self._hang_up()
        return [split for split, reply in enumerate(self._replies) if reply is not None and self._waiting[split]]

    def take(self, split: int) -> dict[str, Array]:
        """The answer that has come, [E, ...]."""
        reply = self._replies[split]
        assert reply is not None
        self._waiting[split] = False
        return reply

    def wait(self, timeout: float) -> None:
        """Sleep until something has come, at most ``timeout`` seconds; may wake early."""
        if self._peer is None:
            time.sleep(min(timeout, max(0.0, self._retry_at - time.monotonic())))
        else:
            self._peer.readable(timeout)

    def leave(self) -> None:
        """Hang up. The gateway then tells the server to expect nothing more."""
        self._hang_up()
        self._retry_at = float("inf")

    def _send(self, split: int) -> None:
        if self._peer is not None:
            try:
                self._peer.send(wire.REQUEST, split, columns=self._columns[split])
            except OSError:
                self._hang_up()

    def _take_frame(self, peer: wire.Peer) -> None:
        sizes = self._link.splits
        kind, split, head, body = peer.receive(max(sizes) * self._reply_bytes)
        self._hear()
        if kind == wire.PONG and not (head or body):
            return
        if kind != wire.REPLY or head or split >= len(sizes) or len(body) != sizes[split] * self._reply_bytes:
            raise FrameError("the gateway sent what is no answer")
        columns = wire.empty(self._link.reply, sizes[split])
        wire.fill(columns, body)
        self._replies[split] = columns

    def _hear(self) -> None:
        self._heard, self._pinged = time.monotonic(), False

    def _look_whether_alive(self) -> None:
        """An answer may take as long as the learner is slow; the gateway's own is there at once, or nobody is."""
        if self._peer is None or not any(self._waiting):
            return
        quiet = time.monotonic() - self._heard
        if quiet > _DEAD_SECONDS:
            raise ConnectionResetError("the gateway has fallen silent")
        if quiet > _QUIET_SECONDS and not self._pinged:
            self._peer.send(wire.PING)
            self._pinged = True

    def _connect(self) -> None:
        link = self._link
        self._generation += 1
        try:
            self._peer = enter(
                link.address,
                link.token,
                link.connect_seconds,
                run=link.run,
                member=link.member,
                worker=self._worker,
                generation=self._generation,
                schema=self._schema,
                tls=link.tls,
            )
        except UnreachableError:
            self._retry_at = time.monotonic() + self._backoff.next()
            return
        self._backoff.reset()
        self._hear()
        for split, waiting in enumerate(self._waiting):
            if waiting and self._replies[split] is None:
                self._send(split)

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        self._retry_at = time.monotonic()
