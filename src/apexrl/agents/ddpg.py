"""DDPG (Lillicrap et al. 2016, arXiv 1509.02971), and with ``residual`` Bi-Res-DDPG (Zhang et al. 2019, 1905.01072)."""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.agents.deterministic import Deterministic
from apexrl.agents.trained_network import Loss
from apexrl.agents.transition_batch import Transitions, side_by_side
from apexrl.config import AgentConfig
from apexrl.losses.deterministic import bidirectional_loss, critic_target
from apexrl.losses.values import td_loss
from apexrl.spec import EnvSpec


class DDPG(Deterministic):
    """One critic, and a policy that climbs it.

    ``residual`` is Bi-Res-DDPG's η: the critic then also learns backwards in time, from the later state's value, with
    the target network on the earlier side. η is the authors' (0.05 in their main runs); tf2rl's carries a γ beside it.
    That term is unbiased only where transitions are deterministic.
    """

    recordable = True

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(spec, config, device, seed)

    def errors(self, batch: Transitions, now: Tensor, later: Tensor) -> Tensor:
        """|δ1|, of Bi-Res-DDPG too."""
        return (critic_target(batch.reward, batch.discount, later[..., 0]) - now[0, :, 0]).abs()

    def critic_loss(self, batch: Transitions) -> Loss:
        """½·mean(w·δ²) with δ = R + d·Q⁻(s', μ⁻(s')) − Q(s, a); with η also ``bidirectional_loss``'s second half."""
        if self._config.residual:
            return self._loss_both_ways(batch)
        critic, policy = self._critic, self._policy
        with torch.no_grad():
            later = self._mu(policy.target, batch.next_observation)
            target = critic_target(batch.reward, batch.discount, critic.target(batch.next_observation, later)[..., 0])
        q = critic.network(batch.observation, self._box.to_unit(batch.action))[0, :, 0]
        delta = target - q
        return Loss(td_loss(delta, batch.weights, self._config.huber), delta.detach().abs(), q.detach())

    def _loss_both_ways(self, batch: Transitions) -> Loss:
        critic, policy, config = self._critic, self._policy, self._config
        both = side_by_side(batch.observation, batch.next_observation)
        action = self._box.to_unit(batch.action)
        with torch.no_grad():
            later_target = self._mu(policy.target, batch.next_observation)
            later = self._mu(policy.network, batch.next_observation)
            target_q, target_next = critic.target(both, torch.cat((action, later_target)))[0, :, 0].tensor_split(2)
        q, next_q = critic.network(both, torch.cat((action, later)))[0, :, 0].tensor_split(2)
        forward = torch.addcmul(batch.reward, batch.discount, target_next) - q
        backward = torch.addcmul(batch.reward, batch.discount, next_q) - target_q
        loss = bidirectional_loss(forward, backward, batch.weights, config.residual, config.huber)
        return Loss(loss, forward.detach().abs(), q.detach())

    def policy_loss(self, batch: Transitions) -> Tensor:
        """−mean Q(s, μ(s)): its gradient is the deterministic policy gradient (DDPG, equation 6)."""
        action = self._mu(self._policy.network, batch.observation)
        q: Tensor = self._critic.network(batch.observation, action, frozen=True)
        return -q.mean()
