"""Observations -> Q-values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from apexrl.errors import SpecError
from apexrl.networks.encoders import encoder_for
from apexrl.spec import EnvSpec

IMAGE_UNITS = 512  # of the fully connected layer after the convolutions (Mnih et al. 2015), per stream when dueling


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q = V + A − mean_a A, float [B, n], from V [B, 1] and A [B, n]. Wang et al. 2016, equation 9.

    Raises:
        SpecError: the shapes are others.
    """
    if value.ndim != 2 or advantage.ndim != 2 or value.shape != (advantage.shape[0], 1):
        raise SpecError(f"dueling takes V [B, 1] and A [B, n], not {tuple(value.shape)} and {tuple(advantage.shape)}")
    return value + advantage - advantage.mean(dim=1, keepdim=True)


class QNetwork(nn.Module):
    """An encoder and a head, plain or dueling (Wang et al. 2016).

    Where an image is seen, the head has a fully connected layer of 512 units, one per stream when dueling, as in
    both papers. On vectors, whose encoder is fully connected itself, the streams are linear.

    Args:
        spec: the environment; its actions must be discrete.
        hidden: units of the fully connected layers for vectors.
        dueling: value and advantage streams.
    """

    def __init__(self, spec: EnvSpec, hidden: Sequence[int], dueling: bool) -> None:
        super().__init__()
        self.actions = spec.action.n or math.prod(spec.action.nvec)
        if spec.action.box:
            raise SpecError(f"Q-values need discrete actions; this environment takes {spec.action}")
        self.dueling = dueling
        self.encoder = encoder_for(spec, hidden)
        width = self.encoder.features
        self.streams: nn.Linear | None = None  # the hidden layers of both streams in one matrix product
        self.value: nn.Linear | None = None
        if self.encoder.sees_image:
            self.streams = nn.Linear(width, (2 if dueling else 1) * IMAGE_UNITS)
            self.value = nn.Linear(IMAGE_UNITS, 1) if dueling else None
            self.head = nn.Linear(IMAGE_UNITS, self.actions)
        else:
            self.head = nn.Linear(width, self.actions + dueling)  # [A, V] in one

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, actions]."""
        features = self.encoder(observation)
        q: Tensor
        if self.streams is None:
            q = self.head(features)
            return dueling(q[:, self.actions :], q[:, : self.actions]) if self.dueling else q
        features = torch.relu(self.streams(features))
        q = self.head(features[:, :IMAGE_UNITS])
        return q if self.value is None else dueling(self.value(features[:, IMAGE_UNITS:]), q)
