"""Box actions: converted between −1 … 1, which agents use, and the environment's units."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.errors import AgentError
from apexrl.spec import ActionSpec

Floats = NDArray[np.float32]


class ActionBox:
    """The box of an environment, and the way between its units and −1 … 1.

    Args:
        action: a box with finite bounds, whose distance is finite too.
        agent: how errors call the agent.

    Raises:
        AgentError: the actions are no box, or a bound is infinite.
    """

    def __init__(self, action: ActionSpec, agent: str) -> None:
        if action.hybrid:
            raise AgentError(
                f"{agent} is for Box actions, but this environment takes {action.words}; use an agent for those, such "
                "as ppo or sac: apexrl list agents"
            )
        if not action.box:
            raise AgentError(
                f"{agent} is for Box actions, but this environment takes discrete ones; use an agent for those, such "
                "as dueling_dqn or discrete_sac: apexrl list agents"
            )
        self.shape = action.shape
        low, high = cast("Floats", action.low), cast("Floats", action.high)
        action.check_bounds(agent)
        self.size = int(np.prod(action.shape, dtype=np.int64))
        self._low, self._high = low, high
        self._middle, self._half = (low + high) / 2, (high - low) / 2
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
