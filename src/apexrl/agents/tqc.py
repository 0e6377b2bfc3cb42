"""TQC: SAC whose critics learn quantiles, the greatest of which count for no target (Kuznetsov et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from apexrl.agents.return_heads import midpoints
from apexrl.agents.sac import SAC
from apexrl.agents.soft_update import CriticLoss
from apexrl.agents.transition_batch import Transitions
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import sorted_quantile_loss, truncated_target
from apexrl.networks.actor_critic import Critics, Policy
from apexrl.spec import EnvSpec


class TQC(SAC):
    """``critics`` of ``quantiles`` each; targets leave out the ``dropped_quantiles``·K greatest of all. The policy
    climbs the mean of all quantiles (arXiv 2005.04269, algorithm 1). Everything else is SAC's.

    Raises:
        AgentError: nothing would be left of the quantiles; or as of ``SAC``.
    """

    recordable = True

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        if not 0 <= config.dropped_quantiles < config.quantiles:
            raise AgentError(
                f"{config.agent} leaves out --dropped-quantiles {config.dropped_quantiles} of every critic's "
                f"--quantiles {config.quantiles}: one at least must be left"
            )
        super().__init__(spec, config, device, seed)
        self._middles = midpoints(config.quantiles, self._device)
        self._huber = config.huber or 1.0  # the paper's κ

    def _networks(self, spec: EnvSpec) -> tuple[Policy, Critics]:
        return self._policy_of(spec), self._critics_of(spec, self._config.critics, self._config.quantiles)

    def values(self, answers: Tensor) -> Tensor:
        """Q [K, B], the mean of each critic's quantiles [K, B, M]."""
        return answers.mean(dim=2)

    def judged(self, q: Tensor) -> Tensor:
        """The mean of all critics, [B]: the truncation has done what the smaller one of two does in SAC."""
        return q.mean(dim=0)

    def errors(self, batch: Transitions, now: Tensor, later: Tensor, next_log_prob: Tensor) -> Tensor:
        """|mean_i y_i − Q_k(s, a)|, the mean over the critics."""
        return self._distance(self._target(batch, later, next_log_prob), now)

    def critic_loss(self, batch: Transitions, noise: Tensor) -> CriticLoss:
        """The mean over critics, quantiles and rows of w·``quantile_loss`` against ``truncated_target``.

        Args:
            noise: [B, d] standard normal, of which the policy makes a'.
        """
        next_action, next_log_prob = self._next_action(batch, noise)
        now, later = self._answers(batch, next_action)  # [K, B, M]
        target = self._target(batch, later, next_log_prob)  # [B, N]
        rows = now.transpose(0, 1)  # of one row all critics' quantiles stand side by side, [B, K·M]
        losses = sorted_quantile_loss(rows.flatten(1), self._middles.repeat(len(now)), target, self._huber)
        loss = (batch.weights * losses).mean() / rows[0].numel()
        return CriticLoss(loss, self._distance(target, now.detach()), self.values(now), next_log_prob)

    def _target(self, batch: Transitions, later: Tensor, next_log_prob: Tensor) -> Tensor:
        dropped, alpha = self._config.dropped_quantiles, self._temperature.value
        return truncated_target(batch.reward, batch.discount, later, next_log_prob, alpha, dropped)

    def _distance(self, target: Tensor, now: Tensor) -> Tensor:
        """Of mean_i y_i [B] from the critics' means, averaged: [B]."""
        return (target.mean(dim=1) - self.values(now)).abs().mean(dim=0)
