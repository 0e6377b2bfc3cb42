"""Numbers as short text for terminals and tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def clock(seconds: float) -> str:
    """``mm:ss``, from an hour on ``h:mm:ss``."""
    whole = max(0, int(seconds)) if math.isfinite(seconds) else 0
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def count(value: float) -> str:
    """A count in four figures or so: 950, 12.3k, 1.25M."""
    if not math.isfinite(value):
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}{unit}" if abs(scaled) >= 10 else f"{scaled:.2f}{unit}"
    return f"{value:.0f}"


def number(value: float | None, small: bool = False) -> str:
    """A measurement in about four figures; a dash for None and NaN.

    Args:
        small: those below 0.1 in two significant figures: 2.1e-05.
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e4:
        return count(value)
    if small and 0.0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as a line of ``width`` blocks from lowest to highest; averages when there are more."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    if len(finite) > width:
        edges = [round(i * len(finite) / width) for i in range(width + 1)]
        finite = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(finite), max(finite)
    blocks = "▁▂▃▄▅▆▇█"
    if high == low:
        return blocks[3] * len(finite)
    return "".join(blocks[round((value - low) / (high - low) * (len(blocks) - 1))] for value in finite)
