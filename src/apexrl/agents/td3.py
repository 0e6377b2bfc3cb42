"""TD3 (Fujimoto et al. 2018, arXiv 1802.09477), and with ``cloned_value_weight`` TD3+BC (Fujimoto & Gu 2021,
arXiv 2106.06860)."""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.agents.deterministic import Deterministic
from apexrl.agents.rng_state import noise_generator
from apexrl.agents.trained_network import Loss
from apexrl.agents.transition_batch import Transitions, to_device
from apexrl.config import AgentConfig
from apexrl.losses.deterministic import critic_target, smoothed
from apexrl.losses.offline import cloned_policy_loss
from apexrl.losses.soft import critics_loss
from apexrl.spec import EnvSpec


class TD3(Deterministic):
    """Two critics, of which targets take the smaller value; noise on target actions; policy and targets that move with
    every ``policy_period_updates``-th update of the critics."""

    recordable = True

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(spec, config, device, seed, critics=2)
        self.generators["noise"] = self._noise = noise_generator(seed)

    def errors(self, batch: Transitions, now: Tensor, later: Tensor) -> Tensor:
        """|δ|, mean over both critics."""
        target = critic_target(batch.reward, batch.discount, later[..., 0])
        return (target - now[..., 0]).abs().mean(dim=0)

    def _draw(self, rows: int) -> tuple[Tensor]:
        return (to_device(torch.randn(rows, self._box.size, generator=self._noise), self._device),)

    def critic_loss(self, batch: Transitions) -> Loss:
        """Σ_k ½·mean(w·δ_k²) with δ_k = R + d·min_j Q⁻_j(s', a') − Q_k(s, a) and a' = ``smoothed`` μ⁻(s')."""
        config, critic = self._config, self._critic
        with torch.no_grad():
            later = self._mu(self._policy.target, batch.next_observation)
            (noise,) = self._given or self._draw(len(later))
            later = smoothed(later, config.target_noise * noise, config.target_noise_clip)
            next_q = critic.target(batch.next_observation, later)[..., 0]
            target = critic_target(batch.reward, batch.discount, next_q)
        q = critic.network(batch.observation, self._box.to_unit(batch.action))[..., 0]
        delta = target - q
        loss = critics_loss(delta, batch.weights, config.huber)
        return Loss(loss, delta.detach().abs().mean(dim=0), q.detach())

    def policy_loss(self, batch: Transitions) -> Tensor:
        """−mean Q_1(s, μ(s)): the policy climbs the first critic alone (TD3, algorithm 1). With
        ``cloned_value_weight`` ``cloned_policy_loss``, of TD3+BC."""
        action = self._mu(self._policy.network, batch.observation)
        q: Tensor = self._critic.network(batch.observation, action, slice(1), frozen=True)
        if not self._config.cloned_value_weight:
            return -q.mean()
        recorded = self._box.to_unit(batch.action)
        return cloned_policy_loss(q[0, :, 0], action, recorded, self._config.cloned_value_weight)
