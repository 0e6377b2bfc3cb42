"""Batch renormalisation (Ioffe 2017, arXiv 1702.03275), and CrossQ's networks, which have it around every layer.

A network in training mode normalises with the batch's statistics and remembers them; ``commit`` then moves the running
ones, so that a batch that turned out not to be finite leaves no trace. In evaluation mode the running statistics are
used. They are buffers, so that they travel with the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from apexrl.networks.ensemble import EVERY, Members
from apexrl.networks.memory import MemoryChoice
from apexrl.networks.recall import trunk_for
from apexrl.spec import EnvSpec

Observation = Mapping[str, Tensor]

# All of CrossQ's authors' code.
MOMENTUM = 0.01  # of a batch's statistics in the running ones
EPS = 1e-3  # added to the variance
R_MAX, D_MAX = 3.0, 5.0
WARM_UP = 100_000  # batches that are normalised with their own statistics alone, as by plain batch normalisation


class BatchRenorm(nn.Module):
    """Normalises K × B rows of features over their B, then scales and shifts them.

    y = ((x − μ_B)/σ_B·r + d)·γ + β with r = σ_B/σ held within 1/3 … 3 and d = (μ_B − μ)/σ within ±5, neither of them
    differentiated, after ``WARM_UP`` batches; r = 1 and d = 0 before: algorithm 1 of the paper.

    Args:
        count: K, members with statistics of their own.
        features: per row.
    """

    mean: Tensor  # [K, 1, features], running
    variance: Tensor  # likewise; of the population, as in Flax
    batches: Tensor  # float32 scalar: how many were committed

    def __init__(self, count: int, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(count, 1, features))
        self.shift = nn.Parameter(torch.zeros(count, 1, features))
        self.register_buffer("mean", torch.zeros(count, 1, features))
        self.register_buffer("variance", torch.ones(count, 1, features))
        self.register_buffer("batches", torch.zeros(1))
        self._seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """float32 [K, B, features] -> the same. ``frozen``: the gradient goes to ``x`` alone."""
        scale, shift = (self.scale.detach(), self.shift.detach()) if frozen else (self.scale, self.shift)
        if not self.training:
            factor = scale * torch.rsqrt(self.variance + EPS)
            return torch.addcmul(shift - self.mean * factor, x, factor)
        with torch.no_grad():
            mean = x.mean(dim=1, keepdim=True)
            centred = x - mean
            variance = centred.square().mean(dim=1, keepdim=True)  # ``var_mean`` takes ten times as long on a CPU
            self._seen = mean, variance
            deviation = torch.sqrt(variance + EPS)
            running = torch.sqrt(self.variance + EPS)
            warm = self.batches >= WARM_UP  # on the device: nothing waits for it
            r = torch.where(warm, (deviation / running).clamp(1.0 / R_MAX, R_MAX), 1.0)
            d = torch.where(warm, ((mean - self.mean) / running).clamp(-D_MAX, D_MAX), 0.0)
        y: Tensor = _Renormalised.apply(x, scale, shift, centred, deviation, r, d)  # type: ignore[no-untyped-call]
        return y

    def commit(self) -> None:
        """Move the running statistics towards those of the batch that was normalised last."""
        if self._seen is not None:
            mean, variance = self._seen
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance, MOMENTUM)
            self.batches.add_(1.0)
            self._seen = None


class _Renormalised(torch.autograd.Function):
    """((x − μ)/σ·r + d)·γ + β, μ and σ those of the batch, to be differentiated too. The gradient is by hand:
    autograd's passes over broadcast values took half of CrossQ's update on a CPU."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, centred: Tensor, deviation: Tensor, r: Tensor, d: Tensor
    ) -> Tensor:
        """x and x − μ [K, B, features]; γ, β, σ, r and d [K, 1, features]."""
        ctx.save_for_backward(scale, centred, deviation, r, d)
        return torch.addcmul(shift + d * scale, centred, scale * r / deviation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """∂x = γ·r/σ·(g − ḡ − (x − μ)/σ²·mean(g·(x − μ))) of every batch, with g = ∂y; ∂γ = Σ g·(x̂·r + d); ∂β = Σ g."""
        scale, centred, deviation, r, d = ctx.saved_tensors
        rows, ratio = centred.shape[1], r / deviation
        both = (gradient * centred).sum(dim=1, keepdim=True)
        whole = gradient.sum(dim=1, keepdim=True)
        down: Tensor | None = None
        if ctx.needs_input_grad[0]:
            factor = scale * ratio
            down = torch.addcmul(-factor * whole / rows, gradient, factor)
            down.addcmul_(centred, factor * both / (rows * deviation.square()), value=-1.0)
        return down, ratio * both + d * whole, whole, None, None, None, None


class NormedLayers(nn.Module):
    """K MLPs: every layer's input is normalised, the network's own input too; ReLU before the normalisation.

    Layers begin as ``torch.nn.Linear`` does, U(±1/√fan_in), each member by itself.

    Args:
        count: K.
        sizes: inputs, hidden units …, outputs.
    """

    def __init__(self, count: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.count = count
        self.weights, self.biases, self.norms = nn.ParameterList(), nn.ParameterList(), nn.ModuleList()
        for inputs, outputs in pairwise(sizes):
            bound = inputs**-0.5
            self.norms.append(BatchRenorm(count, inputs))
            self.weights.append(nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound)))

    def forward(self, x: Tensor, members: Members = EVERY, frozen: bool = False) -> Tensor:
        """float32 [B, inputs], the same for all; returns [K, B, outputs], or of the ``members`` that are asked.

        ``frozen``: the gradient goes to ``x`` alone.
        """
        y = x.expand(self.count, *x.shape)
        for place, (norm, weight, bias) in enumerate(zip(self.norms, self.weights, self.biases, strict=True)):
            if place:
                y = torch.relu_(y)
            if frozen:
                weight, bias = weight.detach(), bias.detach()
            y = norm(y, frozen)
            if weight.shape[2] > 1:
                y = torch.baddbmm(bias, y, weight)
            else:  # as ``Ensemble`` does
                y = torch.linalg.vecdot(y, weight.mT).unsqueeze(2) + bias
        return y[members]


class NormedPolicy(nn.Module):
    """As ``actor_critic.Policy``, but that its layers normalise what they are given: they cannot be the trunk's, which
    has no normalisation. Critics are ``actor_critic.Critics`` with ``NormedLayers``."""

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        outputs: int,
        image_units: int = 512,
        network: str = "",
        memory: MemoryChoice | None = None,
    ) -> None:
        super().__init__()
        self.trunk = trunk_for(spec, (), image_units, network, memory=memory)
        self.layers = NormedLayers(1, (self.trunk.features, *hidden, outputs))

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, (stack,) *shape]; returns float32 [B, outputs]."""
        y: Tensor = self.layers(self.trunk(observation))
        return y[0]


@contextmanager
def in_training(network: nn.Module) -> Iterator[None]:
    """Statistics of the batch within, running ones again after it."""
    network.train()
    try:
        yield
    finally:
        network.eval()


def commit(network: nn.Module) -> None:
    """``BatchRenorm.commit`` of all layers."""
    for module in network.modules():
        if isinstance(module, BatchRenorm):
            module.commit()
