"""The end of inference over TCP on a worker's host.

A connection that broke is made anew under a higher generation: to the server that is a new life of the worker, so an
answer that was lost on its way harms no stream.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Mapping, Sequence

import msgspec

from apexrl.errors import FrameError, LinkError
from apexrl.links import inference_wire as wire
from apexrl.spec import Array, Field

_RETRY_SECONDS = 0.5  # between attempts to connect
_LIVES = 2**20  # connections that one life of a worker may make


class RemoteInference:
    """Stands for a link whose server is on another host, as far as a worker needs it.

    Args:
        address: (host, port) of its gateway.
        token: of the run.
        request, reply, splits: as of the link.
        connect_seconds: that making a connection may take.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        request: Mapping[str, Field],
        reply: Mapping[str, Field],
        splits: Sequence[int],
        connect_seconds: float = 10.0,
    ) -> None:
        self.address, self.token = address, token
        self.request, self.reply, self.splits = dict(request), dict(reply), tuple(splits)
        self.connect_seconds = connect_seconds

    def worker(self, index: int, generation: int) -> RemoteEnd:
        """The end of worker ``index`` in its ``generation``-th life.

        Raises:
            LinkError: nobody listens there, or this worker is refused; the message says why.
        """
        return RemoteEnd(self, index, generation)


class RemoteEnd:
    """Asks for the groups of one worker, as ``links.inference.WorkerEnd`` does, over TCP. For one thread.

    While the connection is broken nothing is answered, and it is tried again; then what waits is asked once more.
    """

    def __init__(self, link: RemoteInference, worker: int, generation: int) -> None:
        self._link, self._worker = link, worker
        self._generation = generation * _LIVES
        self._columns = [wire.empty(link.request, size) for size in link.splits]
        self._replies: list[dict[str, Array] | None] = [None] * len(link.splits)
        self._waiting = [False] * len(link.splits)
        self._reply_bytes = wire.nbytes(link.reply)
        self._peer: socket.socket | None = None
        self._retry_at = 0.0
        self._connect()

    def room(self, split: int) -> dict[str, Array] | None:
        """Columns [E, ...] for the next request of a group; None while it waits for an answer."""
        return None if self._waiting[split] else self._columns[split]

    def ask(self, split: int, now: float) -> None:
        """Ask what to do; the columns are written. ``now`` is of this host's clock, and stays here."""
        self._waiting[split] = True
        self._replies[split] = None
        if self._peer is not None:
            try:
                wire.send(self._peer, wire.REQUEST, split, columns=self._columns[split])
            except OSError:
                self._hang_up()

    def answered(self) -> list[int]:
        """The groups whose answer has come and was not taken yet.

        Raises:
            LinkError: the connection broke, and at another attempt this worker was refused.
        """
        if self._peer is None and time.monotonic() >= self._retry_at:
            self._connect_again()
        try:
            while self._peer is not None and select.select([self._peer], [], [], 0.0)[0]:
                self._take_reply(self._peer)
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
            select.select([self._peer], [], [], timeout)

    def leave(self) -> None:
        """Hang up. The gateway then tells the server to expect nothing more."""
        self._hang_up()
        self._retry_at = float("inf")

    def _take_reply(self, peer: socket.socket) -> None:
        kind, split, head, nbytes = wire.receive_head(peer)
        sizes = self._link.splits
        if kind != wire.REPLY or head or split >= len(sizes) or nbytes != sizes[split] * self._reply_bytes:
            raise FrameError("the gateway sent what is no answer")
        columns = wire.empty(self._link.reply, sizes[split])
        wire.receive_columns(peer, columns)
        self._replies[split] = columns

    def _connect_again(self) -> None:
        try:
            self._connect()
        except ConnectionError:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            return
        for split, waiting in enumerate(self._waiting):
            if waiting and self._replies[split] is None:
                self.ask(split, 0.0)

    def _connect(self) -> None:
        link = self._link
        self._generation += 1
        schema = wire.schema_of(link.request, link.reply, link.splits)
        hello = wire.Hello(link.token, schema, self._worker, self._generation)
        where = f"{link.address[0]}:{link.address[1]}"
        try:
            peer = socket.create_connection(link.address, timeout=link.connect_seconds)
        except OSError as error:
            raise _Unreachable(f"no inference gateway answers at {where}: {error}") from None
        try:
            wire.prepare(peer)
            wire.send(peer, wire.HELLO, head=msgspec.msgpack.encode(hello))
            kind, _, head, nbytes = wire.receive_head(peer, wire.HELLO_SECONDS)
            if kind == wire.REFUSED:
                why = msgspec.msgpack.decode(head, type=str)
                raise LinkError(f"the inference gateway at {where} refused worker {self._worker}: {why}")
            if kind != wire.WELCOME or nbytes:
                raise FrameError(f"what answers at {where} is no inference gateway")
        except OSError as error:
            peer.close()
            raise _Unreachable(f"the inference gateway at {where} hung up: {error}") from None
        except BaseException:
            peer.close()
            raise
        self._peer = peer

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        self._retry_at = time.monotonic()


class _Unreachable(LinkError, ConnectionError):
    """Nobody is there: another attempt may succeed."""
