"""A batch as a replay gives it, for agents that tests teach without one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.spec import Array


class Batch(NamedTuple):
    data: dict[str, Array]
    keys: NDArray[np.uint64]
    weights: NDArray[np.float32]
