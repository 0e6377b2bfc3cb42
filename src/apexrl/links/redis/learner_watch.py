"""What a standby sees of a run's learner on the Redis server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Literal

from apexrl.links.printable import printable
from apexrl.links.redis.checked_values import whole
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.server import Server

State = Literal["alive", "gone", "over", "another"]

_EMPTY_LEASES: Final = 2.0
"""A server that knows no run of the name may have lost it: its learner then says so again within this many leases."""


@dataclass(frozen=True)
class Sight:
    """The run's learner at one moment."""

    state: State
    """``gone``: its lease may be taken; ``over``: the run has ended, or was asked to stop; ``another``: a run with
    another id has the name."""
    who: str
    """The learner in words."""
    wait_seconds: float
    """Until its lease ends, if it is not renewed."""


class LearnerWatch:
    """Looks whether the learner of a run is gone. For one thread.

    A lease counts as ended only after this connection has lasted as long: after a restart of the server, the learner
    may come back as well.
    """

    def __init__(self, server: Server, run: str, run_id: str, lease_seconds: float) -> None:
        self._keys = RunKeys(run)
        self._run_id = run_id
        self._lease_seconds = lease_seconds
        self._connection = Connection(server)
        self._since: float | None = None  # monotonic seconds of the first answer on this connection
        self._unknown_since: float | None = None

    def close(self) -> None:
        self._connection.close()

    def look(self) -> Sight:
        """Ask the server.

        Raises:
            LinkError: it cannot be reached or refuses; call again.
        """
        try:
            clock, state, learner = self._connection.pipeline(
                [
                    ("TIME",),
                    ("HMGET", self._keys.state, "run_id", "phase", "stop"),
                    ("HMGET", self._keys.learner, "token", "until", "ttl", "host", "pid"),
                ]
            )
        except BaseException:
            self._since = self._unknown_since = None
            raise
        here = time.monotonic()
        now = int(clock[0]) * 1000 + int(clock[1]) // 1000
        token, until, ttl, host, pid = learner
        self._since = here if self._since is None else self._since
        lease = max(whole(ttl) / 1000, 0.0) or self._lease_seconds
        unseen = max(0.0, self._since + lease - here)
        who = f"process {printable(pid, 20)} on host {printable(host, 64)}" if host else "a learner that has left"
        run_id, phase, stop = state
        if run_id is None:
            self._unknown_since = here if self._unknown_since is None else self._unknown_since
            left = max(0.0, self._unknown_since + _EMPTY_LEASES * lease - here)
            return Sight("alive" if left else "gone", "a learner that the server has forgotten", left)
        self._unknown_since = None
        if run_id.decode("ascii", "replace") != self._run_id:
            return Sight("another", who, 0.0)
        if phase == b"finished" or stop is not None:
            return Sight("over", who, 0.0)
        left = min(lease, (whole(until) - now) / 1000) if token is not None else 0.0
        if left > 0.0:
            return Sight("alive", who, left)
        return Sight("alive" if unseen and token is not None else "gone", who, unseen)
