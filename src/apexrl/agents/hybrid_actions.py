"""Hybrid actions: some choices, and some numbers in −1 … 1, as one array of all."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.box_actions import ActionBox
from apexrl.spec import ActionSpec, EnvSpec

Floats = NDArray[np.float32]


class HybridActions:
    """The two halves of hybrid actions, and the way between −1 … 1 and the units of the environment.

    Args:
        action: hybrid actions of k choices and d numbers.
        agent: how errors call the agent.
        bounds_needed: as ``ActionBox`` has it.

    Raises:
        AgentError: the bounds are refused.
    """

    def __init__(self, action: ActionSpec, agent: str, bounds_needed: bool = True) -> None:
        self.nvec = action.nvec
        self.choices = len(action.nvec)
        self.size = action.shape[0]
        self.box = ActionBox(numbers_of(action), agent, bounds_needed)

    def to_env(self, drawn: Floats) -> Floats:
        """Choices and unit numbers [B, k + d] as the environment's, float32, never beyond its bounds."""
        k = self.choices
        return np.concatenate((drawn[:, :k], self.box.to_env(drawn[:, k:])), axis=1)

    def to_env_tensor(self, drawn: Tensor) -> Tensor:
        """As ``to_env``, of tensors."""
        k = self.choices
        return torch.cat((drawn[:, :k], self.box.to_env_tensor(drawn[:, k:])), dim=1)


def numbers_of(action: ActionSpec) -> ActionSpec:
    """The numbers of hybrid actions as a box [d]."""
    low, high = cast("Floats", action.low), cast("Floats", action.high)
    return ActionSpec(low.shape, "float32", low=low, high=high)


def choices_of(spec: EnvSpec) -> EnvSpec:
    """An environment of the choices of hybrid actions alone."""
    nvec = spec.action.nvec
    return replace(spec, action=ActionSpec((len(nvec),), nvec=nvec, starts=(0,) * len(nvec)))
