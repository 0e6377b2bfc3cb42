"""The connections of one epoch: a process group of ``torch.distributed`` over gloo, made without a global one.

Sums are made of sends and receives, each posted at once, and not by gloo's all-reduce, in the order of ranks: they are
the same to the last bit for all.
"""

from __future__ import annotations

import hmac
import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store  # in torch.distributed it has no type
from torch.distributed import ProcessGroupGloo

from apexrl.errors import LinkError
from apexrl.links.averaging.shared_record import SharedRecord

_POLL_SECONDS = 0.005
_CONNECT_SECONDS = 5.0
_SLICED_FLOATS = 1 << 16  # from here on three members and more send each the slice that it sums, and back the sums


class ProcessGroup:
    """The members of an epoch, connected.

    Args:
        record: where addresses are exchanged.
        prefix: of their keys, which no other epoch has.
        rank: among ``size`` members.
        address: of this host, at which the others reach it.
        secret: of the record; who does not know it is not let in.
        timeout: seconds that a member may leave the others waiting.

    Raises:
        LinkError: one of them did not come.
    """

    def __init__(
        self, record: SharedRecord, prefix: str, rank: int, size: int, address: str, secret: bytes, timeout: float
    ) -> None:
        self.rank, self.size = rank, size
        self._others = [other for other in range(size) if other != rank]
        self._received: list[Tensor] = []
        self._timeout = timedelta(seconds=timeout)
        gloo: Any = ProcessGroupGloo
        before = _threads()
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._threads = 1
        options._timeout = timedelta(seconds=_CONNECT_SECONDS)
        try:
            self._group: Any = gloo(_Addresses(record, prefix), rank, size, options)
        except RuntimeError as error:
            raise LinkError(f"learners could not connect: {_first_line(error)}") from error
        _give_way(_threads() - before)
        self._prove(secret, prefix)

    def _prove(self, secret: bytes, prefix: str) -> None:
        """Let nobody stay who does not know the secret: gloo asks no one who connects."""

        def proof(sender: int, receiver: int) -> Tensor:
            text = f"{prefix}/{sender}/{receiver}/{self.size}".encode()
            return torch.frombuffer(bytearray(hmac.digest(secret, text, "sha256")), dtype=torch.uint8)

        shown = [torch.zeros_like(proof(0, 0)) for _ in self._others]
        sent = [(proof(self.rank, other), other) for other in self._others]
        self._exchange(sent, list(zip(shown, self._others, strict=True)))
        for other, one in zip(self._others, shown, strict=True):
            if not hmac.compare_digest(bytes(one.tolist()), bytes(proof(other, self.rank).tolist())):
                self.close()
                raise LinkError("somebody who does not know the run's secret has connected to a learner")

    def broadcast(self, vector: Tensor, root: int) -> None:
        """Fill ``vector``, float32 on the CPU, with that of member ``root``.

        Raises:
            LinkError: a member is lost.
        """
        if self.rank == root:
            self._exchange([(vector, other) for other in self._others], [])
        else:
            self._exchange([], [(vector, root)])

    def sum(self, vector: Tensor) -> Tensor:
        """The sum of all members' vectors, float32 on the CPU and of one size: a new one, the same for all.

        Raises:
            LinkError: a member is lost, or did not come in time.
        """
        if self.size == 1:
            return vector.clone()
        if self.size == 2 or vector.numel() < _SLICED_FLOATS:
            return self._sum_whole(vector)
        slices = vector.tensor_split(self.size)
        own = slices[self.rank]
        parts = self._room(own)
        self._exchange([(slices[other], other) for other in self._others], list(zip(parts, self._others, strict=True)))
        total = torch.empty_like(vector)
        sums = total.tensor_split(self.size)
        sums[self.rank].copy_(self._in_order(own, parts))
        mine = [(sums[self.rank], other) for other in self._others]
        self._exchange(mine, [(sums[other], other) for other in self._others])
        return total

    def close(self) -> None:
        """Leave: whoever waits for this member stops waiting at once."""
        self._group = None

    def _sum_whole(self, vector: Tensor) -> Tensor:
        parts = self._room(vector)
        self._exchange([(vector, other) for other in self._others], list(zip(parts, self._others, strict=True)))
        return self._in_order(vector, parts)

    def _in_order(self, own: Tensor, parts: list[Tensor]) -> Tensor:
        whole = [*parts[: self.rank], own, *parts[self.rank :]]
        total = whole[0].clone()
        for part in whole[1:]:
            total += part
        return total

    def _room(self, like: Tensor) -> list[Tensor]:
        """Vectors for what others send, kept for the next time."""
        if not self._received or self._received[0].shape != like.shape:
            self._received = [torch.empty_like(like) for _ in self._others]
        return self._received

    def _exchange(self, sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]) -> None:
        try:
            under_way = [self._group.recv([vector], other, 0) for vector, other in receives]
            under_way += [self._group.send([vector], other, 0) for vector, other in sends]
            for one in under_way:
                one.wait(self._timeout)
        except RuntimeError as error:
            raise LinkError(f"a learner is lost: {_first_line(error)}") from error


class _Addresses(Store):
    """The part of a store of ``torch.distributed`` that gloo asks for, on a shared record."""

    def __init__(self, record: SharedRecord, prefix: str) -> None:
        super().__init__()
        self._record, self._prefix = record, prefix

    def set(self, key: str, value: bytes | str) -> None:
        self._record.put(f"{self._prefix}/{key}", value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._found([key], _CONNECT_SECONDS)[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._found(keys, _CONNECT_SECONDS)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._found(keys, _CONNECT_SECONDS if timeout is None else timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        entries = self._record.all()
        return all(f"{self._prefix}/{key}" in entries for key in keys)

    def _found(self, keys: list[str], seconds: float) -> list[bytes]:
        deadline = time.monotonic() + min(seconds, _CONNECT_SECONDS)
        while True:
            entries = self._record.all()
            found = [entries.get(f"{self._prefix}/{key}") for key in keys]
            if None not in found:
                return [value for value in found if value is not None]
            if time.monotonic() > deadline:
                raise RuntimeError("a learner did not say its address in time")
            time.sleep(_POLL_SECONDS)


def _threads() -> set[int]:
    """Of this process; empty where the system does not list them."""
    try:
        return {int(task.name) for task in Path("/proc/self/task").iterdir()}
    except OSError:
        return set()


def _give_way(threads: set[int]) -> None:
    """Let gloo's threads not interrupt the learner's when they wake: one spins while that has the connection's lock."""
    for thread in threads:
        with suppress(OSError, AttributeError):  # it has ended; or the system knows no such class
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
