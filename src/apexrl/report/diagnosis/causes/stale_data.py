"""Experience of old policies, values that no return bears out, and batches of which little counts."""

from __future__ import annotations

from math import log10

from apexrl.config.settings import as_flag
from apexrl.report.diagnosis.finding import Cause, Evidence
from apexrl.report.diagnosis.recorded_run import METRICS, RunRecord
from apexrl.report.metric_ranges import outside
from apexrl.report.number_format import number

ENOUGH_UPDATES = 500  # before them values are what the network began with


def policy_lag_large(record: RunRecord) -> Cause | None:
    """Unrolls come from policies that are many updates old."""
    if record.family != "unrolls":
        return None
    lag = record.metric("policy_lag_mean")
    if lag is None or not record.outside("policy_lag_mean", above=True):
        return None
    evidence = [record.seen("policy_lag_mean")]
    confidence = 0.5 + 0.15 * min(2.0, log10(lag / 20.0))
    if (record.metric("clipped") or 0.0) > 0.3:
        evidence.append(record.seen("clipped"))
        confidence += 0.15
    if lag > 0.2 * record.updates:
        evidence.append(Evidence(f"that is {lag / record.updates:.0%} of all {record.updates:.0f} updates", METRICS))
        confidence += 0.1
    change = as_flag("pull_period", 1)
    if record.setting("publish_period_updates", 1.0) > 1.0:
        evidence.append(record.given("publish_period_updates"))
        change = as_flag("publish_period_updates", 1)
    return Cause("policy_lag_large", "The policies that act are too old", confidence, tuple(evidence), change)


def values_too_high(record: RunRecord) -> Cause | None:
    """The agent expects much more than it gets."""
    over = record.overestimation
    if record.family == "unrolls" or record.updates < ENOUGH_UPDATES or over is None:
        return None
    if not outside({"overestimation": over}, "replay"):
        return None
    last = record.later[-1]
    seen = [Evidence(f"overestimation {number(over)}", METRICS)]
    if last.expected is not None and last.observed is not None:
        both = f"expected return {number(last.expected, small=True)}, observed {number(last.observed, small=True)}"
        seen.append(Evidence(both, METRICS))
    if record.reads("double") and not record.settings["double"]:
        change = as_flag("double", True)
    elif record.setting("polyak"):
        change = as_flag("polyak", record.setting("polyak") / 2.0)
    else:
        change = as_flag("learning_rate", record.setting("learning_rate") / 3.0)
    return Cause("values_too_high", "Values are too high", 0.4, tuple(seen), change)


def weights_uneven(record: RunRecord) -> Cause | None:
    """A few samples of each batch outweigh all others."""
    if not record.outside("effective_samples", above=False):
        return None
    if record.family == "unrolls":
        change = as_flag("learning_rate", record.setting("learning_rate") / 3.0)
    else:
        change = as_flag("beta", 0.4) if record.setting("beta") > 0.4 else as_flag("alpha", 0.3)
    return Cause("weights_uneven", "Few samples of a batch count", 0.45, (record.seen("effective_samples"),), change)
