"""FastTD3: TD3 for many environments at once, with categorical critics (Seo et al. 2025, arXiv 2505.22642).

What makes it fast is in its settings: hundreds of environments, few updates with large batches, noise of another size
in every environment. Agent and numbers are those of the authors' code (younggyoseo/FastTD3).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from apexrl.agents.deterministic import Deterministic
from apexrl.agents.return_heads import support_of
from apexrl.agents.rng_state import noise_generator
from apexrl.agents.trained_network import Loss
from apexrl.agents.transition_batch import Transitions, to_device
from apexrl.config import AgentConfig
from apexrl.losses.deterministic import smaller_projection, smoothed
from apexrl.losses.distributional import categorical_divergence
from apexrl.spec import EnvSpec

CRITICS = 2
FIRST_DEVIATION = 0.01  # of the weights of the policy's last layer: first actions are near the middle


class FastTD3(Deterministic):
    """Two categorical critics on ``atoms`` returns from ``v_min`` to ``v_max``, both of which learn towards the
    projected target whose mean is the smaller. Target actions are those of the present policy, which has no target.

    Raises:
        AgentError: the actions are no box, or have no bounds; or the atoms are fewer than 2, or in no order.
    """

    recordable = True
    _policy_target = False

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(spec, config, device, seed, CRITICS, config.atoms)
        self._support = support_of(config, self._device)
        self.generators["noise"] = self._noise = noise_generator(seed)
        head = self._policy.network.head
        with torch.no_grad():
            weight = torch.empty(head.weight.shape).normal_(0.0, FIRST_DEVIATION, generator=self._noise)
            head.weight.copy_(weight)
            head.bias.zero_()

    def values(self, answers: Tensor) -> Tensor:
        """E[Z_k] [K, B], of the critics' logits [K, B, N]."""
        return torch.softmax(answers, dim=2) @ self._support

    def errors(self, batch: Transitions, now: Tensor, later: Tensor) -> Tensor:
        """The divergences that the critics learn from, the mean of both."""
        return self._divergences(batch, now, later).mean(dim=0)

    def _draw(self, rows: int) -> tuple[Tensor]:
        return (to_device(torch.randn(rows, self._box.size, generator=self._noise), self._device),)

    def critic_loss(self, batch: Transitions) -> Loss:
        """Σ_k mean(w·D_KL(y ‖ Z_k(s, a))) with ``smaller_projection`` y at s', a' = ``smoothed`` μ(s')."""
        config, critic = self._config, self._critic
        with torch.no_grad():
            action = self._mu(self._policy.network, batch.next_observation)
            (noise,) = self._given or self._draw(len(action))
            action = smoothed(action, config.target_noise * noise, config.target_noise_clip)
            later = critic.target(batch.next_observation, action)
        now = critic.network(batch.observation, self._box.to_unit(batch.action))  # [K, B, N]
        divergences = self._divergences(batch, now, later)
        loss = (batch.weights * divergences).mean(dim=1).sum()
        return Loss(loss, divergences.detach().mean(dim=0), self.values(now.detach()))

    def policy_loss(self, batch: Transitions) -> Tensor:
        """−mean min_k E[Z_k(s, μ(s))]."""
        action = self._mu(self._policy.network, batch.observation)
        return -self.values(self._critic.network(batch.observation, action, frozen=True)).amin(dim=0).mean()

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """As of ``Deterministic``; with ``eager_targets`` the target critics move with every update."""
        super().apply(groups)
        if self._config.eager_targets and self._config.polyak and "policy" not in groups:
            self._critic.follow(self.updates)

    def _divergences(self, batch: Transitions, now: Tensor, later: Tensor) -> Tensor:
        """D_KL(y ‖ Z_k) [K, B], of logits [K, B, N]."""
        target = smaller_projection(batch.reward, batch.discount, torch.softmax(later, dim=2), self._support)
        return torch.stack([categorical_divergence(logits, target) for logits in now])
