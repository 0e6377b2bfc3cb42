"""A tuner that follows a script, in place of the real one."""

from __future__ import annotations

import math
from typing import ClassVar

from apexrl.launch.tuner import Decision


class Script:
    """A tuner that asks for settings in order, and then for the last one."""

    settings: ClassVar[list[dict[str, int]]] = []
    made: ClassVar[list[Script]] = []

    def __init__(self, bounds: dict[str, tuple[int, int]], start: dict[str, int], seed: int) -> None:
        self.bounds = bounds
        self.start = start
        self.settled = False
        self.noise = 0.1
        self.decisions: list[Decision] = []
        self.limits: list[tuple[str, int]] = []
        self.rates: list[float] = []
        self.most = {name: most for name, (_, most) in bounds.items()}
        Script.made.append(self)

    def next(self) -> dict[str, int]:
        asked = [self.start, *self.settings][min(len(self.rates), len(self.settings))]
        return {name: min(count, self.most[name]) for name, count in asked.items()}

    @property
    def best(self) -> dict[str, int]:
        return self.next()

    def tell(self, rate: float) -> Decision:
        measured = self.next()
        self.rates.append(rate)
        self.decisions.append(Decision(len(self.rates) - 1, measured, rate, self.best, "kept", 0.0))
        return self.decisions[-1]

    def limit(self, name: str, most: int) -> None:
        self.limits.append((name, most))
        self.most[name] = most
        self.decisions.append(Decision(len(self.rates), self.next(), math.nan, self.best, "limited", 0.0))
