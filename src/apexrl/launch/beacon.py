"""The heartbeat of a learner or an actor host: renews its lease on the Redis server, and hears from the other side."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from apexrl.config import Config
from apexrl.errors import ConfigError, LinkError, OwnershipError
from apexrl.links.backoff import Backoff
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.redis.checked_values import HostDigest, LearnerDigest
from apexrl.links.redis.members import HostLease, renewal_pause
from apexrl.links.redis.run_record import LearnerLease, Orders
from apexrl.run import env_changes
from apexrl.run.env_changes import EnvChange
from apexrl.run.episode_metrics import told_spreads
from apexrl.run.observers import IdleObserver
from apexrl.run.ownership import REPLACED, lease_clock
from apexrl.run.status import Level, RunStatus

CLOSE_SECONDS: Final = 20.0
"""How long ``close`` waits for the server at most."""

_FINISH_SECONDS = 8.0  # to tell that the run is over, through trouble with the server
_CARRIED = {  # what the intake says -> what a digest calls it
    "committed": "committed_items",
    "missing": "missing_items",
    "repeated": "duplicate_items",
    "refused": "refused_frames",
}


class Beacon(IdleObserver):
    """An observer that renews a lease in a thread of its own: the supervisor never waits for the server.

    Args:
        lease: already taken.
        config: of the run; its lease, how patient an actor host is, and how many actors it brings.
        reports: episodes and warnings of this host go the same way.
        refused: a number of actors that this host was told to bring and could not.
        counts: tell the learner's host of this one's steps and episodes, whose experience stays here.
    """

    ours = True

    def __init__(
        self,
        lease: LearnerLease | HostLease,
        config: Config,
        reports: bool = True,
        refused: int = 0,
        counts: bool = False,
    ) -> None:
        self._counts = counts
        self.error: Exception | None = None
        self._lease = lease
        self._outbox = lease.outbox if reports and isinstance(lease, HostLease) else None
        self._run = lease.record.name
        self._actors = {0, config.actor.actors, refused}
        self._patience_seconds = 60.0 * config.hosts.patience_minutes
        hosts = config.hosts
        self._lease_seconds = hosts.learner_lease_seconds if isinstance(lease, LearnerLease) else hosts.lease_seconds
        self._period = renewal_pause(Orders(), self._lease_seconds)
        self._status = RunStatus()
        self._carried: dict[str, Any] = {}
        self._summary: dict[str, Any] | None = None
        self._reason = ""
        self._news: queue.SimpleQueue[tuple[str, Level]] = queue.SimpleQueue()  # bounded: only changes are told
        self._tell: Callable[[str, Level], None] | None = None
        self._board: ControlBoard | None = None
        self._steps_here: ControlBoard | None = None
        self._run_steps = 0
        self._env_change = b""  # told to other hosts, or heard of the learner
        self._paused = False  # another learner may hold the lease
        self._alone_since: float | None = None  # monotonic seconds
        self._server_away = self._learner_away = self._weights_away = False
        self._telling = False  # of what this beacon found out: that is no news of this host's
        self._weights = 0, time.monotonic()  # the newest version here, and since when
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="beacon", daemon=True)
        self._thread.start()

    def announce(self, tell: Callable[[str, Level], None]) -> None:
        """Set the function that shows news to the user, called from the supervisor's thread."""
        self._tell = tell

    def guard(self, board: ControlBoard) -> None:
        """Tell all writers of checkpoints, through ``board``, until when the learner surely holds its lease: a word
        in shared memory, which runs out by itself when this thread cannot renew it."""
        assert isinstance(self._lease, LearnerLease)
        board.held_until = self._lease.held_until
        self._board = board

    def tell_steps(self, board: ControlBoard) -> None:
        """Tell the roles of this host, through ``board``, how many environment steps the whole run has made."""
        self._steps_here = board

    def close(self) -> None:
        """Release the lease: as the end of the run if it had one, else for another to take."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)

    def check(self) -> None:
        """Raise the error that ended the lease, if there was one."""
        if self.error is not None:
            raise self.error

    def update(self, status: RunStatus) -> str | None:
        self._status = status
        if status.weights_version != self._weights[0]:
            self._weights = status.weights_version, time.monotonic()
        self._look_at_lease()
        while self._tell is not None and not self._news.empty():
            self._telling = True
            self._tell(*self._news.get())
            self._telling = False
        return self._reason or None

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        if kind == "env_change" and isinstance(self._lease, LearnerLease):
            self._env_change = env_changes.encoded(EnvChange(**values), "change_env")
        elif kind in ("intake", "uplink"):
            self._carried = {_CARRIED.get(name, name): number for name, number in values.items()}
        elif kind == "episodes" and self._outbox is not None:
            self._outbox.episodes(values["returns"], values["lengths"], told_spreads(values.get("metrics")))

    def message(self, text: str, level: Level = "info") -> None:
        if level != "info" and not self._telling and self._outbox is not None:
            self._outbox.warning(text, level)

    def finished(self, summary: dict[str, Any]) -> None:
        self._summary = summary

    def _keep(self) -> None:
        """The thread: renew until closed, then release the lease."""
        backoff, pause, failed = Backoff(), 0.0, False
        while not self._closing.wait(pause):
            pause = self._period
            if failed:
                continue
            try:
                self._heed(self._renew())
                if self._board is not None and isinstance(self._lease, LearnerLease):
                    self._board.held_until = self._lease.held_until
                backoff.reset()
            except LinkError as error:
                if not self._server_away:
                    self._server_away = True
                    self._news.put((f"{error}; trying again", "warning"))
                pause = backoff.next()
            except Exception as error:  # the supervisor's thread raises it, and closes this beacon
                if self._board is not None and isinstance(error, OwnershipError):
                    self._board.held_until = REPLACED
                self.error, self._reason = error, "replaced" if isinstance(error, OwnershipError) else "error"
                failed = True
            self._wait_for_others()
        self._release()

    def _renew(self) -> Orders:
        if isinstance(self._lease, LearnerLease):
            return self._lease.renew(LearnerDigest.of(self._status, self._carried), self._env_change)
        self._count()
        return self._lease.renew(HostDigest.of(self._status, self._carried))

    def _count(self) -> None:
        if self._counts and isinstance(self._lease, HostLease):
            self._lease.outbox.totals(self._status.env_steps, self._status.episodes)

    def _look_at_lease(self) -> None:
        """Tell when checkpoints are not written any more, and when they are again."""
        until = 0.0 if self._board is None else self._board.held_until
        paused = until > 0 and lease_clock() > until
        if paused != self._paused and self._tell is not None:
            self._paused = paused
            if paused:
                self._tell(
                    f"the lease of run {self._run} on the server could not be renewed in time, and another learner may "
                    "take it: no checkpoints are written until the server answers",
                    "warning",
                )
            elif until != REPLACED:
                self._tell(f"run {self._run} has kept its lease: checkpoints are written again", "info")

    def _heed(self, orders: Orders) -> None:
        if self._server_away:
            self._server_away = False
            self._news.put(("the Redis server is back", "info"))
        self._period = renewal_pause(orders, self._lease_seconds)
        over = orders.finished or orders.stop or orders.replaced
        if bool(orders.weights_trouble) != self._weights_away and not over:
            self._weights_away = not self._weights_away
            (version, since), trouble = self._weights, orders.weights_trouble
            behind = f"{max(0, orders.weights_version - version)} versions, and {time.monotonic() - since:.0f} s old"
            text = f"the learner cannot publish its weights ({trouble}): those here are {behind}"
            text = text if trouble else "the learner publishes its weights again"
            self._news.put((text, "warning" if trouble else "info"))
        if orders.learner_alive == self._learner_away and not over:
            self._learner_away = not orders.learner_alive
            text = "is away: waiting for it" if self._learner_away else "is back"
            self._news.put((f"the learner of run {self._run} {text}", "warning" if self._learner_away else "info"))
        if orders.learner_alive:
            self._alone_since = None
        self._run_steps = max(self._run_steps, orders.env_steps)  # a server that came back empty says 0
        if self._steps_here is not None:
            self._steps_here.set_base("run_env_steps", self._run_steps)
            self._pass_on(self._steps_here, orders.env_change)
        if orders.lost_slots and not self._reason:
            lost = ", ".join(str(slot) for slot in orders.lost_slots)
            self._news.put((f"other hosts have taken the slots {lost} while the server was away", "warning"))
        reasons = {
            "replaced": orders.replaced,
            "finished": orders.finished,
            "stopped": orders.stop,
            "lost slots": bool(orders.lost_slots),
            "drained": orders.drained,
            "scaled": orders.actors not in self._actors,
        }
        if not self._reason:
            self._reason = next((reason for reason, wanted in reasons.items() if wanted), "")
            self._tell_of_order(orders)

    def _pass_on(self, board: ControlBoard, change: bytes) -> None:
        """Tell this host's roles of changed settings of environments. A server that came back empty says none."""
        if change in (b"", self._env_change):
            return
        self._env_change = change
        try:
            env_changes.decoded(change, f"run {self._run} on the server")
        except ConfigError as error:
            self._news.put((f"{error}: environments here stay as they are", "warning"))
        else:
            board.set_env_change(change)

    def _tell_of_order(self, orders: Orders) -> None:
        """Tell here, and on the learner's host, that this one leaves because somebody said so."""
        words = {
            "drained": "drained: it hands over what it has and leaves",
            "scaled": f"told to bring {orders.actors} actors: it hands over what it has, and joins again with them",
        }
        if self._reason in words:
            if self._outbox is not None:
                self._outbox.order(self._reason, words[self._reason])
            self._news.put((f"this host was {words[self._reason]}", "warning"))

    def _wait_for_others(self) -> None:
        """An actor host without a learner or a server is of no use for ever; a learner goes on with what it has."""
        if not (self._server_away or self._learner_away) or isinstance(self._lease, LearnerLease):
            return
        now = time.monotonic()
        self._alone_since = now if self._alone_since is None else self._alone_since
        if now - self._alone_since > self._patience_seconds and not self._reason:
            who = "Redis server" if self._server_away else "learner"
            minutes = self._patience_seconds / 60
            self.error = LinkError(f"no {who} of run {self._run} for {minutes:g} minutes (--patience-minutes)")
            self._reason = "lost learner"

    def _release(self) -> None:
        deadline, backoff = time.monotonic() + _FINISH_SECONDS, Backoff()
        if isinstance(self._lease, HostLease):
            self._count()
            self._lease.leave(HostDigest.of(self._status, self._carried))
        elif self._summary is None:
            self._lease.leave()
        else:
            told = False
            while not told and time.monotonic() < deadline:
                try:
                    self._lease.finish(self._summary)
                    told = True
                except LinkError:
                    time.sleep(backoff.next())
            if not told:  # hosts then wait for another learner until their patience ends
                self._lease.leave()
