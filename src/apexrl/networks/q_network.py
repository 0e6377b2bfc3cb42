"""Observations -> Q-values, or the distribution of the return of every action."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from apexrl.errors import SpecError
from apexrl.networks.encoders import PLAIN, LayerChoice, encoder_for
from apexrl.networks.layer_norm import stream_norm, unit_norm
from apexrl.networks.memory import MemoryChoice
from apexrl.networks.noisy import NoisyLinear
from apexrl.networks.recall import MemoryTrunk
from apexrl.spec import EnvSpec


class Draw(NamedTuple):
    """The random numbers of one pass through a ``QNetwork``."""

    noise: Tensor | None = None  # float32, f(ε) of all noisy layers, [noise_size] or of each row; None: their means
    fractions: Tensor | None = None  # float32 [B, N] in 0 … 1, of an implicit network


NOTHING = Draw()


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q = V + A − mean_a A, from V [B, 1] and A [B, n], or [B, 1, N] and [B, n, N]. Wang et al. 2016, equation 9.

    Raises:
        SpecError: the shapes are others.
    """
    if advantage.ndim not in (2, 3) or value.shape != (advantage.shape[0], 1, *advantage.shape[2:]):
        raise SpecError(
            f"dueling takes V [B, 1] and A [B, n], or [B, 1, N] and [B, n, N], not {tuple(value.shape)} and "
            f"{tuple(advantage.shape)}"
        )
    return value + advantage - advantage.mean(dim=1, keepdim=True)


class QNetwork(nn.Module):
    """An encoder and a head, plain or dueling (Wang et al. 2016), with one or more outputs per action.

    Where an image is seen, the head has a fully connected layer, one per stream when dueling, as in both papers. On
    vectors, whose encoder is fully connected itself, the streams are linear; behind ψ(τ)⊙f of implicit quantiles they
    share one hidden layer, as large as the last of ``hidden``: without it a fraction could but scale features. What
    belongs to the head is noisy when ``noisy_sigma`` is not 0. Dueling is per output: of C51's logits before the
    softmax (Hessel et al. 2018). The first layer of both streams is one matrix: where it is noisy, value and advantage
    share the noise at its input, and have their own at its outputs (two layers, as in dqn_zoo, would share none).

    Args:
        spec: the environment; its actions must be discrete.
        hidden: units of the fully connected layers for vectors.
        dueling: value and advantage streams.
        outputs: N, numbers per action.
        cosines: > 0: implicit quantiles: N outputs for N fractions τ that come with the observation; ψ(τ) =
            ReLU(W·[cos(π·k·τ)]_{k < cosines} + b) multiplies the encoder's features (Dabney et al. 2018b, equation 4).
        noisy_sigma: σ0 of ``NoisyLinear``; 0: plain layers.
        image_units: of the fully connected layer after the convolutions (Mnih et al. 2015: 512), per stream.
        network: an encoder of your own (``encoder_for``).
        choice: which layers ours has; hidden layers of the head have layer normalisation too.
        memory: behind the encoder, if any.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        dueling: bool,
        *,
        outputs: int = 1,
        cosines: int = 0,
        noisy_sigma: float = 0.0,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
        memory: MemoryChoice | None = None,
    ) -> None:
        super().__init__()
        if spec.action.box:
            raise SpecError(f"Q-values need discrete actions; this environment takes {spec.action}")
        self.actions = spec.action.n or math.prod(spec.action.nvec)
        self.dueling = dueling
        self.outputs = outputs
        self.encoder: nn.Module
        if memory is None:
            self.encoder, width, sees_image = encoder_for(spec, hidden, network, choice)
        else:
            trunk = MemoryTrunk(spec, hidden, memory, image_units, network, choice)
            self.encoder, width, sees_image = trunk, trunk.features, trunk.sees_image
        self.embedding = nn.Linear(cosines, width) if cosines else None
        each = 1 if cosines else outputs
        self.streams: nn.Module | None = None  # the hidden layers of both streams in one matrix product
        self.value: nn.Module | None = None
        self.joint: nn.Module | None = None  # a hidden layer of what features and fractions are together
        self._units = image_units
        if sees_image:
            self.streams = _linear(width, (1 + dueling) * image_units, noisy_sigma)
            self.norm = stream_norm(1 + dueling, image_units, choice.layer_norm)
            self.value = _linear(image_units, each, noisy_sigma) if dueling else None
            self.head = _linear(image_units, self.actions * each, noisy_sigma)
        else:
            if cosines:
                units = hidden[-1] if hidden else width
                self.joint, width = _linear(width, units, noisy_sigma), units
                self.norm = unit_norm(units, choice.layer_norm)
            self.head = _linear(width, (self.actions + dueling) * each, noisy_sigma)  # [A, V] in one
        self._noisy = [layer for layer in self.modules() if isinstance(layer, NoisyLinear)]
        self.noise_size = sum(layer.noise_size for layer in self._noisy)

    def forward(self, observation: Mapping[str, Tensor], draw: Draw = NOTHING) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, actions], with N > 1 outputs [B, actions, N]."""
        self._set(draw.noise)
        x = self.encoder(observation)
        if self.embedding is not None:
            assert draw.fractions is not None, "an implicit network is asked for fractions"
            x = x.unsqueeze(1) * self._embed(draw.fractions)
        if self.joint is not None:
            x = torch.relu(self.norm(self.joint(x)))
        if self.streams is None:
            z = self._per_action(self.head(x), self.actions + self.dueling)
            if self.dueling:
                z = dueling(z[:, self.actions :], z[:, : self.actions])
        else:
            x = torch.relu(self.norm(self.streams(x)))
            z = self._per_action(self.head(x[..., : self._units]), self.actions)
            if self.value is not None:
                z = dueling(self._per_action(self.value(x[..., self._units :]), 1), z)
        return z

    def _per_action(self, y: Tensor, actions: int) -> Tensor:
        """The answers of a last layer as [B, actions] or [B, actions, N]."""
        if self.embedding is not None:  # [B, N, actions]
            return y.transpose(1, 2)
        return y if self.outputs == 1 else y.view(-1, actions, self.outputs)

    def _embed(self, fractions: Tensor) -> Tensor:
        """ψ(τ) [B, N, features] of τ [B, N]."""
        assert self.embedding is not None
        k = torch.arange(self.embedding.in_features, device=fractions.device)
        return torch.relu(self.embedding(torch.cos(math.pi * k * fractions.unsqueeze(2))))

    def _set(self, noise: Tensor | None) -> None:
        begin = 0
        for layer in self._noisy:
            end = begin + layer.noise_size
            layer.noise = None if noise is None else noise[..., begin:end]
            begin = end


def _linear(inputs: int, outputs: int, sigma: float) -> nn.Module:
    return NoisyLinear(inputs, outputs, sigma) if sigma else nn.Linear(inputs, outputs)
