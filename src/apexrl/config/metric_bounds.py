"""Bounds of metrics at which a run ends, as text: ``agent/loss>1e6``."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from apexrl.errors import ConfigError

_FORM: Final = re.compile(r"\s*([A-Za-z][\w.:/-]*)\s*([<>])\s*(\S+)\s*")


class MetricBound(NamedTuple):
    """The run ends when the metric is beyond the limit."""

    name: str
    """In ``metrics.jsonl``."""
    sign: str
    """``<`` or ``>``."""
    limit: float

    def crossed(self, value: float) -> bool:
        return value > self.limit if self.sign == ">" else value < self.limit


def metric_bound(text: str) -> MetricBound:
    """Read a bound.

    Raises:
        ConfigError: it is none.
    """
    found = _FORM.fullmatch(text)
    try:
        limit = float(found[3]) if found else math.nan
    except ValueError:
        limit = math.nan
    if found is None or not math.isfinite(limit):
        raise ConfigError(f"--stop-when {text!r} is no bound: write NAME>NUMBER or NAME<NUMBER, as agent/loss>1e6")
    return MetricBound(found[1], found[2], limit)
