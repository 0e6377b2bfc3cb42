"""Replays and shards of one test, which are closed after it (``conftest.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import Shard

ALPHA = 0.7
MADE: list[Replay] = []


def kept(replay: Replay) -> Replay:
    """``replay``, until the test ends."""
    MADE.append(replay)
    return replay


def close_all() -> None:
    while MADE:
        MADE.pop().close()


def filled(priorities: NDArray[np.float64], first: int, seed: int = 0, **options: Any) -> Shard:
    """A shard whose items are numbered from ``first``."""
    replay = Replay(
        max(64, len(priorities)), {"number": Field((), "int64")}, alpha=ALPHA, eps=0.0, seed=seed, writers=1, **options
    )
    kept(replay)
    if len(priorities):
        numbers = np.arange(first, first + len(priorities))
        replay.writer().extend({"number": numbers}, priorities=priorities)
    return Shard(replay)
