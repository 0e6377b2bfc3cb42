"""The connections of one epoch: a socket between every two members, through which sums are made.

The learner's own thread sends and receives, so nobody is woken but who waits for the last gradient. All sum in the
order of ranks: sums are the same to the last bit for all.
"""

from __future__ import annotations

import hmac
import select
import socket
import struct
import time
from collections import deque
from contextlib import suppress

import torch
from torch import Tensor

from apexrl.errors import LinkError
from apexrl.links.averaging.shared_record import SharedRecord
from apexrl.links.averaging.sum_plans import WHOLE, DensePlan, Form, Peer, SparsePlan, as_bytes

_POLL_SECONDS = 0.005
_CONNECT_SECONDS = 5.0
_HELLO = struct.Struct(">I32s")  # rank of who connects; its proof
_RESET = struct.pack("ii", 1, 0)  # as SO_LINGER: a close breaks the connection
_HANG_UP = getattr(select, "POLLRDHUP", 0)  # and POLLHUP, POLLERR, which poll always tells
_STRANGERS = 64  # connections that have not said who they are; one more, and the oldest is closed


class Connections:
    """The members of an epoch, connected.

    Args:
        record: where addresses are exchanged.
        prefix: of their keys, which no other epoch has.
        rank: among ``size`` members.
        address: of this host, at which the others reach it.
        secret: of the record; who does not know it is not let in.
        timeout: seconds that a member may leave the others waiting.
        form: in which vectors that are summed travel.

    Raises:
        LinkError: one of them did not come.
    """

    def __init__(
        self,
        record: SharedRecord,
        prefix: str,
        rank: int,
        size: int,
        address: str,
        secret: bytes,
        timeout: float,
        form: Form = WHOLE,
    ) -> None:
        self.rank, self.size, self._timeout, self._form = rank, size, timeout, form
        self._plan: DensePlan | SparsePlan | None = None
        self._host: Tensor | None = None  # a copy of what is summed, if that lies on a device
        self._peers: dict[int, Peer] = {}
        try:
            connect = _Connecting(record, prefix, rank, size, secret)
            self._peers = {other: Peer(one, other) for other, one in sorted(connect.all(address).items())}
        except (OSError, ValueError) as error:
            raise LinkError(f"learners could not connect: {error}") from error

    def broadcast(self, vector: Tensor, root: int) -> None:
        """Fill ``vector``, float32 on the CPU, with that of member ``root``.

        Raises:
            LinkError: a member is lost.
        """
        for other, peer in self._peers.items():
            if self.rank == root:
                peer.out.append(as_bytes(vector))
            elif other == root:
                peer.into.append(as_bytes(vector))
        self._exchange()

    def begin_sum(self, vector: Tensor, start: int) -> None:
        """Send of ``vector`` what is final: from value ``start`` on. Ends at once; ``sum`` gives the rest.

        Raises:
            LinkError: a member is lost.
        """
        plan = self._plan
        if plan is None or (plan.vector.data_ptr(), len(plan.vector)) != (vector.data_ptr(), len(vector)):
            kind = SparsePlan if self._form.kind == "top-k" else DensePlan
            plan = self._plan = kind(vector, self.rank, list(self._peers.values()), self._form)
        plan.begin(start)
        for peer in self._peers.values():
            peer.move()

    def sum(self, vector: Tensor) -> Tensor:
        """The sum of all members' vectors, float32 and of one size, on the CPU: the same for all. It holds until the
        next sum.

        Raises:
            LinkError: a member is lost, or did not come in time.
        """
        if self.size == 1:
            return vector.clone()
        if vector.device.type != "cpu":
            if self._host is None or self._host.shape != vector.shape:
                self._host = torch.empty_like(vector, device="cpu")
            vector = self._host.copy_(vector)
        self.begin_sum(vector, 0)
        assert self._plan is not None
        self._exchange()
        if self._plan.add():
            self._exchange()
        return self._plan.total

    def called(self, timeout: float) -> bool:
        """Whether another member has begun the next sum, or has left, after up to ``timeout`` seconds."""
        return self._heard(select.POLLIN, timeout)

    def broken(self) -> bool:
        """Whether another member has closed its connection."""
        return self._heard(_HANG_UP, 0.0)

    def _heard(self, what: int, timeout: float) -> bool:
        poll = select.poll()
        for peer in self._peers.values():
            poll.register(peer.socket, what)
        return bool(poll.poll(1e3 * timeout))

    def close(self) -> None:
        """Leave: whoever waits for this member stops waiting at once."""
        for peer in self._peers.values():
            peer.socket.close()
        self._peers = {}

    def abort(self) -> None:
        """Leave in the middle of a sum: who has not sent its part yet is told when it does, although it could read
        this member's."""
        for peer in self._peers.values():
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def _exchange(self) -> None:
        """Send and receive all that is to be."""
        while True:
            for peer in self._peers.values():
                peer.move()
            poll = select.poll()
            busy = [peer for peer in self._peers.values() if peer.out or peer.into]
            for peer in busy:
                poll.register(peer.socket, select.POLLOUT * bool(peer.out) | select.POLLIN * bool(peer.into))
            if not busy:
                return
            if not poll.poll(1e3 * self._timeout):
                silent = ", ".join(str(peer.rank) for peer in busy)
                raise LinkError(f"a learner is lost: nothing moved for {self._timeout:g} s to or from rank {silent}")


