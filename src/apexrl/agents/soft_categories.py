"""What soft actor-critics with categorical critics have alike: SimbaV2 and FastSAC."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from apexrl.agents import diagnostics
from apexrl.agents.box_actions import ActionBox
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.soft_update import CriticLoss
from apexrl.agents.trained_network import Gradients, Trained
from apexrl.agents.transition_batch import Transitions
from apexrl.losses import categorical_divergence


class CategoricalSoftAgent(Protocol):
    """The attributes that the functions below need of an agent."""

    _support: Tensor  # z [N]
    _critics: Trained[Any]
    _normalizer: Normalizer
    _box: ActionBox

    def targets(self, batch: Transitions, later: Tensor, next_log_prob: Tensor) -> Tensor: ...
    def values(self, answers: Tensor) -> Tensor: ...
    def _next_action(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, Tensor]: ...
    def _answers(self, batch: Transitions, next_action: Tensor) -> tuple[Tensor, Tensor]: ...


def values(agent: CategoricalSoftAgent, answers: Tensor) -> Tensor:
    """E[Z_k] [K, B], of the critics' logits [K, B, N]."""
    return torch.softmax(answers, dim=2) @ agent._support


def errors(
    agent: CategoricalSoftAgent, batch: Transitions, now: Tensor, later: Tensor, next_log_prob: Tensor
) -> Tensor:
    """The divergences that the critics learn from, the mean over these, [B]."""
    return _divergences(agent, batch, now, later, next_log_prob).mean(dim=0)


def critic_loss(agent: CategoricalSoftAgent, batch: Transitions, noise: Tensor) -> CriticLoss:
    """Σ_k mean(w·D_KL(y_k ‖ Z_k(s, a))), whose gradient is the cross-entropy's, with y_k of ``agent.targets``.

    Args:
        noise: [B, d] standard normal, of which the policy makes a'.
    """
    next_action, next_log_prob = agent._next_action(batch, noise)
    now, later = agent._answers(batch, next_action)  # [K, B, N]
    divergences = _divergences(agent, batch, now, later, next_log_prob)
    loss = (batch.weights * divergences).mean(dim=1).sum()
    return CriticLoss(loss, divergences.detach().mean(dim=0), agent.values(now.detach()), next_log_prob)


def with_edges(agent: CategoricalSoftAgent, batch: Transitions, found: Gradients) -> Gradients:
    """``found``, whose metrics have the probability at the edges of the support besides."""
    if found.metrics:
        seen = agent._normalizer.transitions(batch)
        actions = agent._box.to_unit(seen.action)
        found.metrics.update(diagnostics.of_support(agent._critics.network, seen.observation, actions))
    return found


def _divergences(
    agent: CategoricalSoftAgent, batch: Transitions, now: Tensor, later: Tensor, next_log_prob: Tensor
) -> Tensor:
    """D_KL(y_k ‖ Z_k) [K, B], of logits [K, B, N]."""
    targets = agent.targets(batch, later, next_log_prob).expand(len(now), -1, -1)
    return torch.stack([categorical_divergence(*pair) for pair in zip(now, targets, strict=True)])
