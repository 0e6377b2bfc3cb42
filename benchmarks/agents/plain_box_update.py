"""Learner updates of SAC and TD3 written plainly in PyTorch, for ``updates.py``: modules, torch.optim, autograd.

Two layers of 256 units, as in the papers and in CleanRL; with what a prioritized replay asks of a learner besides:
importance weights in, priorities out.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

SIZE, ACTIONS, UNITS = 17, 6, 256  # HalfCheetah's
TAU = 0.005
LEARNING_RATE = 3e-4


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, outputs)
    )


class Critics(nn.Module):
    """Two critics."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(mlp(SIZE + ACTIONS, 1) for _ in range(2))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """[2, B]."""
        x = torch.cat((observation, action), 1)
        return torch.stack([critic(x)[:, 0] for critic in self.each])


class PlainBox:
    """A policy, two critics and their target."""

    outputs = ACTIONS

    def __init__(self, device: str, compiled: bool) -> None:
        torch.manual_seed(0)
        self.policy, self.critics = mlp(SIZE, self.outputs).to(device), Critics().to(device)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        if compiled:
            for network in (self.policy, self.critics, self.target):
                network.compile()
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), LEARNING_RATE, fused=True)
        self.critics_optimizer = torch.optim.Adam(self.critics.parameters(), LEARNING_RATE, fused=True)
        self.updates = 0

    def learn_critics(self, batch: dict[str, Tensor], value: Tensor) -> Tensor:
        """One step towards r + γ·``value``; returns |δ| [B], on the device."""
        delta = batch["reward"] + batch["discount"] * value - self.critics(batch["observation"], batch["action"])
        loss = (0.5 * delta.square() * batch["weights"]).mean(1).sum()
        self.critics_optimizer.zero_grad()
        loss.backward()
        self.critics_optimizer.step()
        return delta.detach().abs().mean(0)

    def follow(self) -> None:
        with torch.no_grad():
            torch._foreach_lerp_([*self.target.parameters()], [*self.critics.parameters()], TAU)


class PlainSAC(PlainBox):
    """SAC with a learned temperature (Haarnoja et al. 2018b)."""

    outputs = 2 * ACTIONS

    def __init__(self, device: str, compiled: bool) -> None:
        super().__init__(device, compiled)
        self.log_alpha = torch.zeros((), device=device, requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], LEARNING_RATE, fused=True)

    def draw(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """An action [B, d] and its log-density [B]."""
        mean, log_std = self.policy(observation).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False)
        raw = normal.rsample()
        action = torch.tanh(raw)
        return action, (normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)).sum(1)

    def update(self, batch: dict[str, Tensor]) -> Tensor:
        """One step of all; returns the priorities [B], on the CPU."""
        with torch.no_grad():
            action, log_prob = self.draw(batch["next_observation"])
            value = self.target(batch["next_observation"], action).amin(0) - self.log_alpha.exp() * log_prob
        priorities = self.learn_critics(batch, value)
        action, log_prob = self.draw(batch["observation"])
        alpha = self.log_alpha.detach().exp()
        loss = (alpha * log_prob - self.critics(batch["observation"], action).amin(0)).mean()
        self.policy_optimizer.zero_grad()
        loss.backward()
        self.policy_optimizer.step()
        self.alpha_optimizer.zero_grad()
        (-self.log_alpha * (log_prob.detach() - ACTIONS).mean()).backward()
        self.alpha_optimizer.step()
        self.follow()
        on_cpu: Tensor = priorities.cpu()
        return on_cpu


class PlainTD3(PlainBox):
    """TD3 (Fujimoto et al. 2018)."""

    def __init__(self, device: str, compiled: bool) -> None:
        super().__init__(device, compiled)
        self.policy_target = copy.deepcopy(self.policy).requires_grad_(False)

    def update(self, batch: dict[str, Tensor]) -> Tensor:
        """One step of the critics, and at every second update of the policy; returns the priorities [B], on the CPU."""
        with torch.no_grad():
            action = torch.tanh(self.policy_target(batch["next_observation"]))
            action = (action + (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)).clamp(-1, 1)
            value = self.target(batch["next_observation"], action).amin(0)
        priorities = self.learn_critics(batch, value)
        self.updates += 1
        if self.updates % 2 == 0:
            action = torch.tanh(self.policy(batch["observation"]))
            self.policy_optimizer.zero_grad()
            (-self.critics(batch["observation"], action)[0].mean()).backward()
            self.policy_optimizer.step()
            self.follow()
            with torch.no_grad():
                torch._foreach_lerp_([*self.policy_target.parameters()], [*self.policy.parameters()], TAU)
        on_cpu: Tensor = priorities.cpu()
        return on_cpu
