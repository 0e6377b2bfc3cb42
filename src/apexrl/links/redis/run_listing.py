"""Read-only listing of the runs on a server and their members, for `apexrl status`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from apexrl.links.printable import printable
from apexrl.links.redis.checked_values import (
    MOST_RECORD_BYTES,
    MOST_STATUS_BYTES,
    Heartbeat,
    HostDigest,
    LearnerDigest,
    RunRecord,
    decode,
    is_alive,
    whole,
)
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import EVERY_RECORD, RunKeys
from apexrl.links.redis.server import Server
from apexrl.links.redis.stream_names import LAST_OF_GENERATION, stream_of

MOST_MEMBERS: Final = 4096
"""The most members of one run to read."""

MOST_RUNS: Final = 256


@dataclass(frozen=True)
class MemberView:
    """One actor host or client, by its last report."""

    member: str
    generation: int
    kind: str
    host: str
    pid: int
    slots: list[int]
    state: Literal["alive", "lost", "left"]
    """``lost``: its lease expired; ``left``: it left normally. Both are removed from the list later."""
    age_seconds: float
    """Since its last heartbeat, by the server's clock."""
    digest: HostDigest


@dataclass(frozen=True)
class RunView:
    """One run at one moment."""

    name: str
    address: str
    record: RunRecord | None
    phase: str
    """``running``, ``finished``, or empty when the server does not know."""
    stopping: bool
    learner_alive: bool
    learner_host: str
    learner_pid: str
    learner_age_seconds: float
    digest: LearnerDigest
    queue: int
    """Frames of experience at the server: not yet sent to the learner's host, or not yet acknowledged by it."""
    members: list[MemberView] = field(default_factory=list)
    unreadable: int = 0
    """Number of keys and entries that apexrl did not write."""

    @property
    def alive(self) -> list[MemberView]:
        return [member for member in self.members if member.state == "alive"]


def look(connection: Connection, name: str) -> RunView:
    """The run ``name`` with its members: live ones first, then by lowest slot.

    Raises:
        LinkError: the server cannot be reached or refuses.
    """
    keys = RunKeys(name)
    clock, record, state, learner, generation, members = connection.pipeline(
        [
            ("TIME",),
            ("GETRANGE", keys.record, 0, MOST_RECORD_BYTES),
            ("HMGET", keys.state, "phase", "stop"),
            ("HMGET", keys.learner, "token", "until", "seen", "host", "pid", "status"),
            ("GETRANGE", keys.steps, 0, LAST_OF_GENERATION),
            ("HSCAN", keys.members, 0, "COUNT", MOST_MEMBERS),
        ],
        refusals=True,
    )
    queue = connection.pipeline([("XLEN", stream_of(keys, generation))], refusals=True)[0] if generation else 0
    now = int(clock[0]) * 1000 + int(clock[1]) // 1000
    unreadable = sum(reply is None for reply in (record, state, learner, generation, queue, members))
    phase, stop = state or [None] * 2
    token, until, seen, host, pid, status = learner or [None] * 6
    parsed, digest = decode(record or None, RunRecord), _sized(status, LearnerDigest)
    unreadable += (parsed is None and bool(record)) + (digest is None and status is not None)
    pairs: list[bytes] = members[1] if members else []
    views = [_member(key, value, now) for key, value in zip(pairs[::2], pairs[1::2], strict=True)]
    known = [view for view in views if view is not None]
    order = {"alive": 0, "lost": 1, "left": 2}
    known.sort(key=lambda view: (order[view.state], min(view.slots, default=0), view.member))
    return RunView(
        name=name,
        address=connection.server.address,
        record=parsed,
        phase=printable(phase, 20),
        stopping=stop is not None,
        learner_alive=token is not None and is_alive(whole(seen), whole(until), now),
        learner_host=printable(host, 64),
        learner_pid=printable(pid, 20),
        learner_age_seconds=max(0, now - whole(seen)) / 1000,
        digest=digest or LearnerDigest(),
        queue=queue or 0,
        members=known,
        unreadable=unreadable + len(views) - len(known),
    )


def runs(server: Server) -> list[str]:
    """Names of the runs at a server, or at all nodes of a cluster, at most 256, in alphabetical order.

    Raises:
        LinkError: the server cannot be reached or refuses.
    """
    names: set[str] = set()
    for node in server.nodes():
        with closing(Connection(node)) as connection:
            cursor = b""
            while cursor != b"0" and len(names) < MOST_RUNS:
                cursor, found = connection.command("SCAN", cursor or b"0", "MATCH", EVERY_RECORD, "COUNT", 1000)
                named = (RunKeys.of_record(key.decode("utf-8", "replace")) for key in found)
                names.update(keys.name for keys in named if keys is not None)
    return sorted(names)[:MOST_RUNS]


def _member(key: bytes, value: bytes, now: int) -> MemberView | None:
    """``value``: last seen, lease end (0: it has left), generation and heartbeat, separated by spaces."""
    parts = value.split(b" ", 3)
    if len(parts) != 4:
        return None
    heartbeat = _sized(parts[3], Heartbeat)
    if heartbeat is None:
        return None
    was_seen, until = whole(parts[0]), whole(parts[1])
    return MemberView(
        member=printable(key, 100),
        generation=whole(parts[2]),
        kind=printable(heartbeat.kind, 20),
        host=printable(heartbeat.host, 64),
        pid=heartbeat.pid,
        slots=sorted(heartbeat.slots),
        state="left" if until == 0 else "alive" if is_alive(was_seen, until, now) else "lost",
        age_seconds=max(0, now - was_seen) / 1000,
        digest=heartbeat.digest,
    )


def _sized(data: bytes | None, kind: type[Any]) -> Any:
    return decode(data, kind) if data is not None and len(data) <= MOST_STATUS_BYTES else None
