"""Elo ratings, and how opponents are drawn by them: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SCALE = 400.0
"""Points of Elo at which the better one is expected to score ten times as much."""

MOST_CHANGE = 320.0
"""Most points that a match can change (FIDE: 700). With more, two ratings that both change would overshoot: the sum of
their slopes is 2·ln(10)/1600 of it."""


def expected_score(own: float, other: float) -> float:
    """The score that a player expects: 1 a won game, ½ a draw (Elo 1978, The Rating of Chessplayers, 8.4)."""
    return float(1.0 / (1.0 + 10.0 ** ((other - own) / SCALE)))


def rated(own: float, other: float, score: float, games: int, k: float) -> tuple[float, float]:
    """Both ratings after a match; what one gains the other loses: K·n·(score − expected), as after a tournament.

    Args:
        score: mean of ``own``'s games, 0 … 1.
        games: n. Where K·n is more than ``MOST_CHANGE``, K is less, as FIDE has it (rating regulations, 8.3.3).
        k: most points that one game changes.
    """
    change = min(k * games, MOST_CHANGE) * (score - expected_score(own, other))
    return own + change, other - change


def draw_weights(win_rates: Sequence[float], draw: Literal["hard", "even", "uniform"]) -> NDArray[np.float64]:
    """Probability of each opponent [N], by the rates at which it is beaten (prioritised fictitious self-play, Vinyals
    et al. 2019, methods): ``hard`` ∝ (1 − p)², ``even`` ∝ p(1 − p). All alike where these are 0 everywhere."""
    p = np.asarray(win_rates, np.float64)
    weights = {"hard": (1.0 - p) ** 2, "even": p * (1.0 - p), "uniform": np.ones_like(p)}[draw]
    total = weights.sum()
    return weights / total if total > 0.0 else np.full(len(p), 1.0 / max(1, len(p)))
