"""A host's own connection to an inference gateway: the run's record, slots for its workers, and what goes on."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

from apexrl.errors import ExhaustedError, FrameError
from apexrl.links.redis.values import printable
from apexrl.links.tcp import frames as wire
from apexrl.links.tcp import gateway_messages as messages
from apexrl.links.tcp.handshake import HOST, UnreachableError, enter
from apexrl.links.tcp.slot_leases import Lease
from apexrl.links.tcp.tls import ClientTls

_ANSWER_SECONDS: Final = 10.0
_T = TypeVar("_T", bound=messages.Message)


class HostConnection:
    """For one thread. A connection that broke is made anew with ``connect``.

    Args:
        address: (host, port) of the gateway.
        token: of the run; never sent.
        name, pid: of this host, for people.
        tls: how the gateway is known; None: it speaks no TLS.
        connect_seconds: that making the connection may take.
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
        self._peer: wire.Peer | None = None
        self._number = 0  # of the newest beat that was begun

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.address[0]}:{self.address[1]}"

    def connect(self, run: str = "") -> messages.Record:
        """Be let in, for the run with this id (empty: whichever is there); returns its record.

        Slots that this host had are its own again, as far as nobody has them: see ``leases`` afterwards.

        Raises:
            UnreachableError: nobody answers; try again.
            LinkError: this host is refused; the message says why.
            FrameError: what answers is no gateway of this version.
        """
        self.hang_up()
        peer = enter(
            self.address, self.token, self._connect_seconds, run=run, member=self.member, worker=HOST, tls=self.tls
        )
        try:
            record = messages.hear_record(peer, _ANSWER_SECONDS)
            if self.leases:
                wish = messages.Join(0, self._name, self._pid, self.leases)
                messages.say(peer, wish)
                self.leases = list(messages.hear(peer, messages.Joined, _ANSWER_SECONDS).slots)
        except (OSError, wire.TamperedError) as error:
            peer.close()
            raise UnreachableError(f"the inference gateway at {self.where} hung up: {error}") from None
        except BaseException:
            peer.close()
            raise
        self._peer = peer
        return record

    def join(self, wanted: int) -> None:
        """Lease so many slots: ``leases``.

        Raises:
            ExhaustedError: not so many are free.
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
        restarts: int = 0,
        again: bool = False,
    ) -> messages.Orders:
        """Say that this host lives, and what happened.

        Args:
            again: it is what the last call said, of which no answer came; it counts once.

        Raises:
            UnreachableError, FrameError: as ``connect``.
        """
        if (told := self._told()) is not None:
            return told
        self._number += not again
        beat = messages.Beat(self._number, list(returns), list(lengths), list(texts), restarts, len(self.leases))
        return self._ask(beat, messages.Orders)

    def _told(self) -> messages.Orders | None:
        """What the gateway has said without being asked: its last word."""
        if self._peer is None or not self._peer.readable(0.0):
            return None
        try:
            return messages.hear(self._peer, messages.Orders, _ANSWER_SECONDS)
        except (OSError, wire.TamperedError) as error:
            self.hang_up()
            raise UnreachableError(f"the inference gateway at {self.where} is away: {error}") from None

    def leave(self) -> None:
        """Give the slots back, if anybody listens."""
        if self._peer is not None:
            with suppress(OSError):
                messages.say(self._peer, messages.Leave())
        self.hang_up()
        self.leases = []

    def hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _ask(self, message: messages.Message, kind: type[_T]) -> _T:
        if self._peer is None:
            raise UnreachableError(f"there is no connection to the inference gateway at {self.where}")
        try:
            messages.say(self._peer, message)
            return messages.hear(self._peer, kind, _ANSWER_SECONDS)
        except (OSError, wire.TamperedError) as error:
            self.hang_up()
            raise UnreachableError(f"the inference gateway at {self.where} is away: {error}") from None
        except FrameError:
            self.hang_up()
            raise
