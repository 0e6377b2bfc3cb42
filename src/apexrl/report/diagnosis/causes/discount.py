"""A discount that looks too near or too far."""

from __future__ import annotations

from itertools import pairwise

from apexrl.config.settings import as_flag
from apexrl.report.diagnosis.finding import Cause, Evidence
from apexrl.report.diagnosis.recorded_run import METRICS, RunRecord
from apexrl.report.number_format import number

SHORT = 10.0  # steps: 1 / (1 − γ) at γ = 0.9
ENDLESS = 10_000.0


def horizon(gamma: float) -> float:
    """1 / (1 − γ): the steps whose rewards count most."""
    return 1.0 / max(1.0 - gamma, 1e-12)


def gamma_small(record: RunRecord) -> Cause | None:
    """Episodes last many times longer than the discount looks ahead."""
    steps, length = horizon(record.setting("gamma", 0.99)), record.episode_length
    if length is None or steps > SHORT + 1e-6 or length < 5.0 * steps:
        return None
    return Cause(
        "gamma_small",
        "The discount makes the agent short-sighted",
        min(0.9, 0.45 + 0.02 * length / steps + 0.2 * (length > 8.0 * steps)),
        (
            Evidence(f"{record.given('gamma').text}: rewards count for about {steps:.1f} steps", "config.toml"),
            Evidence(f"episodes last {number(length)} steps", METRICS),
        ),
        as_flag("gamma", 0.99),
    )


def gamma_large(record: RunRecord) -> Cause | None:
    """Without discounting, values of what never terminates have no bound."""
    steps = horizon(record.setting("gamma", 0.99))
    if steps < ENDLESS:
        return None
    confidence, evidence = 0.3, [record.given("gamma")]
    ends = [one.terminated for one in record.later if one.terminated is not None]
    if ends and max(ends) < 0.5:
        evidence.append(Evidence(f"{1.0 - max(ends):.0%} or more of the episodes are cut by the time limit", METRICS))
        confidence += 0.3
    rising = record.values("agent/q") or record.values("agent/value")
    if len(rising) > 2 and all(abs(later) > abs(before) for before, later in pairwise(rising)):
        evidence.append(Evidence(f"values rise all the time, to {number(rising[-1])}", METRICS))
        confidence += 0.15
    over = record.overestimation
    if over is not None and over > 0.5:
        evidence.append(Evidence(f"overestimation {number(over)}", METRICS))
        confidence += 0.15
    return Cause("gamma_large", "Nothing is discounted", confidence, tuple(evidence), as_flag("gamma", 0.99))
