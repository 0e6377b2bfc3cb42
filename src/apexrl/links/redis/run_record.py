"""A run on a Redis server: its record, the learner's lease, and finding or stopping a run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from apexrl.errors import ClosedError, ConfigError, HeldError, LinkError, OwnershipError, WaitTimeout
from apexrl.links.backoff import Backoff
from apexrl.links.printable import host_name, printable
from apexrl.links.protocol_numbers import Protocols
from apexrl.links.redis.checked_values import (
    MOST_RECORD_BYTES,
    MOST_STATUS_BYTES,
    PROTOCOLS,
    LearnerDigest,
    RunRecord,
    decode,
    encode,
    is_alive,
    whole,
)
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.scripts import CLEAR, END, PRUNE, RENEW_LEARNER, RESTORE, STOP, TAKE
from apexrl.links.redis.server import Server
from apexrl.run.ownership import lease_clock

__all__ = [
    "GatewayNews",
    "LearnerDigest",
    "LearnerLease",
    "Orders",
    "RunRecord",
    "find_run",
    "gateway_news",
    "stop_run",
]

GatewayNews = Literal["here", "elsewhere", "ended"]
"""What a run says of the gateway where a host looks for it; ``ended``: the run is over, or will be at once."""

FINISHED_DAYS: Final = 7
"""Days that the record of a finished run stays for `apexrl status`."""

_PRUNE_SECONDS: Final = 10.0
_VANISH_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.5


class Orders(NamedTuple):
    """The answer to a renewal."""

    stop: bool = False
    """A stop was requested."""
    finished: bool = False
    """The learner has ended the run."""
    replaced: bool = False
    """Another run has taken the name; this one was deleted."""
    learner_alive: bool = True
    weights_version: int = 0
    """The learner's newest version, by its last report."""
    weights_trouble: str = ""
    """Why the learner's host cannot publish it; empty: no problem."""
    members: int = 0
    """Number of members, including those that fell silent recently."""
    drained: bool = False
    """This host was asked to leave."""
    actors: int = 0
    """How many actors it was told to bring; 0: nobody has said it."""
    env_steps: int = 0
    """Of the whole run, by the learner's last report."""
    env_change: bytes = b""
    """Settings of environments that its callbacks have changed (``run.env_changes``), of whoever wrote them."""
    lost_slots: tuple[int, ...] = ()
    """Slots that other members leased while renewals failed; this member has other slots now, or fewer."""


