"""FastSAC: SAC for many environments at once, with categorical critics (Seo et al. 2025, arXiv 2512.01996).

What makes it fast is in its settings: thousands of environments, few updates with large batches, a small temperature.
Agent and numbers are those of the authors' code (amazon-far/holosoma), whose layers have SiLU where ours have ReLU.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from apexrl.agents import soft_categories
from apexrl.agents.memory import memory_choice
from apexrl.agents.return_heads import support_of
from apexrl.agents.sac import SAC
from apexrl.agents.trained_network import Gradients
from apexrl.agents.transition_batch import Transitions
from apexrl.config import AgentConfig
from apexrl.losses import soft_categorical_target
from apexrl.networks.actor_critic import BoundedDeviationPolicy, Critics
from apexrl.networks.encoders import LayerChoice
from apexrl.networks.ensemble import Ensemble
from apexrl.spec import EnvSpec


class FastSAC(SAC):
    """Critics of ``atoms`` returns from ``v_min`` to ``v_max``, each of which learns towards its own target. The policy
    climbs the mean of all, where SAC takes the smallest; a tanh keeps its log σ between −5 and 0.

    Raises:
        AgentError: the atoms are fewer than 2, or in no order; or as of ``SAC``.
    """

    recordable = True
    _entropy_of_action = 0.0  # of each number of an action, nats: the authors'

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(spec, config, device, seed)
        self._support = support_of(config, self._device)

    def _networks(self, spec: EnvSpec) -> tuple[BoundedDeviationPolicy, Critics]:
        config = self._config
        choice = LayerChoice(layer_norm=config.layer_norm)
        policy = BoundedDeviationPolicy(
            spec, config.hidden, 2 * self._box.size, config.image_units, config.network, choice, memory_choice(config)
        )
        layers = partial(Ensemble, layer_norm=config.layer_norm)
        return policy, self._critics_of(spec, config.critics, config.atoms, layers)

    def judged(self, q: Tensor) -> Tensor:
        """The mean of all critics, [B]."""
        return q.mean(dim=0)

    def targets(self, batch: Transitions, later: Tensor, next_log_prob: Tensor) -> Tensor:
        """``soft_categorical_target`` y_k of each critic alone, [K, B, N]."""
        alpha, probabilities = self._temperature.value, torch.softmax(later, dim=2)
        return torch.stack(
            [
                soft_categorical_target(batch.reward, batch.discount, own, next_log_prob, alpha, self._support)
                for own in probabilities.unsqueeze(1)
            ]
        )

    values, errors, critic_loss = soft_categories.values, soft_categories.errors, soft_categories.critic_loss

    def gradients(self, batch: Transitions) -> Gradients:
        """As ``SAC.gradients``; the metrics have the probability at the edges of the support besides."""
        return soft_categories.with_edges(self, batch, super().gradients(batch))
