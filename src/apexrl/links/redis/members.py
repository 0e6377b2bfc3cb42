"""Members of a run: actor hosts and clients. They lease actor slots, and lose them if they stop renewing."""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from apexrl.errors import ClosedError, ExhaustedError, HeldError, LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.printable import host_name, printable
from apexrl.links.redis.checked_values import (
    MOST_MESSAGE_BYTES,
    MOST_STATUS_BYTES,
    MOST_TROUBLE,
    Heartbeat,
    HostDigest,
    decode,
    encode,
)
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.host_orders import number_of_actors
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.outbox import Outbox
from apexrl.links.redis.run_record import Orders, RunRecord
from apexrl.links.redis.scripts import JOIN, LEAVE, POP, RENEW_MEMBER
from apexrl.links.redis.server import Server
from apexrl.run.env_changes import MOST_BYTES

__all__ = ["HostDigest", "HostLease", "Message", "MessageReader", "SlotLease", "renewal_pause"]

MOST_MESSAGES: Final = 1000
"""Messages of all members together that may wait at the server for the learner's host."""

RENEWAL_SECONDS: Final = 1.0
RENEWALS_PER_SECOND: Final = 400
"""Of all members together, as far as their leases allow: a tenth of a server's core."""

_LAST_RENEWALS: Final = 16  # at the end, to deliver the remaining messages
_READ_AT_ONCE: Final = 256
_MOST_READ: Final = 4 * MOST_MESSAGES
_POLL_SECONDS: Final = 0.05

Kind = Literal["host", "client"]


@dataclass(frozen=True, order=True)
class SlotLease:
    """An actor slot: its index determines the actor's ε.

    Attributes:
        index: 0 … actor_slots-1.
        generation: of the slot; grows with every lease.
    """

    index: int
    generation: int


def renewal_pause(orders: Orders, lease_seconds: float) -> float:
    """Seconds until a member's next renewal: longer when there are many members, with jitter."""
    seconds = max(RENEWAL_SECONDS, orders.members / RENEWALS_PER_SECOND)
    return min(seconds, lease_seconds / 4) * random.uniform(0.9, 1.0)


class HostLease:
    """This host's membership of a run. ``outbox`` is for any thread, the rest for one.

    Attributes:
        member: a unique name.
        generation: grows with every member that joins the run.
        slots: the current leases, lowest index first.
        outbox: messages, delivered with each renewal; after a failure of the connection perhaps twice.
    """

    def __init__(
        self, connection: Connection, record: RunRecord, kind: Kind, member: str, ttl: float, reply: list[Any]
    ) -> None:
        self.record = record
        self.keys = RunKeys(record.name)
        self.kind = kind
        self.member = member
        self.generation = int(reply[1])
        self.slots = _leases(reply[3:])
        self.outbox = Outbox()
        self.works_in: Sequence[int] = ()
        """Slots that something else has leased to this member, to be shown."""
        self._wanted = len(self.slots)
        self._connection = connection
        self._ttl = max(1, round(1000 * ttl))
        self._taken = int(reply[2])
        self._digest = HostDigest()

    @classmethod
    def join(
        cls, server: Server, record: RunRecord, actors: int = 1, kind: Kind = "host", ttl: float = 10.0
    ) -> HostLease:
        """Lease ``actors`` slots, the lowest free ones; all or none.

        Args:
            ttl: seconds without ``renew`` after which other members may lease the slots.

        Raises:
            ExhaustedError: fewer slots are free.
            ClosedError: the run has ended, or another run has taken its name.
            HeldError: this host was drained from it.
            LinkError: the server cannot be reached or refuses.
        """
        connection, keys, name = Connection(server), RunKeys(record.name), record.name
        member = f"{re.sub(r'[^A-Za-z0-9.-]', '-', host_name())[:48]}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            reply = connection.script(
                JOIN,
                [keys.slots, keys.generations, keys.members],
                *(record.run_id, member, max(1, round(1000 * ttl)), record.actor_slots, actors, _host(kind)),
            )
            match reply[0]:
                case b"joined":
                    lease = cls(connection, record, kind, member, ttl, reply)
                    lease.renew(HostDigest())
                    return lease
                case b"full":
                    free = int(reply[1])
                    fewer = f"start at most {free} (--actors {free}), or " if free else ""
                    raise ExhaustedError(
                        f"run {name} at {server.address} has {record.actor_slots} actor slots and {free} free, "
                        f"{actors} wanted: {fewer}give the learner more (--actor-slots)"
                    )
                case b"drained":
                    raise HeldError(
                        f"host {host_name()} was drained from run {name}: it may come back after apexrl drain "
                        f"{host_name()} --undo --redis URL --run {name}"
                    )
                case b"replaced":
                    raise ClosedError(f"another run has taken the name {name} at {server.address}; join again")
                case _:
                    raise ClosedError(f"run {name} at {server.address} has ended")
        except BaseException:
            connection.close()
            raise

    def renew(self, digest: HostDigest) -> Orders:
        """Renew the leases and deliver messages; call it as often as `renewal_pause` says. Leases that expired are
        taken again, or replaced by others if another member has them (``Orders.lost_slots``, ``slots``).

        Raises:
            LinkError: the server cannot be reached or refuses; nothing is lost, call again.
        """
        self._digest = digest
        keys, held = self.keys, [number for slot in self.slots for number in (slot.index, slot.generation)]
        lease: list[str | bytes | int] = [self.record.run_id, self.member, self._ttl, self.record.actor_slots]
        lease += [self._wanted, self.generation, self._heartbeat(digest), MOST_MESSAGES, self._taken, len(self.slots)]
        lease.append(_host(self.kind))
        words: list[str | bytes] = [word for note in self.outbox.take() for word in (note.kind, note.data)]
        reply = self._connection.script(
            RENEW_MEMBER,
            [keys.slots, keys.generations, keys.members, keys.messages],
            *lease,
            *held,
            *words,
        )
        if reply[0] == b"replaced":
            return Orders(replaced=True, learner_alive=False)
        _, stop, finished, alive, version, trouble, members, told, taken, slots, drained, actors, env_steps, change = (
            reply
        )
        self.outbox.tell(told)  # a full server took no more; the rest is offered again
        self._taken = max(self._taken, int(taken))
        before, self.slots = self.slots, _leases(slots)
        return Orders(
            stop=bool(stop),
            finished=bool(finished),
            learner_alive=bool(alive),
            weights_version=int(version),
            weights_trouble=printable(trouble, MOST_TROUBLE),
            members=int(members),
            drained=bool(drained),
            actors=number_of_actors(actors),
            env_steps=int(env_steps),
            env_change=bytes(change)[:MOST_BYTES],
            lost_slots=tuple(sorted({slot.index for slot in before} - {slot.index for slot in self.slots})),
        )

    def leave(self, digest: HostDigest | None = None) -> None:
        """Deliver the last messages and free the slots. Never raises ``LinkError``: leases also expire."""
        keys = self.keys
        with contextlib.suppress(LinkError):
            for _ in range(_LAST_RENEWALS):
                notes = self.outbox.take()
                if not notes or self.renew(digest or self._digest).replaced or self.outbox.take() == notes:
                    break  # all are delivered, or a full server takes no more
            self.outbox.give_up()
            self._connection.script(
                LEAVE,
                [keys.slots, keys.generations, keys.members],
                *(self.record.run_id, self.member, self.generation, self._heartbeat(digest or self._digest)),
                *(slot.index for slot in self.slots),
            )
        self.outbox.give_up()
        self._connection.close()

    def _heartbeat(self, digest: HostDigest) -> bytes:
        slots = [slot.index for slot in self.slots] or [*self.works_in]
        digest = msgspec.structs.replace(digest, dropped_messages=self.outbox.dropped)
        data = encode(Heartbeat(kind=self.kind, host=host_name(), pid=os.getpid(), slots=slots, digest=digest))
        if len(data) > MOST_STATUS_BYTES:  # thousands of slots
            data = encode(Heartbeat(kind=self.kind, host=host_name(), pid=os.getpid(), slots=[], digest=digest))
        return data


