"""Policies and critics of actor-critic agents: observations -> action parameters, and actions -> values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from apexrl.networks.distributions import held, log_std_bounds
from apexrl.networks.encoders import PLAIN, LayerChoice
from apexrl.networks.ensemble import EVERY, Dropout, Ensemble, Members
from apexrl.networks.memory import MemoryChoice
from apexrl.networks.recall import CRITIC, trunk_for
from apexrl.spec import EnvSpec

Observation = Mapping[str, Tensor]


class Policy(nn.Module):
    """A trunk, with a memory where asked for, and a linear head of ``outputs`` numbers; what they mean is the agent's
    business."""

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        outputs: int,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
        memory: MemoryChoice | None = None,
    ) -> None:
        super().__init__()
        self.trunk = trunk_for(spec, hidden, image_units, network, choice, memory)
        self.head = nn.Linear(self.trunk.features, outputs)

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, outputs]."""
        y: Tensor = self.head(self.trunk(observation))
        return y


class BoundedDeviationPolicy(Policy):
    """A policy of μ and log σ, each of half of the ``outputs``; a tanh keeps log σ between −5 and 0, as FastSAC has it.
    Both heads begin at 0: first actions are in the middle, of the deviation in the middle of the range."""

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        outputs: int,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
        memory: MemoryChoice | None = None,
    ) -> None:
        super().__init__(spec, hidden, outputs, image_units, network, choice, memory)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, outputs], μ and log σ."""
        mean, raw = super().forward(observation).chunk(2, dim=1)
        return torch.cat((mean, -5.0 + 2.5 * (torch.tanh(raw) + 1.0)), dim=1)


class OneDeviationPolicy(Policy):
    """A policy of μ = tanh(head) of ``size`` numbers, and of a log σ for each, −5 … 2, that is the same in every
    state."""

    def __init__(
        self, spec: EnvSpec, hidden: Sequence[int], size: int, image_units: int = 512, network: str = ""
    ) -> None:
        super().__init__(spec, hidden, size, image_units, network)
        self.log_std = nn.Parameter(torch.zeros(size))

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, 2·size], μ and log σ."""
        mean = torch.tanh(super().forward(observation))
        return torch.cat((mean, held(self.log_std, *log_std_bounds()).expand_as(mean)), dim=1)


class Critics(nn.Module):
    """K critics of observation and action, that share nothing but what encodes images.

    Vectors go into the first layer beside the action.

    Args:
        spec: the environment; its actions must be a box of d numbers.
        hidden: units of every critic's layers.
        count: K.
        outputs: numbers per critic: 1 value, or the atoms of a distribution.
        layers: makes the K MLPs of (K, sizes): ``Ensemble``, or what is called as it is.
        memory: that all of them have, if any.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        count: int = 1,
        outputs: int = 1,
        image_units: int = 512,
        network: str = "",
        layers: Callable[[int, Sequence[int]], nn.Module] = Ensemble,
        memory: MemoryChoice | None = None,
    ) -> None:
        super().__init__()
        self.trunk = trunk_for(spec, (), image_units, network, memory=memory, prefix=CRITIC)
        inputs = self.trunk.features + math.prod(spec.action.shape)
        self.layers = layers(count, (inputs, *hidden, outputs))

    def forward(
        self,
        observation: Observation,
        action: Tensor,
        members: Members = EVERY,
        frozen: bool = False,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """name -> [B, (stack,) *shape], and unit actions [B, d]; returns float32 [K, B, outputs].

        Args:
            members: which critics are asked.
            frozen: the gradient goes to the actions alone, as the policy's loss wants it.
            dropout: of the hidden layers, which are then an ``Ensemble``.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            features = self.trunk(observation)
        more = () if dropout is None else (dropout,)
        values: Tensor = self.layers(torch.cat((features, action), dim=1), members, frozen, *more)
        return values
