"""Rewards, observations and supports of another size than the agent can learn from."""

from __future__ import annotations

from math import log10

from apexrl.config.settings import as_flag
from apexrl.report.diagnosis.finding import Cause, Evidence
from apexrl.report.diagnosis.recorded_run import METRICS, RunRecord
from apexrl.report.number_format import number

CLIPPED = 0.1  # deviations


def rewards_large(record: RunRecord) -> Cause | None:
    """Rewards are so large that errors and gradients are out of proportion to everything else."""
    if not record.outside("reward_size", above=True):
        return None
    confidence, evidence = _too_large(record, "reward_size")
    return Cause("rewards_large", "Rewards are too large", confidence, evidence, _scale_rewards(record))


def rewards_small(record: RunRecord) -> Cause | None:
    """Rewards are so small that they drown in what the untrained network says, or in the entropy bonus."""
    returns = [abs(value) for one in record.evaluations for value in one.returns]
    if not record.metric("reward_size") or not record.outside("reward_size", above=False):
        return None
    if max(returns, default=1.0) > 1.0:
        return None  # seldom rewards are no small ones: a return tells them apart
    evidence = (record.seen("reward_size"), Evidence(f"no return is larger than {max(returns):.2g}", METRICS))
    return Cause("rewards_small", "Rewards are too small", 0.65, evidence, _scale_rewards(record))


def observations_large(record: RunRecord) -> Cause | None:
    """Observations are so large that the first layer's outputs are, too."""
    if not record.outside("observation_size", above=True):
        return None
    confidence, evidence = _too_large(record, "observation_size")
    change = as_flag("normalize_observations", True)
    return Cause("observations_large", "Observations are too large", confidence, evidence, change)


def observations_small(record: RunRecord) -> Cause | None:
    """Observations are so small that the network cannot tell them apart."""
    if not record.outside("observation_size", above=False):
        return None
    evidence = [record.seen("observation_size")]
    normalized, clip = bool(record.settings.get("normalize_observations")), record.setting("observation_clip", 10.0)
    if normalized and clip < CLIPPED:
        title, change = "Observations are clipped to almost nothing", as_flag("observation_clip", 10.0)
        evidence.append(record.given("observation_clip"))
    elif normalized or not record.metric("observation_size"):
        title, change = (
            "All observations are alike",
            "return from env.step() what each step leads to",
        )
    else:
        title, change = "Observations are too small", as_flag("normalize_observations", True)
    return Cause("observations_small", title, 0.6, tuple(evidence), change)


def support_narrow(record: RunRecord) -> Cause | None:
    """Returns lie beyond the least or the greatest category."""
    mass = record.metric("support_edges")
    if mass is None or not record.outside("support_edges", above=True):
        return None
    low, high = record.setting("v_min"), record.setting("v_max")
    evidence = [record.seen("support_edges"), record.given("v_min"), record.given("v_max")]
    normalized = bool(record.settings.get("normalize_returns"))  # by what, the run does not say
    scale = 0.0 if normalized else record.setting("reward_scale", 1.0)
    observed = [scale * one.observed for one in record.evaluations if one.observed is not None and not normalized]
    confidence = 0.4 + 0.3 * mass
    if observed and (max(observed) > high or min(observed) < low):
        span = f"{number(min(observed))} to {number(max(observed))}"
        evidence.append(Evidence(f"discounted returns from {span}", METRICS))
        confidence += 0.25
    lasting = [abs(one.mean) / sum(one.lengths) * len(one.lengths) for one in record.evaluations if one.lengths]
    horizon = 1.0 / max(1.0 - record.setting("gamma"), 1e-3)
    wide = max(2.0 * max(map(abs, [*observed, low, high])), scale * horizon * max(lasting, default=0.0))
    least = 0.0 if observed and min(observed) >= 0.0 else -wide
    change = f"{as_flag('v_min', least)} {as_flag('v_max', float(f'{wide:.2g}'))}"
    return Cause("support_narrow", "The categories do not cover the returns", confidence, tuple(evidence), change)


def _too_large(record: RunRecord, name: str) -> tuple[float, tuple[Evidence, ...]]:
    """How sure it is that a size, which is too large, does harm; and the evidence."""
    orders = log10(max(10.0, record.metric(name) or 0.0)) - 1.0
    if not record.outside("gradient_norm", above=True):
        return 0.4 + 0.1 * min(3.0, orders), (record.seen(name),)
    return 0.55 + 0.1 * min(3.0, orders), (record.seen(name), record.seen("gradient_norm"))


def _scale_rewards(record: RunRecord) -> str:
    if not record.settings.get("normalize_returns"):
        return as_flag("normalize_returns", True)
    better = record.setting("reward_scale", 1.0) / (record.metric("reward_size") or 1.0)
    return as_flag("reward_scale", float(f"{better:.1g}"))
