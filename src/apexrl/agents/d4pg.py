"""D4PG (Barth-Maron et al. 2018, arXiv 1804.08617), under its settings Ape-X DPG with a distributional critic.

Ape-X DPG (Horgan et al. 2018, appendix D) is the same with a critic of the mean alone. The layers are the agents' usual
ones, ReLU without layer norm, where Acme's begin with layer norm and tanh.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.agents.deterministic import Deterministic
from apexrl.agents.return_heads import support_of
from apexrl.agents.trained_network import Loss
from apexrl.agents.transition_batch import Transitions
from apexrl.config import AgentConfig
from apexrl.losses.deterministic import ascent_loss
from apexrl.losses.distributional import categorical_divergence, categorical_projection
from apexrl.spec import EnvSpec

SLOPE_CLIP = 1.0
"""The most that every element of ∂Q/∂a may be (Ape-X DPG, appendix D; Acme's D4PG)."""


class D4PG(Deterministic):
    """A categorical critic on ``atoms`` returns from ``v_min`` to ``v_max``, and a policy that climbs its mean.

    Raises:
        AgentError: the actions are no box, or have no bounds; or the atoms are fewer than 2, or in no order.
    """

    recordable = True

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(spec, config, device, seed, outputs=config.atoms)
        self._support = support_of(config, self._device)

    def values(self, answers: Tensor) -> Tensor:
        return self._mean(answers)

    def errors(self, batch: Transitions, now: Tensor, later: Tensor) -> Tensor:
        """D_KL(Φ(R + d·Z(s', μ(s'))) ‖ Z(s, a)), the critic's loss."""
        return categorical_divergence(now[0], self._target_distribution(batch, later[0]))

    def critic_loss(self, batch: Transitions) -> Loss:
        """mean(w·D_KL(Φ(R + d·Z⁻(s', μ⁻(s'))) ‖ Z(s, a))): D4PG, algorithm 1, where Z is categorical."""
        with torch.no_grad():
            later = self._mu(self._policy.target, batch.next_observation)
            target = self._target_distribution(batch, self._critic.target(batch.next_observation, later)[0])
        logits = self._critic.network(batch.observation, self._box.to_unit(batch.action))[0]
        divergence = categorical_divergence(logits, target)
        return Loss((batch.weights * divergence).mean(), divergence.detach(), self._mean(logits.detach()))

    def policy_loss(self, batch: Transitions) -> Tensor:
        """A loss whose gradient is that of −mean E[Z(s, μ(s))], with ∂E[Z]/∂a clipped elementwise."""
        action = self._mu(self._policy.network, batch.observation)
        free = action.detach().requires_grad_()
        q = self._mean(self._critic.network(batch.observation, free, frozen=True)[0])
        (slope,) = torch.autograd.grad(q.sum(), free)
        return ascent_loss(action, slope, SLOPE_CLIP)

    def _mean(self, logits: Tensor) -> Tensor:
        """E[Z] [...] of logits [..., N]."""
        return torch.softmax(logits, dim=-1) @ self._support

    def _target_distribution(self, batch: Transitions, logits: Tensor) -> Tensor:
        """Φ(R + d·Z), [B, N], of the later state's logits [B, N]."""
        return categorical_projection(batch.reward, batch.discount, torch.softmax(logits, dim=1), self._support)
