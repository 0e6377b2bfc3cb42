"""Discrete actions as one number: each combination of k choices has its own."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.action_masks import Observation, action_masks
from apexrl.errors import AgentError
from apexrl.spec import EnvSpec

MOST = 4096  # combinations; a network has an output for each

Ints = NDArray[np.int64]


class Choices:
    """The discrete actions of an environment, numbered 0 … n-1.

    Args:
        spec: its actions are ``Discrete`` or ``MultiDiscrete``; of the latter the last choice varies fastest.
        agent: how errors call the agent.

    Attributes:
        masks: which of them are possible.

    Raises:
        AgentError: the actions are a box, or there are too many combinations.
    """

    def __init__(self, spec: EnvSpec, agent: str) -> None:
        action = spec.action
        if action.hybrid:
            raise AgentError(
                f"{agent} is for discrete actions, but this environment takes {action.words}; use an agent for those, "
                "such as ppo or sac: apexrl list agents"
            )
        if action.box:
            raise AgentError(
                f"{agent} is for discrete actions, but this environment takes a Box of shape {action.shape}; "
                "use an agent for those, such as sac or td3: apexrl list agents"
            )
        self._nvec = action.nvec
        self.n = action.n or math.prod(action.nvec)
        if self.n > MOST:
            combined = f": {' × '.join(map(str, action.nvec))} choices combined" if action.nvec else ""
            raise AgentError(
                f"{agent} has a value for every action, and here are {self.n}{combined}. More than {MOST} are too "
                "many; leave some out with a gymnasium.ActionWrapper"
            )
        self.masks = action_masks(spec, combined=True)

    def to_env(self, index: Ints) -> Ints:
        """Numbers [B] as the environment's actions, int64 [B] or [B, k]."""
        if not self._nvec:
            return index
        return np.stack(np.unravel_index(index, self._nvec), axis=1).astype(np.int64, copy=False)

    def to_env_tensor(self, index: Tensor) -> Tensor:
        """As ``to_env``, of tensors."""
        if not self._nvec:
            return index
        choices = []
        for n in reversed(self._nvec):
            choices.append(index % n)
            index = index // n
        return torch.stack(choices[::-1], dim=1)

    def epsilon_greedy(
        self, index: Ints, exploration: NDArray[np.float32], rng: np.random.Generator, observations: Observation
    ) -> Ints:
        """Numbers [B], each replaced by a uniformly random possible one with the probability ε = ``exploration`` [B].

        Args:
            observations: name -> [B, (stack,) *shape], whose masks are read.
        """
        explore = rng.random(len(index), np.float32) < exploration
        return self.masks.explored(index, explore, rng, observations)

    def index(self, actions: Tensor) -> Tensor:
        """The environment's actions, [B] or [B, k], as numbers, int64 [B]."""
        if not self._nvec:
            return actions
        index = actions[:, 0]
        for place, n in enumerate(self._nvec[1:], start=1):
            index = index * n + actions[:, place]
        return index

    def index_array(self, actions: Ints) -> Ints:
        """As ``index``, of NumPy arrays."""
        return cast("Ints", self.index(torch.from_numpy(actions)).numpy())
