"""Keeps the slots of a host that works through a gateway, and tells the learner's host what ended here."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from apexrl.errors import ApexrlError, FrameError, LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.tcp.gateway_messages import (
    COUNTED_THERE,
    MOST_EPISODES,
    MOST_REPORTS,
    MOST_TEXT,
    MOST_TEXTS,
    Level,
    Record,
    Report,
)
from apexrl.links.tcp.handshake import RefusedError, UnreachableError
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.slot_leases import GENERATION_BITS
from apexrl.run import env_changes
from apexrl.run.episode_metrics import Spreads, told_spreads
from apexrl.run.observers import IdleObserver
from apexrl.run.status import RunStatus

if TYPE_CHECKING:
    from apexrl.links.redis.run_record import GatewayNews

_BEAT_SECONDS: Final = 1.0
_EPISODES_KEPT: Final = 10 * MOST_EPISODES  # while the learner is away; of more, the newest
_TEXTS_KEPT: Final = 10 * MOST_TEXTS
_CLOSE_SECONDS: Final = 15.0


class LeaseKeeper(IdleObserver):
    """An observer that keeps a host's slots, from a thread of its own: the supervisor never waits for the learner.

    Args:
        host: let in, with its slots.
        patience_seconds: that the learner may be away.
        news: what the run says of the gateway that ``host`` looks for, where somebody else can be asked.
    """

    ours = True

    def __init__(
        self,
        host: HostConnection,
        record: Record,
        patience_seconds: float,
        news: Callable[[], GatewayNews] = lambda: "here",
    ) -> None:
        self.error: Exception | None = None
        self._gateway_news = news
        self._counts_itself = record.brings != "environments"
        self._host, self._run_id, self._name = host, record.run_id, record.name
        self._wanted = len(host.leases)
        self._period = min(_BEAT_SECONDS, record.lease_seconds / 4)
        self._patience_seconds = patience_seconds
        self._episodes: deque[tuple[float, int]] = deque(maxlen=_EPISODES_KEPT)
        self._metrics, self._lock = Spreads(), threading.Lock()  # of the metrics
        self._texts: deque[tuple[Level, str]] = deque(maxlen=_TEXTS_KEPT)
        self._news: queue.SimpleQueue[tuple[str, Level]] = queue.SimpleQueue()  # bounded: only changes are told
        self._tell: Callable[[str, Level], None] | None = None
        self._restarts = 0
        self._counts: dict[str, int] = dict.fromkeys(COUNTED_THERE, 0)  # as of the newest status
        self._told = dict(self._counts)
        self._reports: dict[str, Report] = {}  # the newest of each worker
        self._board: ControlBoard | None = None
        self._env_change = b""
        self._reason = ""
        self._unanswered: dict[str, Any] = {}  # the beat of which no answer came
        self._away_since: float | None = None  # monotonic seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    def announce(self, tell: Callable[[str, Level], None]) -> None:
        """Set the function that shows news to the user, called from the supervisor's thread."""
        self._tell = tell

    def tell_changes(self, board: ControlBoard) -> None:
        """Tell the roles of this host, through ``board``, of changed settings of environments."""
        self._board = board

    def close(self) -> None:
        """Report the last episodes and release the slots."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    def check(self) -> None:
        """Raise what ended the membership, if it was an error."""
        if self.error is not None:
            raise self.error

    def update(self, status: RunStatus) -> str | None:
        self._restarts = sum(status.restarts.values())
        if self._counts_itself:  # else the gateway counts what it sees
            self._counts = {"env_steps": status.env_steps, "lost_gradients": status.dropped.get("lost_gradients", 0)}
        while self._tell is not None and not self._news.empty():
            self._tell(*self._news.get())
        return self._reason or None

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        if kind == "episodes":
            self._episodes.extend(zip(values["returns"], values["lengths"], strict=True))
            with self._lock:
                self._metrics.merge(told_spreads(values.get("metrics")))
        elif kind == "metrics" and self._counts_itself:
            report = _report(values, dict(self._host.leases))
            self._reports[report.worker] = report

    def message(self, text: str, level: Level = "info") -> None:
        if level != "info":
            self._texts.append((level, text[:MOST_TEXT].encode(errors="replace").decode()))

    def _keep(self) -> None:
        """The thread: beat until closed, then say goodbye."""
        backoff, pause = Backoff(), 0.0
        while not self._closing.wait(pause):
            pause = self._period
            if self._reason:
                continue
            try:
                if self._away_since is not None:
                    self._come_back()
                self._beat()
                backoff.reset()
            except UnreachableError as error:
                pause = backoff.next()
                self._miss(error)
            except ApexrlError as error:
                if self._left_behind():
                    continue
                replaced = isinstance(error, RefusedError) and error.replaced
                self.error, self._reason = (None, "replaced") if replaced else (error, "error")
        if self._away_since is None and not self._reason:
            with suppress(LinkError, FrameError):
                self._beat()
        self._host.leave()

    def _beat(self) -> None:
        again = bool(self._unanswered)
        if not again:
            episodes = [self._episodes.popleft() for _ in range(min(len(self._episodes), MOST_EPISODES))]
            texts = [self._texts.popleft() for _ in range(min(len(self._texts), MOST_TEXTS))]
            with self._lock:
                metrics = self._metrics.take()
            counts = dict(self._counts)
            reporters = list(self._reports)[:MOST_REPORTS]
            self._unanswered = {
                "returns": [one for one, _ in episodes],
                "lengths": [length for _, length in episodes],
                "texts": texts,
                "metrics": metrics,
                "counts": {name: n - self._told[name] for name, n in counts.items() if n > self._told[name]},
                "reports": [self._reports.pop(reporter) for reporter in reporters],
            }
            self._told = counts
        orders = self._host.beat(**self._unanswered, restarts=self._restarts, again=again)
        self._unanswered = {}
        if self._board is not None and orders.env_change not in (b"", self._env_change):
            self._env_change = orders.env_change
            env_changes.decoded(orders.env_change, f"run {self._name}")
            self._board.set_env_change(orders.env_change)
        if orders.finished or orders.lost:
            self._reason = "finished" if orders.finished else "lost slots"

    def _come_back(self) -> None:
        self._host.connect(self._run_id)
        self._away_since = None
        if len(self._host.leases) < self._wanted:
            self._news.put(("other hosts have taken slots of this one while the learner was away", "warning"))
            self._reason = "lost slots"
            return
        self._news.put((f"the learner of run {self._name} is back", "info"))

    def _miss(self, error: Exception) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            self._news.put((f"the learner of run {self._name} is away: waiting for it ({error})", "warning"))
        if not self._left_behind() and now - self._away_since > self._patience_seconds:
            minutes = self._patience_seconds / 60
            self.error = LinkError(f"no learner of run {self._name} for {minutes:g} minutes (--patience-minutes)")
            self._reason = "lost learner"

    def _left_behind(self) -> bool:
        """Whether the run has ended meanwhile, or has its gateway elsewhere; then the reason says so."""
        reasons: dict[GatewayNews, str] = {"here": "", "elsewhere": "moved", "ended": "finished"}
        self._reason = reasons[self._gateway_news()]
        return bool(self._reason)


def _report(values: Mapping[str, Any], leases: Mapping[int, int]) -> Report:
    """A worker's ``metrics`` message, as one of this lease of its slot."""
    worker = str(values["reporter"])
    lease = leases.get(int(worker.rpartition("-")[2]), 0)
    return Report(
        worker=worker,
        generation=(lease << GENERATION_BITS) + int(values["generation"]),
        values={str(name)[:100]: value for name, value in values["values"].items()},
        **{name: values[name] for name in ("lag", "lag_histogram", "run_lag", "run_lag_histogram")},
    )
