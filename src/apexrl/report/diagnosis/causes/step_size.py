"""Steps of the optimizer that are too large or too small."""

from __future__ import annotations

from math import log10

from apexrl.config.settings import as_flag
from apexrl.report.diagnosis.finding import Cause, Evidence
from apexrl.report.diagnosis.recorded_run import SUMMARY, RunRecord

_ADAM = (1e-5, 5e-3)
USUAL = {
    "adam": _ADAM,
    "adamw": _ADAM,
    "radam": _ADAM,
    "rmsprop": (1e-5, 1e-2),
    "adagrad": (1e-3, 0.2),
    "sgd": (1e-5, 0.5),
}
"""Step sizes that published recipes use, by optimizer."""


def learning_rate_large(record: RunRecord) -> Cause | None:
    """The step size is above any usual one, and units died or the policy jumps; or a number became infinite."""
    rate = max(record.setting("learning_rate"), record.setting("policy_learning_rate"))
    optimizer = str(record.settings["optimizer"])
    most = USUAL[optimizer][1]
    evidence = [record.given("learning_rate")]
    confidence = 0.35 + 0.1 * log10(rate / most) if rate > most else 0.0
    for name in ("dead_units", "kl", "clipped", "relative_update"):
        if record.outside(name, above=True):
            evidence.append(record.seen(name))
            confidence += 0.25
    if record.summary.get("error") and "NaN" in str(record.summary["error"]):
        evidence.append(Evidence("the run ended because a number was NaN or infinite", SUMMARY))
        confidence += 0.5
    if len(evidence) == 1 and rate <= 2.0 * most:
        return None
    better = min(rate / 10.0, most / 5.0)
    return Cause(
        "learning_rate_large",
        "The learning rate is too large",
        min(0.95, confidence),
        tuple(evidence),
        as_flag("learning_rate", float(f"{better:.1g}")),
    )


def learning_rate_small(record: RunRecord) -> Cause | None:
    """The step size is below any usual one, and an update hardly changes the parameters."""
    rate, optimizer = record.setting("learning_rate"), str(record.settings["optimizer"])
    least = USUAL[optimizer][0]
    confidence = 0.35 + 0.1 * log10(least / rate) if rate < least else 0.0
    evidence = [record.given("learning_rate")]
    pulled = record.metric("gradient_norm")  # where nothing pulls, small updates are right
    if record.outside("relative_update", above=False) and (pulled is None or pulled > 0.01):
        evidence.append(record.seen("relative_update"))
        confidence += 0.35
    if confidence < 0.1 or record.learned > 0.5:
        return None
    better = max(10.0 * rate, 10.0 * least, 1e-3 if USUAL[optimizer] == _ADAM else 0.0)
    return Cause(
        "learning_rate_small",
        "The learning rate is too small",
        min(0.95, confidence),
        tuple(evidence),
        as_flag("learning_rate", better),
    )


def gradient_clip_small(record: RunRecord) -> Cause | None:
    """Every gradient is clipped to a tiny part of itself, though rewards and observations have a usual size."""
    clip, norm, share = (
        record.setting("gradient_clip"),
        record.metric("gradient_norm"),
        record.metric("clipped_gradients"),
    )
    if not clip or norm is None or share is None or share < 0.95 or norm < 100.0 * clip:
        return None
    if record.outside("reward_size", above=True) or record.outside("observation_size", above=True):
        return None  # they make the gradients large
    confidence = 0.4 + 0.1 * min(3.0, log10(norm / clip) - 2.0)
    evidence = [record.given("gradient_clip"), record.seen("gradient_norm"), record.seen("clipped_gradients")]
    if record.outside("relative_update", above=False):
        evidence.append(record.seen("relative_update"))
        confidence += 0.2
    usual = 40.0 if record.family == "replay" else 0.5
    return Cause(
        "gradient_clip_small",
        "Gradients are clipped to almost nothing",
        confidence,
        tuple(evidence),
        as_flag("gradient_clip", max(usual, float(f"{norm:.1g}"))),
    )