class Message(NamedTuple):
    """A member's message."""

    member: str
    kind: str
    values: dict[str, Any]


class MessageReader:
    """Reads the messages of all members, on the learner's host. One reader; each message is returned at most once.

    Attributes:
        unreadable: entries that were not messages and were dropped.
    """

    def __init__(self, server: Server, keys: RunKeys) -> None:
        self.unreadable = 0
        self._keys = keys
        self._connection = Connection(server)
        self._backoff = Backoff()
        self._next_try = 0.0  # monotonic seconds; later than now after trouble

    def read(self, timeout: float = 0.0) -> list[Message]:
        """Messages that have arrived, oldest first. Empty also while the connection fails.

        Args:
            timeout: seconds to wait for the first.
        """
        ends = time.monotonic() + timeout
        while not (messages := self._pop()) and time.monotonic() < ends:
            time.sleep(min(_POLL_SECONDS, timeout))
        return messages

    def _pop(self) -> list[Message]:
        messages: list[Message] = []
        if time.monotonic() < self._next_try:
            return messages
        try:
            entries: list[Any] = []
            while len(entries) < _MOST_READ:  # more come with the next call
                some = self._connection.script(POP, [self._keys.messages], _READ_AT_ONCE)
                entries += some
                if len(some) < _READ_AT_ONCE:
                    break
            self._backoff.reset()
        except LinkError:
            self._next_try = time.monotonic() + self._backoff.next()
            return messages
        for entry in entries:
            message = _message(entry[1])
            if message is None:
                self.unreadable += 1
            else:
                messages.append(message)
        return messages

    def close(self) -> None:
        self._connection.close()


def _message(fields: list[bytes]) -> Message | None:
    if len(fields) != 6 or fields[::2] != [b"member", b"kind", b"values"] or len(fields[5]) > MOST_MESSAGE_BYTES:
        return None
    values = decode(fields[5], dict[str, Any])
    if values is None or not all(re.fullmatch(rb"[A-Za-z0-9._-]{1,100}", word) for word in (fields[1], fields[3])):
        return None
    return Message(fields[1].decode(), fields[3].decode(), values)


def _host(kind: Kind) -> str:
    """Whom orders to hosts are meant for."""
    return host_name() if kind == "host" else ""


def _leases(numbers: list[Any]) -> list[SlotLease]:
    return sorted(SlotLease(int(a), int(b)) for a, b in zip(numbers[::2], numbers[1::2], strict=True))
