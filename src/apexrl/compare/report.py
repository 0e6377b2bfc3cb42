"""The state of a comparison: its plan and the outcomes so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from apexrl.compare.outcome import Outcome
from apexrl.compare.plan import Arm, Plan


@dataclass
class Report:
    """The outcomes of a comparison so far."""

    plan: Plan
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    """(label of the arm, seed) -> outcome."""
    interrupted: bool = False

    @property
    def missing(self) -> list[tuple[Arm, int]]:
        """Arms and seeds that have not run yet."""
        return [(arm, seed) for arm, seed in self.plan.order() if (arm.label, seed) not in self.outcomes]

    @property
    def ordered(self) -> list[Outcome]:
        """All outcomes, in the order of the plan."""
        keys = [(arm.label, seed) for arm, seed in self.plan.order()]
        return [self.outcomes[key] for key in keys if key in self.outcomes]

    @property
    def failed(self) -> list[Outcome]:
        return [one for one in self.ordered if one.failure]

    def of(self, arm: Arm) -> list[Outcome]:
        """The outcomes of one arm, by seed."""
        found = [self.outcomes.get((arm.label, seed)) for seed in self.plan.seeds]
        return [one for one in found if one is not None]
