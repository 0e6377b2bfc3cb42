"""SimbaV2: SAC on hyperspherical networks, with categorical critics (Lee et al. 2025, arXiv 2502.15280)."""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.agents import diagnostics
from apexrl.agents.return_heads import support_of
from apexrl.agents.sac import SAC
from apexrl.agents.soft_update import CriticLoss
from apexrl.agents.trained_network import Gradients, N, Trained
from apexrl.agents.transition_batch import Transitions
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import categorical_divergence, soft_categorical_target
from apexrl.networks.actor_critic import Critics
from apexrl.networks.hyperspherical import HypersphericalLayers, HypersphericalPolicy, project
from apexrl.spec import EnvSpec


class Projected(Trained[N]):
    """A network whose weights are scaled back to length 1 after every step, before its target follows."""

    by_slices = False

    def step(self, gradient: Tensor | None = None) -> None:
        super().step(gradient)
        project(self.network)


class SimbaV2(SAC):
    """Critics of ``atoms`` returns from ``v_min`` to ``v_max``, of ``critic_hidden`` blocks; a policy of ``hidden``
    blocks. Each target is the distribution of the critic whose mean is the smallest; with one critic, its own.

    Observations and returns are to be normalised (``normalize_observations``, ``normalize_returns``), as its name says.
    All gradients of an update are taken at the same parameters, where the authors' code moves the policy first.

    Raises:
        AgentError: blocks differ in their units, or there are none; the atoms are fewer than 2, or in no order; or as
            of ``SAC``.
    """

    _trained = Projected
    _entropy_of_action = -0.5  # of each number of an action, nats: the authors'

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        for flag, units in (("--hidden", config.hidden), ("--critic-hidden", config.critic_hidden or config.hidden)):
            if len(set(units)) != 1:
                raise AgentError(
                    f"{config.agent} has residual blocks, all of the same units, and {flag} has {list(units)}: name "
                    "one number for each block, such as 128 128"
                )
        super().__init__(spec, config, device, seed)
        self._support = support_of(config, self._device)

    def _networks(self, spec: EnvSpec) -> tuple[HypersphericalPolicy, Critics]:
        config = self._config
        policy = HypersphericalPolicy(spec, config.hidden, 2 * self._box.size, config.image_units, config.network)
        return policy, self._critics_of(spec, config.critics, config.atoms, HypersphericalLayers)

    def values(self, answers: Tensor) -> Tensor:
        """E[Z_k] [K, B], of the critics' logits [K, B, N]."""
        return torch.softmax(answers, dim=2) @ self._support

    def errors(self, batch: Transitions, now: Tensor, later: Tensor, next_log_prob: Tensor) -> Tensor:
        """The divergences that the critics learn from, the mean over these."""
        return self._divergences(batch, now, later, next_log_prob).mean(dim=0)

    def critic_loss(self, batch: Transitions, noise: Tensor) -> CriticLoss:
        """Σ_k mean(w·D_KL(y ‖ Z_k(s, a))), whose gradient is the cross-entropy's, with ``soft_categorical_target`` y.

        Args:
            noise: [B, d] standard normal, of which the policy makes a'.
        """
        next_action, next_log_prob = self._next_action(batch, noise)
        now, later = self._answers(batch, next_action)  # [K, B, N]
        divergences = self._divergences(batch, now, later, next_log_prob)
        loss = (batch.weights * divergences).mean(dim=1).sum()
        return CriticLoss(loss, divergences.detach().mean(dim=0), self.values(now.detach()), next_log_prob)

    def gradients(self, batch: Transitions) -> Gradients:
        """As ``SAC.gradients``; the metrics have the probability at the edges of the support besides."""
        found = super().gradients(batch)
        if found.metrics:
            seen = self._normalizer.observation(batch.observation)
            found.metrics.update(diagnostics.of_support(self._critics.network, seen, self._box.to_unit(batch.action)))
        return found

    def _divergences(self, batch: Transitions, now: Tensor, later: Tensor, next_log_prob: Tensor) -> Tensor:
        """D_KL(y ‖ Z_k) [K, B], of logits [K, B, N]."""
        probabilities, alpha = torch.softmax(later, dim=2), self._temperature.value
        target = soft_categorical_target(
            batch.reward, batch.discount, probabilities, next_log_prob, alpha, self._support
        )
        return torch.stack([categorical_divergence(logits, target) for logits in now])
