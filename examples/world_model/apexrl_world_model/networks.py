"""The model: latent states, their dynamics, rewards, values and a policy (Hansen et al. 2024, arXiv 2310.16828)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mish, one_hot, softmax

GROUP = 8  # numbers of a latent state that are a distribution (the paper's SimNorm)
BINS, RANGE = 101, 10.0  # of rewards and values, in symlog units


class Normed(nn.Module):
    """A linear layer, layer normalisation, Mish."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), nn.LayerNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return mish(self.norm(self.linear(x)))


class Simplices(nn.Module):
    """A softmax over each group of numbers, which keeps latent states bounded."""

    def forward(self, x: Tensor) -> Tensor:
        return softmax(x.unflatten(-1, (-1, GROUP)), -1).flatten(-2)


def mlp(inputs: int, units: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Normed(inputs, units), Normed(units, units), nn.Linear(units, outputs))


class WorldModel(nn.Module):
    """Networks of latent states [..., latent] and actions [..., size], which are numbers in −1 … 1 or one-hot."""

    def __init__(self, observation: int, size: int, latent: int, units: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(mlp(observation, units, latent), Simplices())
        self.dynamics = nn.Sequential(mlp(latent + size, units, latent), Simplices())
        self.reward = mlp(latent + size, units, BINS)
        self.values = nn.ModuleList(mlp(latent + size, units, BINS) for _ in range(2))
        self.policy = mlp(latent, units, 2 * size)
        for last in (self.reward[-1], *(value[-1] for value in self.values)):  # nothing is expected at first
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def next(self, z: Tensor, action: Tensor) -> Tensor:
        return self.dynamics(torch.cat((z, action), -1))

    def expected_reward(self, z: Tensor, action: Tensor) -> Tensor:
        """Of one step, [...]."""
        return expected(self.reward(torch.cat((z, action), -1)))

    def value_logits(self, z: Tensor, action: Tensor) -> Tensor:
        """Of both critics, [2, ..., BINS]."""
        x = torch.cat((z, action), -1)
        return torch.stack([value(x) for value in self.values])

    def gaussian(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log σ of the policy before it is squashed, [..., size] each."""
        mean, log_std = self.policy(z).chunk(2, -1)
        return mean, -4.0 + 3.0 * (torch.tanh(log_std) + 1.0)  # σ: e^-4 … e^2


def symlog(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.expm1(x.abs())


def expected(logits: Tensor) -> Tensor:
    """The number [...] that a distribution over bins [..., BINS] stands for."""
    bins = torch.linspace(-RANGE, RANGE, BINS, device=logits.device)
    return symexp((softmax(logits, -1) * bins).sum(-1))


def two_hot(x: Tensor) -> Tensor:
    """Numbers [...] as distributions over the two nearest bins, [..., BINS]."""
    place = (symlog(x).clamp(-RANGE, RANGE) + RANGE) * (BINS - 1) / (2 * RANGE)
    low = place.floor().clamp(max=BINS - 2)
    part = (place - low).unsqueeze(-1)
    low = low.long()
    return one_hot(low, BINS) * (1 - part) + one_hot(low + 1, BINS) * part


def cross_entropy(logits: Tensor, number: Tensor) -> Tensor:
    """Of predicted distributions [..., BINS] and numbers [...], [...]."""
    return -(two_hot(number) * torch.log_softmax(logits, -1)).sum(-1)
