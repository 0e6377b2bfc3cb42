"""How far returns look ahead, n and γ, as a function of updates, since the last reset if there are any. Loads no
PyTorch.

Schwarzer et al. 2023 (arXiv 2305.19452), section 4: after each reset n falls and γ rises, both exponentially. Short
horizons at the end have little variance and little bias from old policies; long ones at the start learn fast.
"""

from __future__ import annotations

from typing import NamedTuple

from apexrl.config import AgentConfig


class Horizon(NamedTuple):
    """Of the returns of one batch."""

    n_step: int  # rewards before the bootstrap
    gamma: float  # discount per step


def interpolated(start: float, end: float, done: float) -> float:
    """``start`` · (``end`` / ``start``)^``done``: exponential in ``done``, 0 … 1, which is clipped to that."""
    return float(start * (end / start) ** min(max(done, 0.0), 1.0))


def last_reset(config: AgentConfig, updates: int) -> int:
    """The update after which the network was last reset, of ``updates`` made; 0: it never was."""
    period, until = config.reset_period_updates, config.reset_until_updates
    if not period:
        return 0
    return (min(updates, until) if until else updates) // period * period


def horizon(config: AgentConfig, updates: int) -> Horizon:
    """n and γ of the next batch, after so many ``updates``.

    n is the nearest integer to n₀·(n₁/n₀)^f, and 1 − γ is (1 − γ₀)·((1 − γ₁)/(1 − γ₀))^f, with f the part of
    ``horizon_updates`` that was made since the last reset (Schwarzer et al. 2023; their exponential_decay_scheduler).
    Without ``anneal_horizon``: n₁ and γ₁.
    """
    if not config.anneal_horizon:
        return Horizon(config.n_step, config.gamma)
    done = (updates - last_reset(config, updates)) / config.horizon_updates
    n_step = round(interpolated(config.n_step_start, config.n_step, done))
    return Horizon(n_step, 1.0 - interpolated(1.0 - config.gamma_start, 1.0 - config.gamma, done))


def ladder(policies: int, greatest: float, least: float) -> list[float]:
    """γ of each policy: γ_i = 1 − exp(((N − 1 − i)·log(1 − γ_max) + i·log(1 − γ_min)) / (N − 1)), falling.

    Badia et al. 2020 (Never Give Up, arXiv 2002.06038), appendix, equation 4. Agent57 (arXiv 2003.13350) has other
    numbers for the first few of its 32.

    Args:
        policies: N; of one alone it is ``greatest``.
        greatest, least: γ_max, of the first, and γ_min, of the last, below 1.
    """
    share = 1.0 / max(policies - 1, 1)
    return [1.0 - interpolated(1.0 - greatest, 1.0 - least, i * share) for i in range(policies)]


def gamma_share(config: AgentConfig, updates: int) -> float:
    """γ now, over that with which discounts were recorded."""
    return horizon(config, updates).gamma / config.gamma if config.anneal_horizon else 1.0


def longest(config: AgentConfig) -> int:
    """The greatest n that any batch has: steps that an item needs."""
    return max(config.n_step, config.n_step_start) if config.anneal_horizon else config.n_step
