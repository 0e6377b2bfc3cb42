"""Box actions: converted between −1 … 1, which agents use, and the environment's units."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.errors import AgentError
from apexrl.spec import ENDLESS, ActionSpec

Floats = NDArray[np.float32]


class ActionBox:
    """The box of an environment, and the way between its units and −1 … 1.

    A number with one bound has it at −1 or 1, and one without has 0 at 0; their units are the environment's.

    Args:
        action: a box.
        agent: how errors call the agent.
        bounds_needed: refuse bounds that are infinite, or whose distance is.

    Raises:
        AgentError: the actions are no box, or their bounds are refused.
    """

    def __init__(self, action: ActionSpec, agent: str, bounds_needed: bool = True) -> None:
        if action.hybrid:
            raise AgentError(
                f"{agent} is for Box actions, but this environment takes {action.words}; use an agent for those, such "
                "as ppo or sac: apexrl list agents"
            )
        if not action.box:
            raise AgentError(
                f"{agent} is for Box actions, but this environment takes discrete ones; use an agent for those, such "
                "as dueling_dqn, discrete_sac, or from a dataset discrete_cql: apexrl list agents"
            )
        self.shape = action.shape
        low, high = cast("Floats", action.low), cast("Floats", action.high)
        action.check_bounds(agent, bounds_needed)
        self.size = int(np.prod(action.shape, dtype=np.int64))
        self._low, self._high = low, high
        self._middle, self._half = _units(low, high)
        self._there: dict[torch.device, tuple[Tensor, ...]] = {}  # both on the devices of a learner

    def to_env(self, unit: Floats) -> Floats:
        """Unit actions [B, d] in the environment's units, float32 [B, *shape], never beyond its bounds."""
        scaled = self._middle + self._half * unit.reshape(-1, *self.shape)
        clipped: Floats = np.clip(scaled, self._low, self._high).astype(np.float32, copy=False)
        return clipped

    def to_env_tensor(self, unit: Tensor) -> Tensor:
        """As ``to_env``, of tensors."""
        middle, half, low, high = (
            torch.from_numpy(np.asarray(one, np.float32)).to(unit.device)
            for one in (self._middle, self._half, self._low, self._high)
        )
        return torch.clamp(middle + half * unit.reshape(-1, *self.shape), low, high)

    def to_unit(self, action: Tensor) -> Tensor:
        """Actions as the environment took them [B, *shape] -> float32 [B, d] in −1 … 1."""
        there = self._there.get(action.device)
        if there is None:
            both = (torch.from_numpy(np.asarray(one, np.float32)) for one in (self._middle, self._half))
            there = self._there[action.device] = tuple(one.to(action.device) for one in both)
        middle, half = there
        return ((action - middle) / half).reshape(len(action), -1)


def _units(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Middle and half of the width of every number, in the environment's units; the half of an endless one is 1."""
    below, above = low < -ENDLESS, high > ENDLESS
    endless = below | above
    least, most = np.where(below, 0.0, low), np.where(above, 0.0, high)
    middle = np.where(endless, least + most + above - 1.0 * below, (least + most) / 2)
    return middle.astype(np.float32), np.where(endless, 1.0, (most - least) / 2).astype(np.float32)
