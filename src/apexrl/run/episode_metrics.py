"""Numbers that environments tell of their episodes, summed up: bounded in memory, and in the number of names."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

MOST_NAMES: Final = 64
"""Metrics of a run, and of one report."""
MOST_CHARACTERS: Final = 100
"""Of a name."""
AVERAGED: Final = 100
"""Episodes over which a run's status tells mean, least and greatest; more where many were told of at once."""


class Spread(NamedTuple):
    """One metric over some episodes."""

    episodes: int
    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, told: Any) -> Spread | None:
        """What another process says, as ``[episodes, mean, least, most]``; None: it is no such thing."""
        if not isinstance(told, list | tuple) or len(told) != 4 or not all(map(_finite, told)):
            return None
        episodes, mean, least, most = told
        whole = isinstance(episodes, int) and 0 < episodes < 2**53
        return cls(episodes, float(mean), float(least), float(most)) if whole and least <= most else None


def merged(spreads: Iterable[Spread]) -> Spread:
    """One of all their episodes; there is at least one."""
    parts = list(spreads)
    episodes = sum(part.episodes for part in parts)
    mean = math.fsum(part.mean * part.episodes for part in parts) / episodes
    return Spread(episodes, mean, min(part.least for part in parts), max(part.most for part in parts))


class Spreads:
    """The metrics of episodes, each summed up. A name for which there is no room is left out.

    Attributes:
        added: since the last ``take``.
        left_out: values of names for which there was no room.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self.added: dict[str, Spread] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """The metrics of one episode; finite numbers."""
        self.merge({name: Spread(1, value, value, value) for name, value in metrics.items()})

    def merge(self, spreads: Mapping[str, Spread]) -> None:
        for name, spread in spreads.items():
            before = self.added.get(name)
            if before is None and len(self.added) >= MOST_NAMES:
                self.left_out += spread.episodes
            else:
                self.added[name] = spread if before is None else merged((before, spread))

    def take(self) -> dict[str, Spread]:
        """What was added since the last call."""
        taken, self.added = self.added, {}
        return taken


class LatestEpisodes:
    """The metrics of the latest episodes of a run, by name.

    Attributes:
        left_out: values of names beyond the ``MOST_NAMES`` that came first.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._told: dict[str, deque[Spread]] = {}

    def hear(self, spreads: Mapping[str, Spread]) -> None:
        for name, spread in spreads.items():
            if name not in self._told and len(self._told) >= MOST_NAMES:
                self.left_out += spread.episodes
                continue
            told = self._told.setdefault(name, deque())
            told.append(spread)
            while sum(one.episodes for one in told) - told[0].episodes >= AVERAGED:
                told.popleft()

    @property
    def lately(self) -> dict[str, Spread]:
        """Each over the latest ``AVERAGED`` episodes that told it."""
        return {name: merged(told) for name, told in self._told.items()}


def told_spreads(told: Any) -> dict[str, Spread]:
    """What another process says of its episodes' metrics, as far as it is that. It may be a stranger."""
    if not isinstance(told, Mapping):
        return {}
    found = {}
    for name, value in list(told.items())[:MOST_NAMES]:
        spread = Spread.of(value)
        if spread is not None and isinstance(name, str) and 0 < len(name) <= MOST_CHARACTERS and name.isprintable():
            found[name] = spread
    return found


def scalars(spreads: Mapping[str, Spread], prefix: str) -> dict[str, float | None]:
    """``PREFIX/NAME_mean``, ``_min`` and ``_max`` of each."""
    return {
        f"{prefix}/{name}_{what}": value
        for name, spread in spreads.items()
        for what, value in (("mean", spread.mean), ("min", spread.least), ("max", spread.most))
    }


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
