"""Episodes and warnings that a member keeps until the server has taken them.

Its size is bounded: the newest episodes are kept one by one and all of them as count and means, and equal warnings are
counted. So a member sends few messages with a renewal, and loses none while a server takes none.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from apexrl.links.redis.checked_values import encode
from apexrl.run.episode_metrics import Spread, Spreads

EPISODES_SINGLY: Final = 64
"""Of one message."""
MOST_TEXT: Final = 2000
"""Characters of a warning."""
_MOST_WARNINGS: Final = 32  # different waiting warnings
_MOST_AT_ONCE: Final = 8  # messages


class Note(NamedTuple):
    """One message."""

    kind: str
    data: bytes
    things: int
    """Number of episodes or warnings in it."""


class Outbox:
    """For several threads. ``said`` = ``told`` + ``dropped`` + ``waiting``, each episode and each warning counted.

    Attributes:
        said: added.
        told: taken by the server.
        dropped: without room, or not finite numbers.
    """

    def __init__(self) -> None:
        self.said = self.told = self.dropped = 0
        self._dropped_told = 0
        self._lock = threading.Lock()
        self._episodes: deque[tuple[float, int]] = deque()  # the newest
        self._count, self._returns, self._lengths = 0, 0.0, 0  # number of all episodes, and their sums
        self._metrics = Spreads()
        self._warnings: dict[tuple[str, str], int] = {}
        self._orders: deque[tuple[str, str]] = deque(maxlen=4)  # a member heeds one
        self._totals = self._totals_told = 0, 0  # environment steps and episodes of this host
        self._taken: list[Note] = []  # returned by `take`, perhaps not delivered

    @property
    def waiting(self) -> int:
        with self._lock:
            return self._waiting()

    def episodes(
        self,
        returns: Sequence[float],
        lengths: Sequence[int],
        metrics: Mapping[str, Spread] = MappingProxyType({}),
    ) -> None:
        """Add episodes that have ended."""
        with self._lock:
            self._metrics.merge(metrics)
            self.said += len(returns)
            for value, length in zip(returns, lengths, strict=True):
                if not math.isfinite(value):
                    self.dropped += 1
                    continue
                self._episodes.append((float(value), int(length)))
                self._count += 1
                self._returns += float(value)
                self._lengths += int(length)
            while len(self._episodes) > EPISODES_SINGLY:
                self._episodes.popleft()

    def warning(self, text: str, level: str) -> None:
        """``level``: ``warning`` or ``error``."""
        one = (level, text[:MOST_TEXT].encode(errors="replace").decode())
        with self._lock:
            self.said += 1
            if one in self._warnings or len(self._warnings) < _MOST_WARNINGS:
                self._warnings[one] = self._warnings.get(one, 0) + 1
            else:
                self.dropped += 1

    def order(self, kind: str, text: str) -> None:
        """Say that this host heeds an order."""
        with self._lock:
            self.said += 1
            self._orders.append((kind, text))

    def totals(self, env_steps: int, episodes: int) -> None:
        """Tell how much this host has done since it began, where its experience does not tell it."""
        with self._lock:
            self._totals = env_steps, episodes

    def take(self) -> list[Note]:
        """The next messages to deliver; the same ones until ``tell`` confirms them."""
        with self._lock:
            if not self._taken:
                self._taken = self._fill()
            return list(self._taken)

    def tell(self, notes: int) -> None:
        """Confirm that the server took the first ``notes`` messages of ``take``."""
        with self._lock:
            for note in self._taken[:notes]:
                self.told += note.things
            del self._taken[:notes]

    def give_up(self) -> None:
        """Drop everything that is left."""
        with self._lock:
            self.dropped += self._waiting()
            self._taken, self._warnings = [], {}
            self._episodes.clear()
            self._orders.clear()
            self._count = 0

    def _waiting(self) -> int:
        return self._count + len(self._orders) + sum(self._warnings.values()) + sum(note.things for note in self._taken)

    def _fill(self) -> list[Note]:
        notes = []
        if self._totals != self._totals_told:
            steps, episodes = self._totals_told = self._totals
            notes.append(_note("totals", {"env_steps": steps, "episodes": episodes}, 0))
        if self._count:
            values = {
                "returns": [one for one, _ in self._episodes],
                "lengths": [length for _, length in self._episodes],
                "count": self._count,
                "mean_return": self._returns / self._count,
                "mean_length": self._lengths / self._count,
            }
            if metrics := self._metrics.take():
                values["metrics"] = metrics
            notes.append(_note("episodes", values, self._count))
            self._episodes.clear()
            self._count, self._returns, self._lengths = 0, 0.0, 0
        while self._orders:
            kind, text = self._orders.popleft()
            notes.append(_note(kind, {"text": text, "count": 1}, 1))
        if self.dropped > self._dropped_told:
            notes.append(_note("dropped", {"count": self.dropped - self._dropped_told}, 0))
            self._dropped_told = self.dropped
        for level, text in list(self._warnings)[: _MOST_AT_ONCE - len(notes)]:
            count = self._warnings.pop((level, text))
            notes.append(_note("log", {"text": text, "level": level, "count": count}, count))
        return notes


def _note(kind: str, values: dict[str, Any], things: int) -> Note:
    return Note(kind, encode(values), things)
