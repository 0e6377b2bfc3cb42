"""The metrics that show why an agent does not learn: what each means, its healthy range, and what to change outside it.

Panel, ``apexrl doctor`` and the reference use this table. Ranges are ours: wide enough for the shipped presets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple

from apexrl.agents import AGENTS

Family = Literal["replay", "unrolls"]
"""What an agent learns from: transitions or sequences of a replay, or unrolls."""


class Diagnostic(NamedTuple):
    """One metric. Ranges include their ends; an infinite end is never left."""

    name: str
    meaning: str
    low: float = -math.inf
    high: float = math.inf
    if_low: str = ""  # what to change
    if_high: str = ""
    families: tuple[Family, ...] = ("replay", "unrolls")
    symptom: bool = False  # what another metric explains, where that is outside its range, too
    if_zero: str = ""  # what to change where 0 is no matter of scale

    @property
    def healthy(self) -> str:
        """The range in words."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"{self.low:g} … {self.high:g}"
        if math.isfinite(self.low):
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if math.isfinite(self.high) else "any"

    def excess(self, value: float) -> float:
        """How far ``value`` is outside: 0 inside, 1 for a factor of ten or for as much as the range is wide."""
        if self.low <= value <= self.high:
            return 0.0
        end = self.low if value < self.low else self.high
        if value > 0.0 and end > 0.0:
            return abs(math.log10(value / end))
        return abs(value - end) / max(1.0, abs(end))

    def advice(self, value: float, on: Collection[str] = ()) -> str:
        """What to change.

        Args:
            on: flags that are set already; they are left out where there is something else to change.
        """
        if value == 0.0 and self.if_zero:
            return self.if_zero
        text = self.if_low if value < self.low else self.if_high
        left = [part for part in re.split(", or |, ", text) if part not in on]
        return ", or ".join(filter(None, (", ".join(left[:-1]), *left[-1:]))) or text


_NORMALIZE_RETURNS: Final = "--normalize-returns, or --reward-scale"

DIAGNOSTICS: Final = (
    Diagnostic(
        "clipped_gradients",
        "share of gradients that --gradient-clip shortened since the last report",
        high=0.95,
        if_high=f"{_NORMALIZE_RETURNS}; else a larger --gradient-clip",
        families=("replay",),
        symptom=True,
    ),
    Diagnostic(
        "clipped_gradients",
        "the same; with unrolls every gradient may be clipped",
        high=1.0,
        families=("unrolls",),
    ),
    Diagnostic(
        "gradient_norm",
        "L2 norm of the gradient before it is clipped",
        high=1e4,
        if_high="--normalize-observations and --normalize-returns",
        symptom=True,
    ),
    Diagnostic(
        "relative_update",
        "L2 norm of one update over that of the parameters",
        low=3e-5,
        high=0.05,
        if_low="a larger --learning-rate",
        if_high="a smaller --learning-rate",
    ),
    Diagnostic(
        "dead_units",
        "share of ReLU units that are 0 for the whole batch",
        high=0.6,
        if_high="a smaller --learning-rate, or --normalize-observations",
    ),
    Diagnostic(
        "observation_size",
        "root mean square of the observations as the network gets them, without images",
        low=1e-3,
        high=50.0,
        if_low="--normalize-observations",
        if_high="--normalize-observations",
    ),
    Diagnostic(
        "reward_size",
        "root mean square of the rewards as they are learned from; of n-step returns with n steps",
        low=1e-3,
        high=100.0,
        if_low=_NORMALIZE_RETURNS,
        if_high=_NORMALIZE_RETURNS,
        if_zero="rewards on the way to the goal, or more exploration (no reward was seen)",
    ),
    Diagnostic(
        "support_edges",
        "probability of the least and the greatest category of the return",
        high=0.3,
        if_high="a smaller --v-min and a larger --v-max",
        families=("replay",),
    ),
    Diagnostic(
        "effective_samples",
        "(Σw)² / (n·Σw²) of the importance weights: the share of the batch that counts",
        low=0.3,
        if_low="a smaller --alpha or --beta",
        families=("replay",),
    ),
    Diagnostic(
        "effective_samples",
        "the same of the ratios of the policy now to the one that acted",
        low=0.5,
        if_low="a smaller --learning-rate, fewer --epochs, or --publish-period-updates 1",
        families=("unrolls",),
    ),
    Diagnostic(
        "samples_per_insert",
        "how often the learner reads each item of the replay",
        low=0.3,
        if_low="a larger --updates-per-step, or fewer actors",
        families=("replay",),
    ),
    Diagnostic(
        "kl",
        "estimate of KL(policy that acted ‖ policy now), in nats",
        low=-0.1,
        high=0.1,
        if_low="a smaller --learning-rate, or fewer --epochs",
        if_high="a smaller --learning-rate, or fewer --epochs",
        families=("unrolls",),
    ),
    Diagnostic(
        "clipped",
        "share of steps whose probability ratio is clipped",
        high=0.45,
        if_high="a smaller --learning-rate, fewer --epochs, or less policy lag",
        families=("unrolls",),
    ),
    Diagnostic(
        "explained_variance",
        "1 − Var(target − V) / Var(target): 1 is perfect, 0 as good as a constant",
        low=-1.0,
        if_low="--normalize-returns, or a larger --value-coefficient",
        families=("unrolls",),
    ),
    Diagnostic(
        "policy_lag_mean",
        "mean policy lag in updates",
        high=20.0,
        if_high="--publish-period-updates 1, a smaller --pull-period, or --max-policy-lag",
        families=("unrolls",),
    ),
    Diagnostic(
        "overestimation",
        "(expected − observed) / the larger of both, of discounted returns of an evaluation's episodes",
        high=0.5,
        if_high="--double, a smaller --learning-rate, or a slower target",
        families=("replay",),
    ),
)


def family(agent: str) -> Family:
    """What the agent learns from; one of your own counts as learning from a replay."""
    return "unrolls" if agent in AGENTS and AGENTS[agent].item == "unroll" else "replay"


def diagnostic(name: str, of: Family) -> Diagnostic | None:
    """The entry of a metric for agents of a family; None: it has none."""
    return next((entry for entry in DIAGNOSTICS if entry.name == name and of in entry.families), None)


class OutOfRange(NamedTuple):
    """A metric outside its range."""

    diagnostic: Diagnostic
    value: float


def outside(values: Mapping[str, float], of: Family) -> list[OutOfRange]:
    """Those of ``values`` that are outside their range: the farthest first, symptoms last."""
    found = [
        OutOfRange(entry, values[entry.name])
        for entry in DIAGNOSTICS
        if of in entry.families and math.isfinite(values.get(entry.name, math.nan))
    ]
    found = [one for one in found if one.diagnostic.excess(one.value)]
    return sorted(found, key=lambda one: (one.diagnostic.symptom, -one.diagnostic.excess(one.value)))


def overestimation(expected: float, observed: float) -> float:
    """How much more an agent expects than it gets, −2 … 2."""
    size = max(abs(expected), abs(observed))
    return (expected - observed) / size if size > 0.0 else 0.0
