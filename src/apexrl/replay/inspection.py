"""What lies in a replay: its counters, priorities and ages, and some items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import WaitTimeout
from apexrl.replay.core import LAG_FIELD
from apexrl.replay.options import gives_once
from apexrl.replay.replay import Replay

BINS: Final = 12
_BATCH: Final = 256
_SECONDS: Final = 2.0  # for a batch; a replay whose priorities are all zero yields none


@dataclass(frozen=True)
class Inspection:
    """Some items of a replay, each once. ``priorities``, ``ages`` and ``data`` have a row for each."""

    stats: Mapping[str, Any]
    """As ``Replay.stats``."""
    options: Mapping[str, Any]
    """What the replay was made with."""
    keys: NDArray[np.uint64]
    share: NDArray[np.float64]
    """How many of all items each stands for, as a share: rarely drawn ones stand for more. Sums to 1."""
    priorities: NDArray[np.float64] | None
    """Raw |δ|. None: the replay draws without them."""
    ages: NDArray[np.int64] | None
    """Weights versions (learner updates) between an item's step and the newest one drawn. None: it has no field
    ``version``."""
    data: Mapping[str, NDArray[Any]]
    """As ``Batch.data``."""


def inspect(replay: Replay, items: int = 2000) -> Inspection:
    """Draw from a replay that this process owns and nobody else uses: its limiter is lifted, and a ``fifo`` sampler's
    items are used up.

    Args:
        items: how many are drawn; as the sampler may draw one twice, fewer are returned.
    """
    replay.set_limiter(min_size=1, samples_per_insert=0.0)
    stats, options = replay.stats(), dict(replay.core.options)
    batches = []
    left = min(items, 4 * stats["size"]) if not gives_once(options) else min(items, stats["size"])
    while left > 0:
        try:
            batch = replay.sample(min(left, _BATCH), beta=0.0, normalize="none", timeout=_SECONDS)
        except WaitTimeout:
            break
        batches.append(batch)
        left -= len(batch)
    if not batches:
        return Inspection(stats, options, np.zeros(0, np.uint64), np.zeros(0), None, None, {})
    keys, first = np.unique(np.concatenate([batch.keys for batch in batches]), return_index=True)
    probabilities = np.concatenate([batch.probabilities for batch in batches])[first]
    data = {name: np.concatenate([batch.data[name] for batch in batches])[first] for name in batches[0].data}
    share = _share(probabilities, sum(map(len, batches)))
    return Inspection(stats, options, keys, share, _priorities(probabilities, options, stats), _ages(data), data)


def histogram(values: NDArray[Any], share: NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """Bins of equal width: (begin, end, share of the items)."""
    if not len(values):
        return []
    counts, edges = np.histogram(values.astype(np.float64), bins=BINS, weights=share)
    return [(float(a), float(b), float(count)) for a, b, count in zip(edges, edges[1:], counts, strict=False)]


def _share(probabilities: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    """By Horvitz and Thompson (1952): the inverse of the chance to be among the draws at all."""
    chance = -np.expm1(draws * np.log1p(-np.minimum(probabilities, 1.0 - 1e-12)))
    weights = 1.0 / np.maximum(chance, 1e-300)
    return np.asarray(weights / weights.sum())


def _priorities(
    probabilities: NDArray[np.float64], options: Mapping[str, Any], stats: Mapping[str, Any]
) -> NDArray[np.float64] | None:
    """The draw inverted: P = (|δ| + eps)^alpha / mass (Schaul et al. 2016). Where age counts too, it is part of P."""
    aged = options["recency_half_life"] or options["lag_half_life"]
    if options["sampler"] != "prioritized" or options["alpha"] <= 0.0 or aged:
        return None
    raw = (probabilities * stats["mass"]) ** (1.0 / options["alpha"]) - options["eps"]
    return np.asarray(np.maximum(raw, 0.0))


def _ages(data: Mapping[str, NDArray[Any]]) -> NDArray[np.int64] | None:
    versions = data.get(LAG_FIELD)
    if versions is None or versions.dtype.kind != "i":
        return None
    of_item = versions.reshape(len(versions), -1)[:, 0]
    return np.asarray(of_item.max() - of_item)