class _Connecting:
    """How a member finds the others: it connects to those of lower rank, and the others connect to it."""

    def __init__(self, record: SharedRecord, prefix: str, rank: int, size: int, secret: bytes) -> None:
        self._record, self._prefix, self._rank, self._size, self._secret = record, prefix, rank, size, secret
        self._deadline = time.monotonic() + _CONNECT_SECONDS
        self._found: dict[int, socket.socket] = {}  # by rank

    def all(self, address: str) -> dict[int, socket.socket]:
        """Rank of every other member -> the connection to it, blocking.

        Raises:
            OSError, ValueError: one of them did not come, or is not what it should be.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        strangers: deque[socket.socket] = deque()
        try:
            with socket.create_server((address, 0), family=family, backlog=_STRANGERS) as listener:
                self._record.put(self._key(self._rank), f"{address} {listener.getsockname()[1]}".encode())
                for other in range(self._rank):
                    self._connect(other)
                self._accept(listener, strangers)
            for other in range(self._rank):
                self._check_answer(other)
        except BaseException:
            for one in self._found.values():
                one.close()
            raise
        finally:
            for one in strangers:
                one.close()
        return self._found

    def _connect(self, other: int) -> None:
        while (text := self._record.all().get(self._key(other))) is None:
            time.sleep(min(_POLL_SECONDS, self._left()))
        host, _, port = text.decode().rpartition(" ")
        one = socket.create_connection((host, int(port)), timeout=self._left())
        self._found[other] = one
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.sendall(_HELLO.pack(self._rank, self._proof(self._rank, other)))

    def _accept(self, listener: socket.socket, strangers: deque[socket.socket]) -> None:
        listener.setblocking(False)
        while len(self._found) < self._size - 1:
            select.select([listener, *strangers], [], [], self._left())
            with suppress(BlockingIOError):
                strangers.append(listener.accept()[0])
                strangers[-1].setblocking(False)
            for one in list(strangers):
                with suppress(BlockingIOError):
                    self._hear(one)
                    strangers.remove(one)
            if len(strangers) > _STRANGERS:
                strangers.popleft().close()

    def _hear(self, one: socket.socket) -> None:
        """Let in who has said whom it is and has proved it; close the connection of everybody else."""
        try:
            text = one.recv(_HELLO.size)
        except ConnectionError:
            text = b""
        if len(text) == _HELLO.size:
            other, proof = _HELLO.unpack(text)
            fits = self._rank < other < self._size and other not in self._found
            if fits and hmac.compare_digest(proof, self._proof(other, self._rank)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                one.sendall(self._proof(self._rank, other))
                self._found[other] = one
                return
        one.close()

    def _check_answer(self, other: int) -> None:
        one, answer = self._found[other], b""
        while len(answer) < len(self._proof(0, 0)):
            one.settimeout(self._left())
            part = one.recv(len(self._proof(0, 0)) - len(answer))
            if not part:
                raise ConnectionError("a learner does not know the run's secret, or has left")
            answer += part
        if not hmac.compare_digest(answer, self._proof(other, self._rank)):
            raise ConnectionError("somebody who does not know the run's secret answers for a learner")

    def _proof(self, sender: int, receiver: int) -> bytes:
        text = f"{self._prefix}/{sender}/{receiver}/{self._size}".encode()
        return hmac.digest(self._secret, text, "sha256")

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("one of them did not come in time")
        return left
