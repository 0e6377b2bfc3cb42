"""Policy lag: how many learner updates old the policy of a step is when the step is learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from apexrl.protocols import FRESH, Context, Item
from apexrl.roles.env_player import VERSION

if TYPE_CHECKING:
    from apexrl.replay import Batch

Lags = NDArray[np.int64]

BINS: Final = (0, 1, *(value for k in range(1, 16) for value in (2**k, 3 * 2 ** (k - 1))), 2**16)
"""Least lag of every bin of a histogram, two to an octave from 2 on; the last bin has no end."""

_EXACT = BINS[-1] + 1  # lags below this are told apart; larger ones count as this less 1, but for mean and maximum
_WAITING_STEPS = 1 << 16  # lags that are put together before they are counted


def lags_of(batch: Batch, version: int, item: Item, fresh: NDArray[np.bool_] | None = None) -> tuple[Lags, int]:
    """The lags of a batch's steps that are learned from, [N], and how many steps were too old for that.

    Padding, final observations and burn-in are not learned from, and no step of them counts.

    Args:
        version: the learner's, at training.
        item: what the batch is made of.
        fresh: what ``AgeLimit`` let pass; None: everything.
    """
    lags = version - batch.data[VERSION].astype(np.int64, copy=False)
    if item.kind != "transition":
        lags, real = lags[:, item.burn_in :], batch.data["mask"][:, item.burn_in :]
        lags, fresh = lags[real], None if fresh is None else fresh[:, item.burn_in :][real]
    if fresh is None:
        return lags, 0
    young = lags[fresh]
    return young, lags.size - young.size


def lags_with_dataset(
    batch: Batch, version: int, item: Item, fresh: NDArray[np.bool_] | None = None
) -> tuple[Lags, int]:
    """As ``lags_of``, where some steps are of no policy of the run: their version is negative, and no lag counts."""
    known = batch.data[VERSION] >= 0
    if fresh is not None:
        lags, aged = lags_of(batch, version, item, fresh & known)
        return lags, aged - lags_of(batch, version, item, known)[1]
    return lags_of(batch, version, item, known)[0], 0


class AgeLimit:
    """Keeps what is too old from being learned from: Sample Factory's ``max_policy_lag`` (Petrenko et al. 2020).

    Transitions that are too old get the importance weight 0. Sequences and unrolls get the field ``fresh``, bool
    [B, T], whose false steps an agent leaves out of its losses. Means go on to be over all of the batch, so that a step
    of the optimizer shrinks with the share that is learned from: there, too, they scale its size by that share.

    Batches are updates, one by one and in order, also those that are prepared ahead. So the n-th from now on meets the
    version ``version + n``, and lags are those at training.

    Args:
        limit: largest lag that is learned from, in learner updates.
        version: the learner's at the first batch. Where updates are others' too, set it before every batch.
        item: what batches are made of.
    """

    def __init__(self, limit: int, version: int, item: Item) -> None:
        self._limit = limit
        self.version = version
        self._steps = item.kind != "transition"

    def shift(self, versions: int) -> None:
        """The learner goes on that many versions later: another one, whose state it took, was further."""
        self.version += versions

    def __call__(self, batch: Batch) -> NDArray[np.bool_]:
        """Mark the next batch; returns which of its steps are young enough, [B] or [B, T]."""
        versions = batch.data[VERSION]
        fresh: NDArray[np.bool_] = (self.version - versions <= self._limit) | (versions < 0)  # those of a dataset
        self.version += 1
        if self._steps:
            batch.data[FRESH] = fresh
        else:
            batch.weights[~fresh] = 0.0
        return fresh


class LagMeter:
    """Mean, 95th percentile, maximum and histogram over every step that was learned from. In learner updates."""

    def __init__(self, context: Context) -> None:
        self._who = {"reporter": context.name, "generation": context.generation}
        self._waiting: list[Lags] = []
        self._held = 0
        self._lately, self._ever = _Tally(), _Tally()

    def add(self, lags: Lags) -> None:
        """One batch's lags, of any shape; there may be none."""
        self._waiting.append(lags)
        self._held += lags.size
        if self._held >= _WAITING_STEPS:
            self._count()

    def report(self) -> dict[str, Any]:
        """What a ``metrics`` message says of lag: ``lag`` [mean, p95, max], NaN where nothing was learned from, and
        ``lag_histogram``, least lag of a bin -> steps, since the last report; ``run_…`` since this generation began."""
        self._count()
        lately, self._lately = self._lately, _Tally()
        return {
            **self._who,
            "lag": lately.figures(),
            "lag_histogram": lately.histogram(),
            "run_lag": self._ever.figures(),
            "run_lag_histogram": self._ever.histogram(),
        }

    def _count(self) -> None:
        if self._held:
            lags = np.concatenate([some.reshape(-1) for some in self._waiting])
            self._lately.add(lags)
            self._ever.add(lags)
        self._waiting, self._held = [], 0


class _Tally:
    """How many steps had which lag."""

    def __init__(self) -> None:
        self._steps = self._sum = self._max = 0
        self._counts = np.zeros(_EXACT, np.int64)

    def add(self, lags: Lags) -> None:
        self._steps += lags.size
        self._sum += int(lags.sum())
        self._max = max(self._max, int(lags.max()))
        self._counts += np.bincount(np.clip(lags, 0, _EXACT - 1), minlength=_EXACT)

    def figures(self) -> list[float]:
        if not self._steps:
            return [float("nan")] * 3
        p95 = np.searchsorted(np.cumsum(self._counts), 0.95 * self._steps)
        return [self._sum / self._steps, float(p95), float(self._max)]

    def histogram(self) -> dict[int, int]:
        counts = np.add.reduceat(self._counts, BINS)
        return {least: int(count) for least, count in zip(BINS, counts, strict=True) if count}
