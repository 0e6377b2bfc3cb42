"""The hosts connected to a gateway: their connections, slots and reports."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from apexrl.errors import ExhaustedError, FrameError, LinkError
from apexrl.links.printable import printable
from apexrl.links.tcp import frames
from apexrl.links.tcp.gateway_messages import Beat, Join, Joined, Leave, Orders, Record, Report, receive_any, send
from apexrl.links.tcp.handshake import Caller, welcome
from apexrl.run.episode_metrics import Spread, Spreads, told_spreads
from apexrl.run.status import Level

if TYPE_CHECKING:
    from apexrl.links.tcp.slot_leases import SlotLeases

Tell = Callable[[str, Level], None]

MOST_HOSTS: Final = 1024
"""The most hosts connected at a time."""

_MOST_EPISODES = 100_000  # that wait to be taken; beyond that, the oldest are dropped
_MOST_REPORTERS = 4096  # whose newest report waits to be taken
_LOOK_SECONDS = 0.02
_LOOKING_SECONDS = 600.0  # how long a host may examine its environment before it leases slots


class HostNews(NamedTuple):
    """What other hosts have told."""

    counts: dict[str, int]
    """Counter -> growth."""
    returns: list[float]
    """Of episodes."""
    lengths: list[int]
    reports: list[Report]
    """The newest of each worker."""
    metrics: dict[str, Spread]
    """What environments told of these episodes."""


class HostCounts:
    """News of other hosts that were not taken yet. Thread-safe.

    Args:
        leases: of the hosts' slots; they remember which beats were taken, and must not count again after this gateway.
    """

    def __init__(self, leases: SlotLeases) -> None:
        self._lock, self._leases = threading.Lock(), leases
        self._beats: dict[str, int] = {}  # member -> its newest
        self._counts: Counter[str] = Counter()
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._metrics = Spreads()
        self._reports: dict[str, Report] = {}

    def step(self, steps: int) -> None:
        """Add environment steps."""
        with self._lock:
            self._counts["env_steps"] += steps

    def add(self, member: str, beat: Beat) -> None:
        """Add what a host tells."""
        with self._lock:
            self._beats[member] = beat.number
            self._counts.update({str(name): n for name, n in beat.counts.items()})
            self._returns = (self._returns + beat.returns)[-_MOST_EPISODES:]
            self._lengths = (self._lengths + beat.lengths)[-_MOST_EPISODES:]
            self._metrics.merge(told_spreads(beat.metrics))
            self._reports |= {report.worker: report for report in beat.reports}
            while len(self._reports) > _MOST_REPORTERS:
                del self._reports[next(iter(self._reports))]

    def take(self) -> HostNews:
        """Since the last call."""
        with self._lock:
            for member, number in self._beats.items():
                self._leases.note(member, number)
            counts = {name: n for name, n in self._counts.items() if n}
            news = HostNews(counts, self._returns, self._lengths, [*self._reports.values()], self._metrics.take())
            self._counts, self._returns, self._lengths, self._reports = Counter(), [], [], {}
            self._beats = {}
            return news


class ConnectedHosts:
    """Hosts, each with a thread for its connection.

    Args:
        record: of the run, for the hosts; None: hosts are refused.
        leases: of the slots.
        news: receives steps and episodes.
        tell: called with messages about hosts that join or leave.
    """

    def __init__(self, record: Record | None, leases: SlotLeases, news: HostCounts, tell: Tell) -> None:
        self._record, self._leases, self._news, self._tell = record, leases, news, tell
        self._silence = 0.0 if record is None else record.lease_seconds
        self._lock = threading.Lock()
        self._open: dict[str, frames.Connection] = {}  # member -> its newest connection
        self._arriving: list[str] = []  # members being admitted; one that hung up at once may be there twice
        self._numbers: dict[str, int] = {}  # member -> the last beat whose episodes were counted
        self._restarts: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        self._finished = self._closing = False
        self.env_steps = 0
        self.env_change = b""
        """Of the whole run, for the hosts."""

    @property
    def counts(self) -> tuple[int, int]:
        """(hosts connected, restarts of their workers)."""
        with self._lock:
            return len(self._open), sum(self._restarts.values())

    def admit(self, peer: frames.Connection, caller: Caller, where: str) -> None:
        """Admit a host that knows the token.

        Raises:
            LinkError: the run takes no hosts, or no more.
            OSError: it disconnected.
        """
        hello = caller.hello
        if self._record is None:
            raise LinkError("this run has no slots for other hosts")
        with self._lock:
            if self._finished:
                raise LinkError("this run has ended")
            here = {*self._open, *self._arriving}
            if len(here) >= MOST_HOSTS and hello.member not in here:
                raise LinkError(f"{MOST_HOSTS} hosts work for this run already, and no more are let in")
            self._arriving.append(hello.member)
        try:  # outside the lock: a slow host must not delay others
            welcome(peer, caller)
            send(peer, self._record)
        except BaseException:
            with self._lock:
                self._arriving.remove(hello.member)
            raise
        with self._lock:
            self._arriving.remove(hello.member)
            if self._closing:
                peer.shutdown()
                raise ConnectionAbortedError("this run has ended")
            old = self._open.pop(hello.member, None)
            self._open[hello.member] = peer
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(
                target=self._serve, args=(peer, hello.member, where), name="inference-host", daemon=True
            )
            self._threads.append(thread)
        if old is not None:
            old.shutdown()
        thread.start()

    def finish(self, patience: float) -> None:
        """Tell every host that the run is over, and wait up to ``patience`` seconds until they have left."""
        with self._lock:
            self._finished = True
        deadline = time.monotonic() + patience
        while self.counts[0] and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Disconnect the remaining hosts. They can still read that the run is over."""
        with self._lock:
            self._closing = True
            peers = list(self._open.values())
        for peer in peers:
            if self._finished:
                with suppress(OSError):
                    send(peer, Orders(0, finished=True))
            peer.shutdown()
        for thread in self._threads:
            thread.join()

    def _serve(self, peer: frames.Connection, member: str, where: str) -> None:
        name, left = where, False
        silence = _LOOKING_SECONDS
        try:
            while not left:
                message = receive_any(peer, silence)
                if isinstance(message, Join):
                    silence = self._silence
                    name = printable(f"{message.host}:{message.pid}")
                    send(peer, self._join(message, member, name))
                elif isinstance(message, Beat):
                    send(peer, self._beat(message, member, name))
                elif isinstance(message, Leave):
                    self._leases.leave(member)
                    left = True
                else:
                    raise FrameError(f"a {type(message).__name__} is nothing that a host says")
        except (OSError, FrameError) as error:
            with self._lock:
                replaced = self._open.get(member) is not peer
            if not (replaced or self._closing):
                self._tell(f"host {name} is away: {error}", "warning")
        else:
            self._tell(f"host {name} has left", "info")
        with self._lock:
            if self._open.get(member) is peer:
                del self._open[member]
            if left:
                self._numbers.pop(member, None)
        peer.close()

    def _join(self, wish: Join, member: str, name: str) -> Joined:
        kept = self._leases.keep(member, wish.holding)
        if not wish.wanted:
            if wish.holding:
                self._tell(f"host {name} is back with slots {_listed(kept)}", "info")
            return Joined(kept)
        try:
            slots = self._leases.take(member, wish.wanted)
        except ExhaustedError as error:
            return Joined([], full=str(error))
        self._tell(f"host {name} has joined with slots {_listed(slots)}", "info")
        return Joined(slots)

    def _beat(self, beat: Beat, member: str, name: str) -> Orders:
        if len(beat.returns) != len(beat.lengths):
            raise FrameError("a beat has as many returns as lengths of episodes")
        with self._lock:
            last = self._numbers.get(member) or self._leases.noted(member)
            fresh = beat.number > last
            self._numbers[member] = max(beat.number, last)
            self._restarts[member] = beat.restarts
            finished = self._finished
        if fresh:
            self._news.add(member, beat)
            for level, text in beat.texts:
                self._tell(f"{name}: {_plain(text)}", level)
        mine = self._leases.renew(member)
        return Orders(beat.number, finished, len(mine) < beat.slots, self.env_steps, self.env_change)


def _plain(text: str) -> str:
    """Lines that are safe for a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _listed(slots: list[tuple[int, int]]) -> str:
    return ", ".join(str(slot) for slot, _ in slots) or "none"
