"""The learner's update written plainly in PyTorch, for ``updates.py``: modules, torch.optim, autograd.

Double dueling DQN, and C51, on the Atari network, with what Ape-X asks of a learner: importance weights in, priorities
out.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """Nature DQN, dueling or with a distribution of ``atoms`` per action."""

    def __init__(self, actions: int, atoms: int, dueling: bool) -> None:
        super().__init__()
        self.shape = (actions, atoms)
        self.features = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        self.value = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, atoms)) if dueling else None
        self.advantage = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions * atoms))

    def forward(self, observation: Tensor) -> Tensor:
        """uint8 [B, 4, 84, 84] -> [B, actions, atoms]."""
        x = self.features(observation.float() / 255)
        advantage: Tensor = self.advantage(x).view(-1, *self.shape)
        if self.value is None:
            return advantage
        value: Tensor = self.value(x).unsqueeze(1)
        return value + advantage - advantage.mean(1, keepdim=True)


class Plain:
    """Double dueling DQN, or C51, with gradient clipping; the target is copied now and then."""

    def __init__(self, actions: int, device: str, categorical: bool, adam: bool, compiled: bool) -> None:
        torch.manual_seed(0)
        self.online = Network(actions, 51 if categorical else 1, dueling=not categorical).to(device)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.support = torch.linspace(-10, 10, 51, device=device) if categorical else None
        if compiled:
            self.online.compile()
            self.target.compile()
        parameters = self.online.parameters()
        self.optimizer: torch.optim.Optimizer
        if adam:
            self.optimizer = torch.optim.Adam(parameters, lr=6.25e-5, eps=1.5e-4)
        else:
            self.optimizer = torch.optim.RMSprop(parameters, lr=6.25e-5, alpha=0.95, eps=1.5e-7, centered=True)
        self.updates = 0

    def update(self, batch: dict[str, Tensor]) -> Tensor:
        """One step; returns the priorities [B], on the CPU."""
        rows = torch.arange(len(batch["action"]), device=batch["action"].device)
        z = self.online(batch["observation"])[rows, batch["action"]]  # [B, atoms]
        with torch.no_grad():
            later = self.target(batch["next_observation"])  # [B, actions, atoms]
            if self.support is None:
                best = self.online(batch["next_observation"])[..., 0].argmax(1)
            else:
                best = (later.softmax(2) @ self.support).argmax(1)
            target = later[rows, best]
        if self.support is None:
            delta = batch["reward"] + batch["discount"] * target[:, 0] - z[:, 0]
            losses, priorities = 0.5 * delta.square(), delta.detach().abs()
        else:
            projected = self.project(target.softmax(1), batch["reward"], batch["discount"])
            losses = -(projected * z.log_softmax(1)).sum(1)
            priorities = losses.detach()
        self.optimizer.zero_grad()
        (losses * batch["weights"]).mean().backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 40.0)
        self.optimizer.step()
        self.updates += 1
        if self.updates % 2500 == 0:
            self.target.load_state_dict(self.online.state_dict())
        on_cpu: Tensor = priorities.cpu()
        return on_cpu

    def project(self, p: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """The distribution ``p`` [B, atoms] of r + γ·z, on the same atoms (Bellemare et al. 2017, algorithm 1)."""
        assert self.support is not None
        moved = (reward[:, None] + discount[:, None] * self.support).clamp(-10, 10)
        b = (moved + 10) / (20 / 50)
        low, high = b.floor().clamp(0, 50).long(), b.ceil().clamp(0, 50).long()
        out = torch.zeros_like(p)
        out.scatter_add_(1, low, p * (high - b + (low == high)))
        out.scatter_add_(1, high, p * (b - low))
        return out
