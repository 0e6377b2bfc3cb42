"""The uplink role, on an actor host: sends experience to the learner's host, and receives the weights."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from apexrl.config import Config
from apexrl.errors import FrameError, SpecError
from apexrl.protocols import Context
from apexrl.roles.newest_weights import VERSION_BITS, version_of
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work

if TYPE_CHECKING:
    from apexrl.links.redis.experience_stream import ExperienceSender
    from apexrl.links.redis.keys import RunKeys
    from apexrl.links.redis.server import Server
    from apexrl.replay import Replay
    from apexrl.shared.weights_board import WeightsBoard


FRAME_BYTES = 1 << 19
"""Chunks that are ready together share a frame up to this size."""

GENERATIONS = 1000
"""Generations that one member's uplinks may have: each numbers its chunks anew."""

COUNTED = ("env_steps", "episodes")
"""Counters of a host that travel with its frames, as totals."""

_UNLIMITED = 2**62
_HEAD_BYTES = 1 << 20  # of weights, at most: names and shapes
_REPORT_SECONDS = 1.0
_REFUSED_PAUSE_SECONDS = 1.0
_LAST_CHUNKS_SECONDS = 5.0  # at the end, for actors to close their writers
_LAST_COMMIT_SECONDS = 10.0  # … and for the learner's host to commit what was sent


class Uplink:
    """Owns this host's pass-on replay: takes what actors publish, sends it, and keeps it until it is committed.

    When experience cannot be sent, slots fill and actors wait, as on one machine. Weights are pulled once for all
    actors here, by a thread, onto the board that they read.
    """

    traits = RoleTraits("uplink", Work("chunks", "chunks/s", "carrying"), grace_seconds=30.0)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        server: Server,
        keys: RunKeys,
        run_id: str,
        member: str,
        generation: int,
        protocol: int,
        replay: Replay,
        weights: WeightsBoard,
    ) -> None:
        from apexrl.links.redis.experience_stream import ExperienceSender
        from apexrl.replay.chunks import ChunkSource

        hosts = config.hosts
        self._context = context
        self._linger = hosts.send_period
        self._replay = replay
        self._source = ChunkSource(replay)
        self._sender: ExperienceSender = ExperienceSender(
            server,
            keys,
            run_id=run_id,
            member=member,
            generation=generation * GENERATIONS + context.generation,
            schema=self._source.schema,
            window_bytes=int(hosts.window_mb * 2**20),
            when_full=hosts.when_full,
            compression=hosts.compression,
            protocol=protocol,
        )
        self._weights = WeightsThread(server, keys, run_id, weights)
        self._pace = Pace(hosts.send_period, self._source.item_steps) if hosts.when_full == "wait" else None
        self._next_report = 0.0
        self._weights_trouble = ""
        self._left = 0

    def step(self) -> bool:
        """Take what is ready, send what may be sent. False: nothing moved."""
        self._report()
        took = self._take(self._linger)
        moved = self._sender.step(0.0 if took else min(self._context.patience, 0.02))
        if not took and not moved:
            self._source.wait(min(self._context.patience, 0.02))
        return took or moved

    def close(self) -> None:
        """Send what actors leave behind, and wait until it is committed."""
        self._pace = None
        deadline = time.monotonic() + (0.0 if self._context.hurried() else _LAST_CHUNKS_SECONDS)
        while time.monotonic() < deadline:
            busy = self._replay.stats()["lanes_active"] > 0
            if not self._take(0.0) and not busy and not len(self._replay):
                break
            self._sender.step(0.02)
        self._left = len(self._replay)
        self._sender.close(0.5 if self._context.hurried() else _LAST_COMMIT_SECONDS)
        self._report(last=True)
        self._weights.close()

    def _report(self, last: bool = False) -> None:
        """Once a second: the counters of this host."""
        for text in self._weights.take_refusals():
            self._context.send("log", text=text, level="warning")
        now = self._context.clock()
        if now < self._next_report and not last:
            return
        self._next_report = now + _REPORT_SECONDS
        if self._weights.trouble != self._weights_trouble:
            self._weights_trouble = self._weights.trouble
            words = f"they cannot be read: {self._weights_trouble}; trying again"
            text = f"the learner's weights: {words if self._weights_trouble else 'they arrive again'}"
            self._context.send("log", text=text, level="warning" if self._weights_trouble else "info")
        sender = self._sender
        self._context.send(
            "uplink",
            sent_items=sender.sent_items,
            committed_items=sender.committed_items,
            dropped_items=sender.dropped_items,
            uncommitted_items=sender.uncommitted_items,
            uncommitted_bytes=sender.uncommitted_bytes,
            resent_frames=sender.resent_frames,
            left_items=self._left,
            trouble=sender.trouble,
            weights_trouble=self._weights_trouble,
        )

    def _take(self, linger: float) -> bool:
        sender = self._sender
        allowed = _UNLIMITED
        if self._pace is not None:
            self._pace.committed(time.monotonic(), sender.committed_items, sender.reconnects)
            allowed = max(0, int(self._pace.items) - sender.uncommitted_items)
        room = min(sender.room, FRAME_BYTES, sender.most_frame_bytes)
        if not sender.met or not allowed:  # what the server takes is not known yet; or too much is under way
            room = 0
        heads, body = self._source.take(room, linger, allowed)
        if not heads:
            return False
        self._sender.offer(heads, body, {name: self._context.total(name) for name in COUNTED})
        if self._pace is not None:
            self._pace.offered(time.monotonic(), self._sender.sent_items)
        self._context.count(chunks=len(heads))
        return True


