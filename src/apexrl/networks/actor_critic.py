"""Policies and critics of actor-critic agents: observations -> action parameters, and actions -> values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from apexrl.networks.encoders import PLAIN, LayerChoice, ObservationEncoder, encoder_for
from apexrl.networks.ensemble import EVERY, Dropout, Ensemble, Members
from apexrl.networks.layer_norm import unit_norm
from apexrl.spec import EnvSpec

Observation = Mapping[str, Tensor]


class Trunk(nn.Module):
    """An encoder; behind convolutions also a fully connected layer with ReLU (Mnih et al. 2015).

    Args:
        spec: the environment.
        hidden: units of the fully connected layers for vectors.
        image_units: units of that layer.
        network: an encoder of your own (``encoder_for``).
        choice: which layers ours have.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        image_units: int,
        network: str = "",
        choice: LayerChoice = PLAIN,
    ) -> None:
        super().__init__()
        self.encoder, self.features, sees_image = encoder_for(spec, hidden, network, choice)
        self.image: nn.Linear | None = None
        if sees_image:
            self.image = nn.Linear(self.features, image_units)
            self.norm = unit_norm(image_units, choice.layer_norm)
            self.features = image_units

    def begin_orthogonal(self) -> None:
        """Orthogonal weights of gain √2 and biases of zero, in all layers of ours (CleanRL's PPO, Stable-Baselines3).

        What comes out is then about 0 and moves with what is seen. PyTorch's own start keeps a third of a layer's
        variance and adds biases: behind images that hardly differ, or angles in radians, its features hardly differ.
        """
        encoder = self.encoder
        for layer in (*(encoder.modules() if isinstance(encoder, ObservationEncoder) else ()), self.image):
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, features]."""
        x: Tensor = self.encoder(observation)
        return x if self.image is None else torch.relu_(self.norm(self.image(x)))


class Policy(nn.Module):
    """A trunk and a linear head of ``outputs`` numbers; what they mean is the agent's business."""

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        outputs: int,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
    ) -> None:
        super().__init__()
        self.trunk = Trunk(spec, hidden, image_units, network, choice)
        self.head = nn.Linear(self.trunk.features, outputs)

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, outputs]."""
        y: Tensor = self.head(self.trunk(observation))
        return y


class BoundedDeviationPolicy(Policy):
    """A policy of μ and log σ, each of half of the ``outputs``; a tanh keeps log σ in a range, as FastSAC has it. Both
    heads begin at 0: first actions are in the middle, of the deviation in the middle of the range.

    Args:
        log_std: least and greatest log σ.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        outputs: int,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
        log_std: tuple[float, float] = (-5.0, 0.0),
    ) -> None:
        super().__init__(spec, hidden, outputs, image_units, network, choice)
        self._log_std = log_std
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, outputs], μ and log σ."""
        mean, raw = super().forward(observation).chunk(2, dim=1)
        least, greatest = self._log_std
        return torch.cat((mean, least + 0.5 * (greatest - least) * (torch.tanh(raw) + 1.0)), dim=1)


class OneDeviationPolicy(Policy):
    """A policy of μ = tanh(head) of ``size`` numbers, and of a log σ for each that is the same in every state."""

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        size: int,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
        log_std: tuple[float, float] = (-5.0, 2.0),
    ) -> None:
        super().__init__(spec, hidden, size, image_units, network, choice)
        self._range = log_std
        self.log_std = nn.Parameter(torch.zeros(size))

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, 2·size], μ and log σ."""
        mean = torch.tanh(super().forward(observation))
        return torch.cat((mean, self.log_std.clamp(*self._range).expand_as(mean)), dim=1)


class Critics(nn.Module):
    """K critics of observation and action, that share nothing but what encodes images.

    Vectors go into the first layer beside the action.

    Args:
        spec: the environment; its actions must be a box of d numbers.
        hidden: units of every critic's layers.
        count: K.
        outputs: numbers per critic: 1 value, or the atoms of a distribution.
        layers: makes the K MLPs of (K, sizes): ``Ensemble``, or what is called as it is.
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
    ) -> None:
        super().__init__()
        self.trunk = Trunk(spec, (), image_units, network)
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
