"""Sums by ``torch.distributed``, over gloo or NCCL, in a process group that nobody else knows.

The sockets of ``Connections`` stay beside it. They carry the state with which an epoch begins, tell who has left, and
end every sum: who gave it up does not answer there, so that nobody takes a sum that others do without.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch._C._distributed_c10d import Store  # in torch.distributed it has no type

from apexrl.errors import LinkError, SpecError
from apexrl.links.averaging.connections import Connections
from apexrl.links.averaging.shared_record import SharedRecord

_POLL_SECONDS = 0.005
_LOOK_SECONDS = 50e-6  # between two looks whether the device is done
_NCCL_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # by default PyTorch ends the process when a member is lost
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}


def transports(setting: str, device: torch.device) -> tuple[str, ...]:
    """By which a learner with parameters on ``device`` can sum, the best first.

    Args:
        setting: ``config.wiring.averaging_transport``.

    Raises:
        SpecError: NCCL is asked for, and not possible here.
    """
    built = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    able = built and device.type == "cuda"
    if setting == "nccl" and not able:
        raise SpecError(
            f"--averaging-transport nccl needs learners on CUDA devices and a PyTorch with NCCL; this learner is on "
            f"{device}, with a PyTorch {'with' if built else 'without'} NCCL: set --averaging-transport auto"
        )
    return ("sockets",) if setting == "auto" else (setting,)


def device_name(device: torch.device) -> str:
    """Of a CUDA device, like that of no other on any host; empty: it is none."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


class ProcessGroup:
    """The members of an epoch, connected by ``torch.distributed``.

    Args:
        transport: ``gloo`` or ``nccl``.
        sockets: between the same members; ``close`` and ``abort`` close them.
        record: where addresses are exchanged.
        prefix: of their keys, which no other epoch has.
        address: of this host, at which the others reach it (gloo).
        timeout: seconds that a member may leave the others waiting.
        device: of the vectors that are summed.

    Raises:
        LinkError: one of them did not come.
    """

    def __init__(
        self,
        transport: str,
        sockets: Connections,
        record: SharedRecord,
        prefix: str,
        address: str,
        timeout: float,
        device: torch.device,
    ) -> None:
        self._sockets, self._timeout, self._device = sockets, timeout, device
        self._store = _RecordStore(record, prefix, timeout)
        self._done = torch.ones(1)
        self._group: Any = None
        try:
            self._group = self._gloo(address) if transport == "gloo" else self._nccl()
            self._check()
        except (RuntimeError, LinkError) as error:
            self.abort()
            raise LinkError(f"learners could not connect by {transport}: {_first_line(error)}") from error

    def _gloo(self, address: str) -> Any:
        gloo: Any = torch.distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._threads = 1
        options._timeout = timedelta(seconds=self._timeout)
        return gloo(self._store, self._sockets.rank, self._sockets.size, options)

    def _nccl(self) -> Any:
        nccl: Any = torch.distributed.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(days=1)  # this class has a timeout of its own
        options.config.blocking = 0  # a member that does not come is not waited for without end
        os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(max(1, round(self._timeout))))  # read once
        with _environment(_NCCL_SETTINGS):
            group = nccl(self._store, self._sockets.rank, self._sockets.size, options)
        group.eager_connect_single_device(self._device)
        return group

    def _check(self) -> None:
        """Let nobody in who does not know the secret: random numbers have the same sum as over the sockets."""
        words = torch.tensor(list(secrets.token_bytes(32)), dtype=torch.float32)
        found = self._reduced(words.to(self._device, copy=True)).cpu()
        if not torch.equal(found, self._sockets.sum(words)):
            raise LinkError("somebody who does not know the run's secret has connected to a learner")

    def broadcast(self, vector: Tensor, root: int) -> None:
        """See ``Connections.broadcast``."""
        self._sockets.broadcast(vector, root)

    def begin_sum(self, vector: Tensor, start: int) -> None:
        """Nothing: ``sum`` sends it all."""

    def called(self, timeout: float) -> bool:
        """True: the others' sums cannot be seen before this member's."""
        return True

    def sum(self, vector: Tensor) -> Tensor:
        """The sum of all members' vectors, float32 on one device and of one size: a new one, the same for all.

        Raises:
            LinkError: a member is lost, or did not come in time.
        """
        try:
            total = self._reduced(vector.clone())
        except RuntimeError as error:
            raise LinkError(f"a learner is lost: {_first_line(error)}") from error
        self._sockets.sum(self._done)
        return total

    def close(self) -> None:
        """Leave: whoever waits for this member stops waiting at once."""
        self._sockets.close()
        self._end()

    def abort(self) -> None:
        """See ``Connections.abort``."""
        self._sockets.abort()
        self._end()

    def _end(self) -> None:
        if self._group is not None:
            self._group.abort()
            self._group = None

    def _reduced(self, total: Tensor) -> Tensor:
        """``total``, summed in place."""
        self._group.allreduce([total]).wait()  # NCCL: the device's stream waits, and this thread goes on
        if total.device.type == "cuda":
            done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(torch.cuda.current_stream(total.device))
            deadline = time.monotonic() + self._timeout
            while not done.query():
                if self._sockets.broken():
                    raise LinkError("a learner is lost: it has closed its connection")
                if time.monotonic() > deadline:
                    raise LinkError(f"a learner is lost: a sum by NCCL took more than {self._timeout:g} s")
                time.sleep(_LOOK_SECONDS)
        return total


class _RecordStore(Store):
    """The part of a store of ``torch.distributed`` that process groups ask for, on a shared record."""

    def __init__(self, record: SharedRecord, prefix: str, timeout: float) -> None:
        super().__init__()
        self._record, self._prefix, self._timeout = record, prefix, timeout

    def set(self, key: str, value: bytes | str) -> None:
        self._record.put(f"{self._prefix}/{key}", value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._found([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._found(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._found(keys)

    def check(self, keys: list[str]) -> bool:
        entries = self._record.all()
        return all(f"{self._prefix}/{key}" in entries for key in keys)

    def _found(self, keys: list[str]) -> list[bytes]:
        deadline = time.monotonic() + self._timeout
        while True:
            entries = self._record.all()
            found = [entries.get(f"{self._prefix}/{key}") for key in keys]
            if None not in found:
                return [value for value in found if value is not None]
            if time.monotonic() > deadline:
                raise RuntimeError("a learner did not say its address in time")
            time.sleep(_POLL_SECONDS)


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Environment variables, as long as it takes to make a group, which reads them then."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