class Pace:
    """How many items actors may be ahead of what is committed: as many as are committed while one is under way.

    A window of bytes alone would let actors run far ahead of a learner that holds them back, and it would train on
    steps of long ago. As in congestion control by delay (Brakmo & Peterson 1995, TCP Vegas), what counts is how long
    things wait.

    Args:
        linger: seconds that a step may wait on this host to be sent.
        item_steps: steps that an item stands for.
    """

    # Ours, tried on CartPole over links of 20 ms; with 0.5 s and three journeys queues stood for seconds.
    LEAST, FIRST = 256, 1024  # steps; the first ones before any rate is known
    LEAST_SECONDS, JOURNEYS, OVER_SECONDS = 0.1, 2.0, 1.0

    def __init__(self, linger: float, item_steps: int = 1) -> None:
        self._linger = linger
        self._least = max(1, self.LEAST // item_steps)
        self.items = float(max(1, self.FIRST // item_steps))
        self._journey = float("inf")  # seconds from an offer to its commit, at best: later ones wait in queues of ours
        self._connection = 0
        self._offers: deque[tuple[int, float]] = deque(maxlen=4096)  # (items offered until then, when)
        self._commits: deque[tuple[int, float]] = deque()

    def offered(self, now: float, items: int) -> None:
        """``items`` in all have been offered."""
        self._offers.append((items, now))

    def committed(self, now: float, items: int, connection: int = 0) -> None:
        """``items`` in all are committed. With another ``connection`` the way may be another one too."""
        if connection != self._connection:
            self._connection, self._journey = connection, float("inf")
            self._offers.clear()
        if self._commits and self._commits[-1][0] == items:
            return
        self._commits.append((items, now))
        while len(self._commits) > 2 and now - self._commits[1][1] > self.OVER_SECONDS:
            self._commits.popleft()
        while self._offers and self._offers[0][0] <= items:
            journey = max(0.001, now - self._offers.popleft()[1])
            self._journey = min(self._journey, journey)
        before, since = self._commits[0]
        if now - since < self.OVER_SECONDS / 4:
            return
        rate = (items - before) / (now - since)
        ahead = self._linger + max(self.LEAST_SECONDS, self.JOURNEYS * min(self._journey, 1.0))
        self.items = max(self._least, rate * ahead)


class WeightsThread:
    """Puts every new version of the run's weights onto this host's board, also an earlier one of a learner that took
    over from another (``VERSION_BITS``)."""

    def __init__(self, server: Server, keys: RunKeys, run_id: str, board: WeightsBoard) -> None:
        from apexrl.links.redis.weights_downloader import WeightsDownloader

        most = 2 * board.capacity + _HEAD_BYTES
        self._downloader = WeightsDownloader(server, keys, run_id=run_id, most_bytes=most)
        self._board = board
        self._closing = False
        self._error: BaseException | None = None
        self._refusals: deque[str] = deque(maxlen=8)
        self._thread = threading.Thread(target=self._run, name="weights", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why none can be had now, in words; empty when all is well."""
        return self._downloader.trouble

    def take_refusals(self) -> list[str]:
        """Why weights were refused since the last call; raises what ended the thread."""
        if self._error is not None:
            raise self._error
        texts = list(self._refusals)
        self._refusals.clear()
        return texts

    def close(self) -> None:
        self._closing = True
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            while not self._closing:
                try:
                    before = self._board.version
                    newest = self._downloader.wait(newer_than=version_of(before), timeout=0.25)
                    if newest is not None:
                        version, arrays = newest
                        if version != version_of(version):
                            raise FrameError(f"version {version} is none that a learner comes to")
                        learners = (before >> VERSION_BITS) + (version < version_of(before))
                        self._board.publish(arrays, (learners << VERSION_BITS) + version)
                except (FrameError, SpecError) as error:  # actors go on with what they have
                    self._refusals.append(f"weights were refused: {error}")
                    time.sleep(_REFUSED_PAUSE_SECONDS)
        except BaseException as error:
            self._error = error
        finally:
            self._downloader.close()
