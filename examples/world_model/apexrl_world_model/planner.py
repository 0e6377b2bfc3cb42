"""Planning by sampling: model-predictive path integral control (Williams et al. 2015), as TD-MPC2 has it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apexrl_world_model.actions import Actions
from apexrl_world_model.networks import WorldModel, expected


@dataclass(frozen=True)
class Planner:
    """Plans for B environments at once."""

    model: WorldModel
    actions: Actions
    horizon: int
    samples: int
    by_policy: int  # samples that the policy proposes
    elites: int
    iterations: int
    temperature: float
    least_std: float

    def plan(self, z: Tensor, before: Tensor, gamma: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """A plan for each environment.

        Args:
            z: latent states [B, latent].
            before: the last plan [B, horizon, size]; zeros at an episode's first step.
            gamma: discount of a step.

        Returns:
            Its mean and its σ, [B, horizon, size] each.
        """
        rows, size = len(z), self.actions.size
        mean = torch.cat((before[:, 1:], torch.zeros(rows, 1, size)), 1)
        std = torch.full_like(mean, 1.0)
        proposed = self._proposed(z, rng)
        drawn = self.samples - self.by_policy
        for _ in range(self.iterations):
            noise = torch.randn(rows, drawn, self.horizon, size, generator=rng)
            numbers = (mean[:, None] + std[:, None] * noise).clamp(-1, 1)
            numbers = torch.cat((numbers, proposed), 1)  # [B, samples, horizon, size]
            best = self._returns(z, numbers, gamma, rng).topk(self.elites, 1)
            elites = numbers.gather(1, best.indices[:, :, None, None].expand(-1, -1, self.horizon, size))
            scores = torch.exp(self.temperature * (best.values - best.values[:, :1]))
            weights = (scores / scores.sum(1, keepdim=True))[:, :, None, None]
            mean = (weights * elites).sum(1)
            std = (weights * (elites - mean[:, None]) ** 2).sum(1).sqrt().clamp(self.least_std, 1.0)
        return mean, std

    def _proposed(self, z: Tensor, rng: torch.Generator) -> Tensor:
        """The policy's sequences of actions [B, by_policy, horizon, size]."""
        z = z[:, None].expand(-1, self.by_policy, -1)
        numbers = []
        for _ in range(self.horizon):
            numbers.append(drawn_action(self.model, z, rng)[0])
            z = self.model.next(z, self.actions.seen(numbers[-1]))
        return torch.stack(numbers, 2)

    def _returns(self, z: Tensor, numbers: Tensor, gamma: float, rng: torch.Generator) -> Tensor:
        """Of each sequence, with the value of the state that it leads to, [B, samples]."""
        z = z[:, None].expand(-1, numbers.shape[1], -1)
        total, discount = torch.zeros(numbers.shape[:2]), 1.0
        for step in range(self.horizon):
            action = self.actions.seen(numbers[:, :, step])
            total = total + discount * self.model.expected_reward(z, action)
            z, discount = self.model.next(z, action), discount * gamma
        last = self.actions.seen(drawn_action(self.model, z, rng)[0])
        return total + discount * expected(self.model.value_logits(z, last)).mean(0)


def drawn_action(model: WorldModel, z: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers in −1 … 1 from the policy, [..., size], and the entropy of each draw, −log π, [...]."""
    mean, log_std = model.gaussian(z)
    noise = torch.randn(mean.shape, generator=rng)
    numbers = torch.tanh(mean + noise * log_std.exp())
    log_prob = (-0.5 * noise**2 - log_std - torch.log(1 - numbers**2 + 1e-6)).sum(-1)
    return numbers, -log_prob
