"""CQL: SAC whose critics give actions that the dataset lacks low values (Kumar et al. 2020, arXiv 2006.04779)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from apexrl.agents.sac import SAC
from apexrl.agents.soft_update import CriticLoss
from apexrl.agents.transition_batch import Observation, Transitions
from apexrl.losses.deterministic import critic_target
from apexrl.losses.offline import conservative_penalty
from apexrl.losses.soft import critics_loss
from apexrl.networks.squashed_gaussian import gaussian, squash


class CQL(SAC):
    """CQL(H) with a fixed weight of its penalty. Targets hold no entropy, as in the authors' code for D4RL.

    The penalty's sum over actions is estimated from ``conservative_actions`` uniform ones, as many of the policy at s,
    and as many of the policy at s' where the episode goes on, else at s. Everything else is SAC's.
    """

    _remembers = False  # its candidates are of single states

    def critic_loss(self, batch: Transitions, noise: Tensor) -> CriticLoss:
        """Σ_k (mean(w·L(y − Q_k(s, a))) + α·``conservative_penalty``), with y = R + d·min_k Q⁻_k(s', a').

        Args:
            noise: [B, d] standard normal, of which the policy makes a'.
        """
        config = self._config
        next_action, next_log_prob = self._next_action(batch, noise)
        q, next_q = (answers.squeeze(2) for answers in self._answers(batch, next_action))  # [2, B]
        delta = critic_target(batch.reward, batch.discount, next_q) - q
        loss = critics_loss(delta, batch.weights, config.huber)
        if config.conservative_weight:
            penalty = conservative_penalty(self._candidates(batch), q, batch.weights)
            loss = loss + config.conservative_weight * penalty
        return CriticLoss(loss, delta.detach().abs().mean(dim=0), q, next_log_prob)

    def errors(self, batch: Transitions, now: Tensor, later: Tensor, next_log_prob: Tensor) -> Tensor:
        """Priorities [B], |δ|, by the same target."""
        return (critic_target(batch.reward, batch.discount, later.squeeze(2)) - now.squeeze(2)).abs().mean(dim=0)

    def _candidates(self, batch: Transitions) -> Tensor:
        """Q_k(s, a_j) − log p(a_j) of actions drawn anew, [K, B, 3·N]."""
        rows, drawn, size = len(batch.reward), self._config.conservative_actions, self._box.size
        shape = (rows * drawn, size)
        uniform = torch.empty(shape).uniform_(-1.0, 1.0, generator=self._noise).to(self._device)
        noise = torch.randn(2, *shape, generator=self._noise).to(self._device)
        with torch.no_grad():
            states = (batch.observation, _later_or_same(batch))
            outputs = (self._policy.network(state).repeat_interleave(drawn, dim=0) for state in states)
            ours = [squash(*gaussian(output), white) for output, white in zip(outputs, noise, strict=True)]
        density = torch.full((rows * drawn,), -size * math.log(2.0), device=self._device)
        found = [
            self._critics.network(_repeated(batch.observation, drawn), action).squeeze(2) - log_prob
            for action, log_prob in ((uniform, density), *ours)
        ]
        return torch.cat([one.unflatten(1, (rows, drawn)) for one in found], dim=2)


def _later_or_same(batch: Transitions) -> Observation:
    """s', or s where an episode is over: nobody acts behind a termination."""
    over = batch.discount == 0
    return {
        name: torch.where(over.view(-1, *[1] * (rows.ndim - 1)), batch.observation[name], rows)
        for name, rows in batch.next_observation.items()
    }


def _repeated(observation: Observation, times: int) -> Observation:
    """Every row so many times, one after another."""
    return {name: rows.repeat_interleave(times, dim=0) for name, rows in observation.items()}
