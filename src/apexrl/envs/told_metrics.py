"""What an environment tells of an episode in the ``info`` of its last step, as numbers by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from apexrl.run.episode_metrics import MOST_CHARACTERS, MOST_NAMES

METRICS: Final = "metrics"
"""Key of an info whose entries all are metrics."""

_ODD = re.compile(r"[^\w.:/-]")


def told_metrics(info: Mapping[str, Any], keys: Iterable[str]) -> dict[str, float]:
    """The numbers of one environment's ``info``: those of ``info["metrics"]``, and of ``keys`` beside it.

    What is no single finite number is left out, and so is what there is beyond ``MOST_NAMES``.
    """
    every = info.get(METRICS)
    told = dict(every) if isinstance(every, Mapping) else {}
    told |= {key: info[key] for key in keys if key in info}
    found: dict[str, float] = {}
    for name, value in told.items():
        number = _number(value)
        if number is not None and len(found) < MOST_NAMES:
            found[_ODD.sub("_", str(name))[:MOST_CHARACTERS]] = number
    return found


def row_metrics(infos: Mapping[str, Any], keys: Sequence[str], rows: Iterable[int]) -> dict[int, dict[str, float]]:
    """The same of ``rows`` of a vector environment's ``infos``: row -> its metrics.

    Such infos have arrays by key, and ``_key`` [B] says for which environments one is told.
    """
    wanted = {key: infos[key] for key in (METRICS, *keys) if key in infos}
    if not wanted:
        return {}
    on_host = {key: _on_host(value) for key, value in wanted.items()}
    masks = {f"_{key}": infos[f"_{key}"] for key in wanted if f"_{key}" in infos}
    return {row: told_metrics(_row({**on_host, **masks}, row), keys) for row in rows}


def _row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    found = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if key.startswith("_") or (mask is not None and not mask[row]):
            continue
        if isinstance(value, Mapping):
            found[key] = _row(value, row)
        elif np.ndim(value) and len(value) > row:
            found[key] = value[row]
    return found


def _on_host(value: Any) -> Any:
    """Tensors as arrays, once for all rows."""
    if isinstance(value, Mapping):
        return {key: _on_host(item) for key, item in value.items()}
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _number(value: Any) -> float | None:
    """None: it is no single finite number."""
    if isinstance(value, str | bytes) or value is None or np.ndim(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < 1e300 else None
