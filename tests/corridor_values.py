"""The optimal values of the toy environment Corridor, which agents are to find."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apexrl.envs.toy import Corridor


def q_star(length: int, gamma: float) -> NDArray[np.float64]:
    """The optimal action values, [length, 2]: from every state the better exit is walked to straight."""
    state = np.arange(length)
    value = np.maximum(Corridor.LEFT_EXIT * gamma**state, Corridor.RIGHT_EXIT * gamma ** (length - 1 - state))
    left = np.concatenate([[Corridor.LEFT_EXIT], gamma * value[:-1]])
    right = np.concatenate([gamma * value[1:], [Corridor.RIGHT_EXIT]])
    return np.stack([left, right], axis=1)
