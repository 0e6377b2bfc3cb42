"""The client of an inference gateway, on a worker's host.

A broken connection is replaced under a higher generation. For the server that is a new start of the worker, so a lost
answer does not corrupt a stream.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from apexrl.errors import FrameError, LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.tcp import frames
from apexrl.links.tcp.handshake import UnreachableError, enter
from apexrl.links.tcp.slot_leases import GENERATION_BITS, LEASE_BITS, Lease
from apexrl.links.tcp.tls import ClientTls
from apexrl.spec import Array, Field

_QUIET_SECONDS = 5.0  # of silence while waiting for an answer, before a ping
_DEAD_SECONDS = 15.0  # … and before the gateway counts as dead


class RemoteInference:
    """Replaces an ``InferenceLink`` whose server is on another host, for workers. Picklable to local processes.

    Args:
        address: (host, port) of its gateway.
        token: of the run; never sent.
        request, reply, splits: as of the link.
        run: id of the run; empty: any.
        member: id of this host, and the slots that are leased to it.
        connect_seconds: timeout of connecting.
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
        """The client of worker ``index`` in its ``generation``.

        Raises:
            LinkError: this worker is refused; the message says why.
        """
        return RemoteRequestClient(self, index, generation)


class RemoteRequestClient:
    """Sends the requests of one worker's groups over TCP, like ``links.local.inference.RequestClient``. For one thread.

    While the gateway cannot be reached there are no answers. After it reconnected, waiting requests are sent again.
    """

    def __init__(self, link: RemoteInference, worker: int, generation: int) -> None:
        self._link, self._worker = link, worker
        self._generation = (link.leases.get(worker, 0) << LEASE_BITS) + (generation << GENERATION_BITS)
        self._columns = [frames.empty(link.request, size) for size in link.splits]
        self._replies: list[dict[str, Array] | None] = [None] * len(link.splits)
        self._waiting = [False] * len(link.splits)
        self._reply_bytes = frames.nbytes(link.reply)
        self._schema = frames.schema_of(link.request, link.reply, link.splits)
        self._peer: frames.Connection | None = None
        self._heard = 0.0  # monotonic time of the gateway's last frame, or of the first request after it
        self._pinged = False
        self._backoff = Backoff(least=0.1)
        self._retry_at = 0.0
        self._connect()

    def room(self, split: int) -> dict[str, Array] | None:
        """Columns [E, ...] to write the next request of a group into. None: it waits for an answer."""
        return None if self._waiting[split] else self._columns[split]

    def ask(self, split: int, now: float) -> None:
        """Send the request whose columns are written. ``now`` is by this host's clock and is not sent."""
        if not any(self._waiting):
            self._hear()
        self._waiting[split] = True
        self._replies[split] = None
        self._send(split)

    def answered(self) -> list[int]:
        """The groups whose answer has arrived and was not taken.

        Raises:
            LinkError: after a broken connection this worker was refused, or a frame was tampered with.
        """
        if self._peer is None and time.monotonic() >= self._retry_at:
            self._connect()
        try:
            while self._peer is not None and self._peer.readable(0.0):
                self._take_frame(self._peer)
            self._check_alive()
        except frames.TamperedError as error:
            self._hang_up()
            raise LinkError(str(error)) from None
        except (OSError, FrameError):
            self._hang_up()
        return [split for split, reply in enumerate(self._replies) if reply is not None and self._waiting[split]]

    def take(self, split: int) -> dict[str, Array]:
        """The answer that has arrived, [E, ...]."""
        reply = self._replies[split]
        assert reply is not None
        self._waiting[split] = False
        return reply

    def wait(self, timeout: float) -> None:
        """Sleep until a frame arrives, at most ``timeout`` seconds; may wake early."""
        if self._peer is None:
            time.sleep(min(timeout, max(0.0, self._retry_at - time.monotonic())))
        else:
            self._peer.readable(timeout)

    def leave(self) -> None:
        """Disconnect. The gateway then tells the server to expect no more requests."""
        self._hang_up()
        self._retry_at = float("inf")

    def _send(self, split: int) -> None:
        if self._peer is not None:
            try:
                self._peer.send(frames.REQUEST, split, columns=self._columns[split])
            except OSError:
                self._hang_up()

    def _take_frame(self, peer: frames.Connection) -> None:
        sizes = self._link.splits
        kind, split, head, body = peer.receive(max(sizes) * self._reply_bytes)
        self._hear()
        if kind == frames.PONG and not (head or body):
            return
        if kind != frames.REPLY or head or split >= len(sizes) or len(body) != sizes[split] * self._reply_bytes:
            raise FrameError("the gateway sent what is no answer")
        columns = frames.empty(self._link.reply, sizes[split])
        frames.fill(columns, body)
        self._replies[split] = columns

    def _hear(self) -> None:
        self._heard, self._pinged = time.monotonic(), False

    def _check_alive(self) -> None:
        """Ping a silent gateway: it answers at once even if the inference server is slow."""
        if self._peer is None or not any(self._waiting):
            return
        quiet = time.monotonic() - self._heard
        if quiet > _DEAD_SECONDS:
            raise ConnectionResetError("the gateway has fallen silent")
        if quiet > _QUIET_SECONDS and not self._pinged:
            self._peer.send(frames.PING)
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
