"""A host's connection to a gateway: the run's record, slots for its workers, and heartbeats."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final, TypeVar

from apexrl.errors import ExhaustedError
from apexrl.links.printable import printable
from apexrl.links.tcp import frames
from apexrl.links.tcp import gateway_messages as messages
from apexrl.links.tcp.handshake import HOST, UnreachableError, enter
from apexrl.links.tcp.slot_leases import Lease
from apexrl.links.tcp.tls import ClientTls

_ANSWER_SECONDS: Final = 10.0
_T = TypeVar("_T", bound=messages.Message)


class HostConnection:
    """For one thread. After the connection broke, call ``connect`` again.

    Args:
        address: (host, port) of the gateway.
        token: of the run; never sent.
        name, pid: of this host, for messages.
        tls: how to verify the gateway; None: no TLS.
        connect_seconds: timeout of connecting.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        name: str,
        pid: int,
        tls: ClientTls | None = None,
        connect_seconds: float = 3.0,
    ) -> None:
        self.address, self.token, self.tls = address, token, tls
        self.member = uuid.uuid4().hex
        self.leases: list[Lease] = []
        self._name, self._pid = name, pid
        self._connect_seconds = connect_seconds
        self._peer: frames.Connection | None = None
        self._number = 0  # of the newest beat

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.address[0]}:{self.address[1]}"

    def connect(self, run: str = "") -> messages.Record:
        """Connect, for the run with this id (empty: any); returns its record.

        Slots that this host had are leased again unless another host has them: see ``leases`` afterwards.

        Raises:
            UnreachableError: nothing answers; try again.
            LinkError: this host is refused; the message says why.
            FrameError: it is not a gateway of this version.
        """
        self.hang_up()
        self._peer = enter(
            self.address, self.token, self._connect_seconds, run=run, member=self.member, worker=HOST, tls=self.tls
        )
        with self._closed_on_error():
            record = messages.receive_record(self._peer, _ANSWER_SECONDS)
        if self.leases:
            self.leases = list(self._ask(messages.Join(0, self._name, self._pid, self.leases), messages.Joined).slots)
        return record

    def join(self, wanted: int) -> None:
        """Lease so many slots: ``leases``.

        Raises:
            ExhaustedError: fewer are free.
            UnreachableError, FrameError: as ``connect``.
        """
        joined = self._ask(messages.Join(wanted, self._name, self._pid), messages.Joined)
        if joined.full:
            raise ExhaustedError(printable(joined.full, messages.MOST_TEXT))
        self.leases = list(joined.slots)

    def beat(
        self,
        returns: Sequence[float] = (),
        lengths: Sequence[int] = (),
        texts: Sequence[tuple[messages.Level, str]] = (),
        counts: Mapping[Any, int] = MappingProxyType({}),
        reports: Sequence[messages.Report] = (),
        restarts: int = 0,
        metrics: Mapping[str, tuple[int, float, float, float]] = MappingProxyType({}),
        again: bool = False,
    ) -> messages.Orders:
        """Send a heartbeat with a report.

        Args:
            again: repeat the last report, whose answer was lost; it counts once.

        Raises:
            UnreachableError, FrameError: as ``connect``.
        """
        if (told := self._told()) is not None:
            return told
        self._number += not again
        said = (list(returns), list(lengths), list(texts), dict(counts), list(reports))
        beat = messages.Beat(self._number, *said, restarts, len(self.leases), dict(metrics))
        return self._ask(beat, messages.Orders)

    def _told(self) -> messages.Orders | None:
        """The last message that the gateway sent unasked."""
        if self._peer is None or not self._peer.readable(0.0):
            return None
        with self._closed_on_error():
            return messages.receive(self._peer, messages.Orders, _ANSWER_SECONDS)

    def leave(self) -> None:
        """Release the slots, if the gateway can be reached."""
        if self._peer is not None:
            with suppress(OSError):
                messages.send(self._peer, messages.Leave())
        self.hang_up()
        self.leases = []

    def hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _ask(self, message: messages.Message, kind: type[_T]) -> _T:
        if self._peer is None:
            raise UnreachableError(f"there is no connection to the gateway at {self.where}")
        with self._closed_on_error():
            messages.send(self._peer, message)
            return messages.receive(self._peer, kind, _ANSWER_SECONDS)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except (OSError, frames.TamperedError) as error:
            self.hang_up()
            raise UnreachableError(f"the gateway at {self.where} is away: {error}") from None
        except BaseException:
            self.hang_up()
            raise
