"""Simulated throughput for the auto-tuner: what counts give, what noise and drift do to it, and where the tuner ends.

Rates are in arbitrary units. Shapes follow what limits such systems: contention, whichever part is slowest, and
processors that are shared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from apexrl.launch.tuner import Tuner

Rate = Callable[..., float]
"""Counts in the order of the bounds -> throughput without noise."""


class Shape(NamedTuple):
    """A surface, and where a tuner begins on it."""

    bounds: dict[str, tuple[int, int]]
    start: dict[str, int]
    rate: Rate
    windows: int
    """That the tuner gets."""

    @property
    def optimum(self) -> float:
        """The largest rate within the bounds."""
        counts = itertools.product(*(range(least, most + 1) for least, most in self.bounds.values()))
        return max(self.rate(*setting) for setting in counts)


def contention(n: int) -> float:
    """Rises, bends, falls slowly: best at 35 of 64 (Gunther 1993, universal scalability law)."""
    return n / (1.0 + 0.02 * (n - 1) + 0.0008 * n * (n - 1))


def plateau(n: int) -> float:
    """Linear up to 12, then the learner is the limit."""
    return float(min(n, 12))


def cliff(n: int) -> float:
    """Linear up to 9, then every one more takes 4 %."""
    return min(n, 9) * 0.96 ** max(0, n - 9)


def crowd(n: int) -> float:
    """One is best, every one more takes a tenth of that."""
    return 1.0 / (1.0 + 0.1 * (n - 1))


def ridge(actors: int, servers: int) -> float:
    """A server answers four actors, and all share processors: only both together help."""
    return min(actors, 4 * servers) / (1.0 + ((actors + 2 * servers) / 40.0) ** 2)


def shared(actors: int, learners: int) -> float:
    """√(steps · updates) where actors and learners share eight processors."""
    share = min(1.0, 8.0 / (0.25 * actors + learners))
    return math.sqrt(actors * share * 10.0 * (learners * share) ** 0.7)


def threads(agents: int, predictors: int, trainers: int) -> float:
    """GA3C: a pipeline of three, as fast as its slowest part, nearly; threads take turns with one another."""
    parts = (0.4 * agents, 5.0 * predictors, 7.0 * trainers)
    together = sum(part**-4 for part in parts) ** -0.25
    return together / (1.0 + 0.004 * agents + 0.02 * (predictors + trainers) ** 1.5)


SHAPES = {
    "contention": Shape({"actor": (1, 64)}, {"actor": 2}, contention, 100),
    "plateau": Shape({"actor": (1, 32)}, {"actor": 1}, plateau, 100),
    "cliff, from below": Shape({"actor": (1, 32)}, {"actor": 2}, cliff, 100),
    "cliff, from above": Shape({"actor": (1, 32)}, {"actor": 32}, cliff, 100),
    "crowd": Shape({"actor": (1, 16)}, {"actor": 8}, crowd, 100),
    "ridge": Shape({"actor": (1, 64), "server": (1, 16)}, {"actor": 4, "server": 1}, ridge, 200),
    "shared": Shape({"actor": (1, 64), "learner": (1, 8)}, {"actor": 2, "learner": 1}, shared, 200),
    "threads": Shape(
        {"agent": (1, 64), "predictor": (1, 8), "trainer": (1, 8)},
        {"agent": 32, "predictor": 2, "trainer": 2},
        threads,
        200,
    ),
    "threads, from one": Shape(
        {"agent": (1, 64), "predictor": (1, 8), "trainer": (1, 8)},
        {"agent": 1, "predictor": 1, "trainer": 1},
        threads,
        200,
    ),
}

DRIFTS: Mapping[str, Callable[[float], float]] = {
    "none": lambda done: 1.0,
    "slower": lambda done: 1.0 - 0.3 * done,
    "to and fro": lambda done: 1.0 + 0.15 * math.sin(6.0 * math.pi * done),
}
"""Of the whole surface, as a function of the share of windows done."""


def simulate(shape: Shape, noise: float, drift: str, seed: int) -> Tuner:
    """A tuner after ``shape.windows`` windows.

    Args:
        noise: standard deviation of a window's log-normal factor, so 0.1 is about 10 %.
    """
    rng = np.random.default_rng(seed)
    tuner = Tuner(shape.bounds, shape.start, seed)
    for window in range(shape.windows):
        true = shape.rate(*tuner.next().values()) * DRIFTS[drift](window / shape.windows)
        tuner.tell(true * math.exp(noise * rng.standard_normal()))
    return tuner


def share(shape: Shape, setting: Mapping[str, int]) -> float:
    """What ``setting`` gives, as a fraction of the optimum."""
    return shape.rate(*setting.values()) / shape.optimum
