"""A replay that is too small, read too seldom, or learned from with a target that stands still."""

from __future__ import annotations

from apexrl.config.settings import as_flag
from apexrl.report.diagnosis.finding import Cause, Evidence
from apexrl.report.diagnosis.recorded_run import METRICS, RunRecord
from apexrl.report.number_format import count

SMALL = 1_000  # steps
FEW_UPDATES = 500
ENOUGH_STEPS = 5_000
READINGS = 8.0  # of each step, to be suggested
FOLLOWED = 0.5  # of the way from a target network's first weights to the learned ones


def replay_small(record: RunRecord) -> Cause | None:
    """The replay is full and holds only the last few episodes."""
    if record.family == "unrolls":
        return None
    stride = record.setting("sequence_stride", 1.0) if record.reads("sequence_stride") else 1.0
    capacity = record.setting("capacity") * stride
    size, length = (record.last("replay_size") or 0.0) * stride, record.episode_length or 1.0
    if size < 0.9 * capacity or capacity >= max(SMALL, 2.0 * min(length, 10.0 * SMALL)):
        return None
    kept = Evidence(f"the replay holds {count(size)} steps, {size / length:.1f} episodes", METRICS)
    return Cause(
        "replay_small",
        "The replay is too small",
        0.75,
        (record.given("capacity"), kept),
        as_flag("capacity", int(100_000 / stride)),
    )


def updates_few(record: RunRecord) -> Cause | None:
    """Experience is hardly learned from."""
    steps, updates = record.env_steps, record.updates
    if steps < ENOUGH_STEPS:
        return None
    evidence = [Evidence(f"{count(updates)} updates in {count(steps)} environment steps", METRICS)]
    if not updates:
        change = f"{as_flag('min_size', 1000)}, or a smaller --batch-size"
        return Cause("updates_few", "No update was made", 0.95, tuple(evidence), change)
    if record.family == "unrolls":
        return None
    confidence = 0.5
    if record.outside("samples_per_insert", above=False):
        evidence.append(record.seen("samples_per_insert"))
        confidence = 0.8 if updates < FEW_UPDATES else 0.5
    elif updates >= FEW_UPDATES / 10:
        return None
    per_step = READINGS / max(1.0, record.setting("batch_size", 1.0))
    return Cause(
        "updates_few",
        "There are too few updates for the experience",
        confidence,
        tuple(evidence),
        as_flag("updates_per_step", float(f"{per_step:.2g}")),
    )


def target_rare(record: RunRecord) -> Cause | None:
    """The target network was copied so seldom, or follows so slowly, that values reach only a few steps back."""
    if record.family == "unrolls" or record.updates < FEW_UPDATES:
        return None
    updates, polyak = record.updates, record.setting("polyak")
    if record.reads("polyak") and polyak:
        followed = 1.0 - (1.0 - polyak) ** updates
        if followed >= FOLLOWED:
            return None
        said, confidence = f"the target went {followed:.1%} of the way", 0.8 if followed < FOLLOWED / 5 else 0.4
        setting, change = record.given("polyak"), as_flag("polyak", 0.005)
    elif record.reads("target_period_updates"):
        copies = int(updates // record.setting("target_period_updates", 1.0))
        if copies >= 5:
            return None
        said, confidence = f"{copies} copies", 0.8 if copies < 2 else 0.4
        setting = record.given("target_period_updates")
        change = as_flag("target_period_updates", max(1, int(updates // 20)))
    else:
        return None
    evidence = (setting, Evidence(f"{said} in {count(updates)} updates", METRICS))
    return Cause("target_rare", "The target network stands still", confidence, evidence, change)
