"""Observations -> the features that policies, values and memories begin with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from apexrl.networks.encoders import PLAIN, LayerChoice, ObservationEncoder, encoder_for
from apexrl.networks.layer_norm import unit_norm
from apexrl.spec import EnvSpec

Observation = Mapping[str, Tensor]


class Trunk(nn.Module):
    """An encoder; behind convolutions also a fully connected layer with ReLU (Mnih et al. 2015).

    Args:
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
