"""Too little exploration, or so much that nothing else counts."""

from __future__ import annotations

from math import e, exp, log, pi, sqrt

from apexrl.config.settings import as_flag
from apexrl.report.diagnosis.finding import Cause, Evidence
from apexrl.report.diagnosis.recorded_run import METRICS, RunRecord
from apexrl.report.number_format import number

LEAST_STD = 0.1  # that is advised
LEAST_DEVIATION = 0.05  # of an action in a box, half of whose width is 1


def exploration_none(record: RunRecord) -> Cause | None:
    """ε or σ is 0, and nothing else explores."""
    if record.family == "unrolls" or record.settings.get("noisy"):
        return None
    name, usual = ("epsilon", 0.4) if record.discrete else ("sigma", 0.1)
    if not record.reads(name) or record.setting(name) > 1e-3:
        return None
    evidence = [record.given(name)]
    train, greedy = record.last("train_return"), record.last("eval_return")
    if train is not None and greedy is not None:
        evidence.append(Evidence(f"return {number(train)} in training, {number(greedy)} greedy", METRICS))
    return Cause("exploration_none", "Nothing explores", 0.85, tuple(evidence), as_flag(name, usual))


def entropy_large(record: RunRecord) -> Cause | None:
    """The bonus for entropy keeps the policy uniform."""
    entropy, coefficient = record.metric("entropy"), record.setting("entropy_coefficient")
    if entropy is None or not record.actions or not record.reads("entropy_coefficient") or coefficient <= 0.02:
        return None
    most = log(record.actions)
    if record.actions < 2 or entropy < 0.97 * most:
        return None
    return Cause(
        "entropy_large",
        "The bonus for entropy outweighs the rewards",
        0.55 + 0.3 * (coefficient >= 0.1),
        (
            Evidence(f"entropy {entropy:.3f}, of {record.actions} equally likely actions {most:.3f}", METRICS),
            record.given("entropy_coefficient"),
        ),
        as_flag("entropy_coefficient", 0.01),
    )


def entropy_lost(record: RunRecord) -> Cause | None:
    """The policy has become deterministic before anything was learned."""
    entropy = record.metric("entropy")
    if entropy is None or record.actions < 2 or record.learned > 0.5 or entropy > 0.02 * log(record.actions):
        return None
    if not record.reads("entropy_coefficient"):
        return None
    return Cause(
        "entropy_lost",
        "The policy stopped exploring too early",
        0.45,
        (Evidence(f"entropy {entropy:.2g} nats", METRICS), record.given("entropy_coefficient")),
        as_flag("entropy_coefficient", max(0.01, 3.0 * record.setting("entropy_coefficient"))),
    )


def deviation_lost(record: RunRecord) -> Cause | None:
    """Actions in a box have next to no deviation, so that a small step changes the policy beyond measure."""
    entropy = record.metric("entropy")
    if entropy is None or not record.numbers or not record.reads("least_std"):
        return None
    if record.setting("initial_std", 1.0) < LEAST_STD:  # as it is wanted
        return None
    deviation = exp(entropy / record.numbers) / sqrt(2.0 * pi * e)  # of normal numbers, their geometric mean
    jumps = record.outside("kl", above=True)
    if deviation > LEAST_DEVIATION or not (jumps or record.learned <= 0.5):
        return None
    said = f"entropy {entropy:.3g} nats: a standard deviation of {deviation:.2g}, where 1 is half a box"
    return Cause(
        "deviation_lost",
        "The policy's deviation vanished",
        0.6 + 0.3 * jumps,
        (
            Evidence(said, METRICS),
            *([record.seen("kl")] if jumps else []),
            record.given("least_std"),
        ),
        as_flag("least_std", LEAST_STD),
    )
