"""The tuner: decides how many workers of each kind to try next, from the measured throughput.

GA3C (Babaeizadeh et al. 2017, section 4.4) makes a random change, runs it, and keeps it unless its window was slower
than the one before. There one noisy window decides, windows differ in length, and ties drift. Here

- all windows are equally long, and challengers alternate with the best so far (top-two Thompson sampling, Russo 2016);
- a model of all windows (``throughput_model``) estimates the noise, learns from neighbouring settings, and separates a
  drift of the whole run from a difference between settings;
- a change must win by more than its uncertainty, else the best so far stays;
- when no more gain is expected it settles there, and looks again rarely.

It is pure: it starts nothing and reads no clock. ``next`` gives the setting of the coming window, ``tell`` takes its
throughput.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.launch.throughput_model import Floats, ThroughputModel

Verdict = Literal["begins", "kept", "adopted", "settled", "rests", "looks again", "limited"]
"""What a window led to.

``adopted``: another setting is the best now; ``kept``: the best stays; ``settled``: nothing more is expected;
``rests``: a window at the best while settled; ``looks again``: the last of these; ``limited``: no window, a count was
out of reach.
"""

_OCTAVES = (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)  # from the best to its challengers, in every dimension
_HYSTERESIS = 1.0  # standard deviations of a difference that a change must win by
_LEAST_GAIN = 0.01  # natural logarithm of the rate: 1 %
_SETTLED_GAIN = 0.01  # 1 %: less is expected of any challenger
_SETTLED_FOR = 4  # windows since the last change, before it settles
_SAMPLES = 64
_JITTER = 1e-8  # against rounding, in a covariance of logarithms
_NEIGHBOURS = 200  # thought of at once; of three counts there may be 343
_REST, _LONGEST_REST = 30, 240  # windows until it looks again: twice as long every time
_LEAST_SHARE = 0.01  # of the highest rate: what a window in which nothing moved is taken for


class Decision(NamedTuple):
    """What one window led to."""

    window: int
    setting: dict[str, int]
    """Measured in it."""
    rate: float
    best: dict[str, int]
    """From now on."""
    verdict: Verdict
    gain: float
    """Of the best over the best before it, as believed: 0.1 is 10 % more; 0 where it stayed."""


class Tuner:
    """Tunes integer counts.

    Args:
        bounds: name of a count -> (least, most), both of which may be run.
        start: what is run at first.
        seed: of its draws.

    Raises:
        ValueError: a start outside its bounds, or a bound below 1.
    """

    def __init__(self, bounds: Mapping[str, tuple[int, int]], start: Mapping[str, int], seed: int) -> None:
        if bounds.keys() != start.keys() or not bounds:
            raise ValueError(f"bounds are of {', '.join(bounds)}, and the start is of {', '.join(start)}")
        for name, (least, most) in bounds.items():
            if not 1 <= least <= start[name] <= most:
                raise ValueError(f"{name} must begin within {least} … {most}, not at {start[name]}; the least is 1")
        self.decisions: list[Decision] = []
        self.settled = False
        self._bounds = dict(bounds)
        self._names = tuple(bounds)
        self._best = tuple(start[name] for name in self._names)
        self._asked = self._best
        self._tried = {self._best}
        self._surface = ThroughputModel(len(self._names))
        self._rng = np.random.default_rng(seed)
        self._known: tuple[Any, tuple[NDArray[np.int64], Floats, Floats]] | None = None  # after which window, of what
        self._highest = 0.0  # rate ever told
        self._since_change = 0  # windows
        self._rest, self._resting = _REST, 0  # windows

    @property
    def best(self) -> dict[str, int]:
        """The best setting so far."""
        return self._named(self._best)

    @property
    def noise(self) -> float:
        """Standard deviation of one window's rate, as a fraction of it; estimated."""
        return self._surface.scales.noise

    def next(self) -> dict[str, int]:
        """What to run in the coming window; the same until ``tell``."""
        return self._named(self._asked)

    def tell(self, rate: float) -> Decision:
        """Enter the throughput of the window that ``next`` asked for, in any unit.

        Raises:
            ValueError: it is negative or not finite.
        """
        if not (math.isfinite(rate) and rate >= 0.0):
            raise ValueError(f"a throughput must be a finite number, 0 or more, not {rate}")
        self._highest = max(self._highest, rate)
        measured, gain = self._asked, 0.0
        self._surface.add(measured, max(rate, _LEAST_SHARE * self._highest) or 1.0)
        self._tried.add(measured)
        verdict: Verdict
        if self.settled:
            self._resting -= 1
            self.settled = self._resting > 0
            verdict = "rests" if self.settled else "looks again"
        else:
            verdict, gain = self._judge()
        self._asked = self._best if self.settled else self._challenger()
        decision = Decision(self._surface.windows - 1, self._named(measured), rate, self.best, verdict, gain)
        self.decisions.append(decision)
        return decision

    def limit(self, name: str, most: int) -> None:
        """A count can be no more than ``most``, as it turned out: what was asked for with more is asked no longer.

        Raises:
            ValueError: less than its least.
        """
        least, before = self._bounds[name]
        if most < least:
            raise ValueError(f"{name} cannot be limited to {most}: its least is {least}")
        self._bounds[name] = (least, min(most, before))
        self._best = self._within(self._best)
        self._asked = self._within(self._asked)
        self.decisions.append(Decision(self._surface.windows, self.next(), math.nan, self.best, "limited", 0.0))

    def _judge(self) -> tuple[Verdict, float]:
        """Whether another setting is the best now, and whether to go on looking."""
        settings, means, covariance = self._beliefs()
        here = 0  # the best comes first
        gains = means - means[here]
        variances = np.diag(covariance) + covariance[here, here] - 2.0 * covariance[here]
        tried = np.array([tuple(setting) in self._tried for setting in settings.tolist()])
        wins = tried & (gains > _LEAST_GAIN) & (gains > _HYSTERESIS * np.sqrt(np.maximum(variances, 0.0)))
        self._since_change += 1
        if wins.any():
            there = int(np.argmax(np.where(wins, gains, -np.inf)))
            self._best = tuple(settings[there].tolist())
            self._since_change = 0
            return "adopted", math.expm1(gains[there])
        if self._surface.windows == 1:
            return "begins", 0.0
        draws = self._draws(means, covariance, _SAMPLES)
        expected = float((draws.max(1) - draws[:, here]).mean())
        if self._since_change >= _SETTLED_FOR and expected < _SETTLED_GAIN:
            self.settled = True
            self._resting = self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
            return "settled", 0.0
        return "kept", 0.0

    def _challenger(self) -> tuple[int, ...]:
        """What to measure next: the best of one draw from what is believed, or every other time the best but the leader
        (Russo 2016, Simple Bayesian Algorithms for Best Arm Identification, algorithm 4.2.3)."""
        settings, means, covariance = self._beliefs()
        if len(settings) == 1 or self._surface.windows < 2:
            return self._best  # the first setting is measured twice
        drawn = self._draws(means, covariance, 1)[0]
        if self._rng.random() < 0.5:
            drawn[0] = -np.inf
        return tuple(settings[int(np.argmax(drawn))].tolist())

    def _beliefs(self) -> tuple[NDArray[np.int64], Floats, Floats]:
        """The neighbourhood [C, D] of the best, and mean [C] and covariance [C, C] of what it gives."""
        if self._known is None or self._known[0] != (self._surface.windows, self._best):
            settings = self._neighbourhood()
            self._known = (self._surface.windows, self._best), (settings, *self._surface.posterior(settings))
        return self._known[1]

    def _draws(self, means: Floats, covariance: Floats, count: int) -> Floats:
        """[count, C] surfaces that may be."""
        root = np.linalg.cholesky(covariance + _JITTER * np.eye(len(means)))
        drawn: Floats = means + self._rng.standard_normal((count, len(means))) @ root.T
        return drawn

    def _neighbourhood(self) -> NDArray[np.int64]:
        """Settings within an octave of the best in every count, int64 [C, D]; the best itself comes first."""
        choices = [self._near(name, count) for name, count in zip(self._names, self._best, strict=True)]
        others = [setting for setting in itertools.product(*choices) if setting != self._best]
        measured = [setting for setting in others if setting in self._tried]  # they may be adopted
        fresh = [setting for setting in others if setting not in self._tried]
        room = max(0, _NEIGHBOURS - len(measured))
        if len(fresh) > room:
            fresh = [fresh[i] for i in self._rng.permutation(len(fresh))[:room]]
        return np.array([self._best, *measured, *fresh], np.int64)

    def _near(self, name: str, count: int) -> list[int]:
        least, most = self._bounds[name]
        near = {round(count * 2.0**octaves) for octaves in _OCTAVES} | {count - 1, count + 1}
        return sorted(value for value in near if least <= value <= most)

    def _within(self, setting: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(min(count, self._bounds[name][1]) for name, count in zip(self._names, setting, strict=True))

    def _named(self, setting: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self._names, setting, strict=True))