class LearnerLease:
    """The lease of a run's only learner. For one thread. Every call may raise ``LinkError``, and can then be repeated.

    Args:
        taken: when it took the lease, by the server's clock, in milliseconds since 1970; grows with every take. It is
            the ``fence`` of roles that write for this learner: they may write while it is the newest.
        resumed: the run existed before with this ``run_id``, and its state was kept.
        asked_at: when it requested the lease, by ``lease_clock``.
    """

    def __init__(
        self,
        connection: Connection,
        record: RunRecord,
        ttl: float,
        token: str,
        taken: int,
        resumed: bool,
        asked_at: float,
    ) -> None:
        self.record = record
        self.keys = RunKeys(record.name)
        self.taken = taken
        self.resumed = resumed
        self.held_until = asked_at + ttl
        """Until when no other learner can have the lease, by ``lease_clock``."""
        self._shut_out_since: float | None = None  # another run with a learner was found under the name
        self._connection = connection
        self._ttl = _milliseconds(ttl)
        self._token = token
        self._encoded = encode(record)
        self._digest = hashlib.sha1(self._encoded, usedforsecurity=False).hexdigest()
        self._generations: dict[bytes, int] = {}
        self._pruned_at = time.monotonic()

    @classmethod
    def take(
        cls, server: Server, record: RunRecord, ttl: float = 10.0, replace: bool = False, takes_over: bool = False
    ) -> LearnerLease:
        """Become the learner of ``record.name``.

        Args:
            ttl: seconds without ``renew`` after which another learner may take the lease.
            replace: first delete a run of that name with another ``run_id``.
            takes_over: go on with a run that has neither ended nor been asked to stop, and with no other.

        Raises:
            ClosedError: with ``takes_over``: it has ended, or was asked to stop.
            HeldError: another learner is alive; the message names its host, process and last heartbeat.
            ConfigError: the server has another run of that name, and ``replace`` is False.
            LinkError: the server cannot be reached or refuses.
        """
        keys, connection, token = RunKeys(record.name), Connection(server), uuid.uuid4().hex
        encoded = encode(record)
        if decode(encoded, RunRecord) is None or len(encoded) > MOST_RECORD_BYTES:
            raise ConfigError(f"no host would accept the record of run {record.name} ({len(encoded)} bytes)")
        try:
            arguments = (record.run_id, token, host_name(), os.getpid(), _milliseconds(ttl), encoded, int(replace))
            asked_at = lease_clock()
            reply = connection.script(TAKE, _all(keys), *arguments, int(takes_over))
            if reply[0] == b"over":
                raise ClosedError(f"run {record.name} at {server.address} has ended, or was asked to stop")
            if reply[0] == b"another":
                ended = "which has ended" if reply[4] == b"finished" else "which has not ended"
                raise ConfigError(
                    f"{server.address} keeps another run {record.name}, {ended}; its learner was {_who(reply[1:])}. "
                    "To go on with that one, where its folder is: apexrl resume RUN --redis URL, or this command with "
                    "--resume-or-start. To begin anew, and delete what the server keeps of it: --replace-run. Or "
                    "choose another --run"
                )
            if reply[0] == b"held":
                raise HeldError(
                    f"run {record.name} at {server.address} has a learner: {_who(reply[1:])}. "
                    "Stop it (apexrl stop), or choose another --run; "
                    f"if it is dead, its lease ends in {int(reply[4]) / 1000:.1f} s"
                )
            if not reply[1]:
                with contextlib.suppress(LinkError):  # the lease is taken; old parts do no harm
                    _clear_parts(connection, keys)
        except BaseException:
            connection.close()
            raise
        return cls(connection, record, ttl, token, int(reply[2]), bool(reply[1]), asked_at)

    def renew(self, digest: LearnerDigest, env_change: bytes = b"") -> Orders:
        """Renew the lease, every second. A server that restarted empty gets the run's record again.

        Raises:
            OwnershipError: another learner has the lease, or another run has the name: end at once.
            LinkError: the server cannot be reached or refuses; nothing is lost, call again.
        """
        status = encode(digest)
        if len(status) > MOST_STATUS_BYTES:
            raise ConfigError(f"a status of {len(status)} bytes is longer than {MOST_STATUS_BYTES}")
        keys, asked_at = self.keys, lease_clock()
        reply = self._connection.script(
            RENEW_LEARNER,
            _all(keys),
            *(self.record.run_id, self._token, host_name(), os.getpid(), self._ttl, status),
            *(digest.weights_version, self._digest, self.taken, digest.weights_trouble, digest.env_steps, env_change),
        )
        if reply[0] == b"taken" and not self._shut_out_too_long(asked_at):
            where = f"{self.record.name} at {self._connection.server.address}"
            raise LinkError(f"another run {where} has a learner, {_who(reply[1:])}: waiting for its lease to expire")
        if reply[0] != b"held":
            raise OwnershipError(
                f"run {self.record.name} at {self._connection.server.address} has another learner now: "
                f"{_who(reply[1:])}. This one ends"
            )
        self._shut_out_since = None
        self.held_until = asked_at + self._ttl / 1000
        _, stop, intact, pairs = reply
        generations = dict(zip(pairs[::2], map(whole, pairs[1::2]), strict=True))
        behind = any(generations.get(field, 0) < last for field, last in self._generations.items())
        for field, last in generations.items():
            self._generations[field] = max(last, self._generations.get(field, 0))
        if behind or not intact:
            known = [word for field, last in self._generations.items() for word in (field, last)]
            self._connection.script(
                RESTORE, [keys.learner, keys.record, keys.generations], self._token, self._encoded, *known
            )
        if time.monotonic() - self._pruned_at > _PRUNE_SECONDS:
            self._pruned_at = time.monotonic()
            self._connection.script(PRUNE, [keys.members], _milliseconds(_VANISH_SECONDS))
        return Orders(stop=bool(stop), weights_version=digest.weights_version)

    def finish(self, summary: dict[str, Any], timeout: float = 5.0) -> None:
        """Mark the run as finished, wait at most ``timeout`` seconds for its members to leave, and delete what is not
        needed any more. The record stays for a week."""
        keys = self.keys
        if not self._connection.script(END, [keys.learner, keys.state], self.taken, encode(summary)):
            self._connection.close()  # another learner has the run
            return
        ends = time.monotonic() + timeout
        while self._anybody() and time.monotonic() < ends:
            time.sleep(0.1)
        if self._connection.script(CLEAR, _all(keys), self.taken, FINISHED_DAYS * 24 * 3600):
            _clear_parts(self._connection, keys)
        self._connection.close()

    def leave(self) -> None:
        """Release the lease without ending the run: hosts wait for the next learner. Never raises ``LinkError``: the
        lease also expires."""
        with contextlib.suppress(LinkError):
            self._connection.script(END, [self.keys.learner, self.keys.state], self.taken, "")
        self._connection.close()

    def _shut_out_too_long(self, now: float) -> bool:
        """Whether another run keeps the name for longer than a lease that a restored server remembers."""
        self._shut_out_since = now if self._shut_out_since is None else self._shut_out_since
        return now - self._shut_out_since > 2 * self._ttl / 1000

    def _anybody(self) -> bool:
        """Whether any member is alive, by the server's clock."""
        seconds, micros = self._connection.command("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        entries = self._connection.pipeline([("HVALS", self.keys.members)], refusals=True)[0] or []
        parts = [entry.split(b" ", 2) for entry in entries]
        return any(len(part) == 3 and is_alive(whole(part[0]), whole(part[1]), now) for part in parts)


def find_run(
    server: Server, name: str, timeout: float = 60.0, stopped: Callable[[], bool] = lambda: False
) -> RunRecord:
    """The record of the run ``name``. Waits until a learner has published it, also while the connection fails.

    Raises:
        WaitTimeout: there was none within ``timeout`` seconds.
        ClosedError: ``stopped`` returned True.
        ConfigError: the run speaks other protocols: of a release that is too old, or too new.
    """
    keys, connection, backoff = RunKeys(name), Connection(server), Backoff()
    ends, why = time.monotonic() + timeout, "nobody has started it"
    try:
        while True:
            pause = _LOOK_SECONDS
            try:
                data, state = connection.pipeline(
                    [("GETRANGE", keys.record, 0, MOST_RECORD_BYTES), ("HMGET", keys.state, "phase", "stop")],
                    refusals=True,
                )
                backoff.reset()
                record = _checked(data, name)
                if record is not None and state is not None and state[0] != b"finished" and state[1] is None:
                    return record
                why = "its record cannot be read" if record is None else "it has ended"
                why = why if data else "nobody has started it"
            except LinkError as error:
                why, pause = str(error), backoff.next()
            if stopped():
                raise ClosedError(f"stopped while waiting for run {name} at {server.address}")
            if time.monotonic() + pause > ends:
                raise WaitTimeout(
                    f"run {name} at {server.address} was not there within {timeout:.0f} s: {why}. "
                    f"Start it: apexrl learner PRESET --redis URL --run {name}"
                )
            time.sleep(pause)
    finally:
        connection.close()


def gateway_news(server: Server, record: RunRecord) -> GatewayNews:
    """Whether the run goes on with the gateways of ``record``; ``here`` also while the server cannot be asked."""
    keys, connection = RunKeys(record.name), Connection(server)
    try:
        data, state = connection.pipeline(
            [("GETRANGE", keys.record, 0, MOST_RECORD_BYTES), ("HMGET", keys.state, "phase", "stop")], refusals=True
        )
    except LinkError:
        return "here"
    finally:
        connection.close()
    now = decode(data, RunRecord)
    same = now is None or all(
        getattr(now, name) == getattr(record, name) for name in ("run_id", "gateway", "learners_gateway")
    )
    ended = state is not None and (state[0] == b"finished" or state[1] is not None)
    if ended and (now is None or now.run_id == record.run_id):
        return "ended"
    return "here" if same and not ended else "elsewhere"


def stop_run(server: Server, name: str) -> str:
    """Request a run to stop. Answers ``asked``, ``finished`` (it had finished), ``deserted`` (none of its processes is
    alive; it is marked as finished), or ``none`` (no such run)."""
    keys, connection = RunKeys(name), Connection(server)
    try:
        return str(connection.script(STOP, [keys.state, keys.learner, keys.members])[0].decode())
    finally:
        connection.close()


class _Version(msgspec.Struct):
    protocol: int
    apexrl: str
    newest_protocol: int = 0


def _checked(data: bytes | None, name: str) -> RunRecord | None:
    version = decode(data, _Version)
    if version is not None:
        theirs = Protocols(version.protocol, max(version.protocol, version.newest_protocol))
        try:
            PROTOCOLS.newest_common(theirs, f"run {name}, of apexrl {printable(version.apexrl, 20)},")
        except LinkError as error:
            raise ConfigError(str(error)) from None
    return decode(data, RunRecord)


def _all(keys: RunKeys) -> list[str]:
    """Every key of a run except parts of weights and streams; scripts use the first four by position."""
    first = [keys.state, keys.learner, keys.record, keys.generations]
    carried = [keys.steps, keys.committed, keys.messages, keys.weights, keys.weights_readers, keys.weights_waiting]
    return [*first, keys.slots, keys.members, *carried, keys.averaging]


def _clear_parts(connection: Connection, keys: RunKeys) -> None:
    """Delete the remaining parts of weights and streams, by the keys that the server has."""
    for prefix in (keys.weights, keys.steps):
        cursor = b""
        while cursor != b"0":
            cursor, found = connection.command("SCAN", cursor or b"0", "MATCH", prefix + ":*", "COUNT", 1000)
            if found:
                connection.command("UNLINK", *found)


def _who(reply: list[bytes]) -> str:
    host, pid, age = reply[:3]
    if not host:
        return "one that has released its lease"
    return f"process {printable(pid, 20)} on {printable(host, 64)}, last heard of {whole(age) / 1000:.1f} s ago"


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))
