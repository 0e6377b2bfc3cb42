"""SimbaV2: SAC on hyperspherical networks, with categorical critics (Lee et al. 2025, arXiv 2502.15280)."""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.agents import soft_categories
from apexrl.agents.return_heads import support_of
from apexrl.agents.sac import SAC
from apexrl.agents.trained_network import Gradients, N, Trained
from apexrl.agents.transition_batch import Transitions
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import soft_categorical_target
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

    recordable = True
    _remembers = False  # the length of what a memory puts out is not 1
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

    def targets(self, batch: Transitions, later: Tensor, next_log_prob: Tensor) -> Tensor:
        """``soft_categorical_target`` y [N] of every row, the same for all critics, [1, B, N]."""
        alpha, probabilities = self._temperature.value, torch.softmax(later, dim=2)
        return soft_categorical_target(
            batch.reward, batch.discount, probabilities, next_log_prob, alpha, self._support
        ).unsqueeze(0)

    values, errors, critic_loss = soft_categories.values, soft_categories.errors, soft_categories.critic_loss

    def gradients(self, batch: Transitions) -> Gradients:
        """As ``SAC.gradients``; the metrics have the probability at the edges of the support besides."""
        return soft_categories.with_edges(self, batch, super().gradients(batch))
