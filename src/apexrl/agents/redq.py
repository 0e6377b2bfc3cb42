"""REDQ (Chen et al. 2021, arXiv 2101.05982), and DroQ (Hiraoka et al. 2022, arXiv 2110.02034) by its switches.

Both are SAC with many updates for every step of the environment. What keeps their values from running away is an
ensemble of which few, drawn anew, are asked; or dropout and layer norm in two critics.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from apexrl.agents.sac import SAC
from apexrl.agents.transition_batch import Transitions
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.networks.actor_critic import Critics, Policy
from apexrl.networks.ensemble import Dropout, Ensemble
from apexrl.spec import EnvSpec


class REDQ(SAC):
    """The target is the smallest value of ``target_critics``, drawn for every update from all ``critics``; all of these
    learn towards it. The policy climbs the mean of all (REDQ, algorithm 1).

    With ``critic_dropout`` targets and the values that the policy climbs have dropout too (DroQ, algorithm 2 and the
    authors' code). Acting, priorities and expected returns have none.

    Raises:
        AgentError: more critics are to be drawn than there are; or as of ``SAC``.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        if not 1 <= config.target_critics <= config.critics:
            raise AgentError(
                f"{config.agent} draws --target-critics {config.target_critics} of --critics {config.critics}: it must "
                "be one at least, and all at most"
            )
        super().__init__(spec, config, device, seed)
        self._dropout = Dropout(config.critic_dropout, self._noise) if config.critic_dropout else None

    def _networks(self, spec: EnvSpec) -> tuple[Policy, Critics]:
        layers = partial(Ensemble, layer_norm=self._config.critic_layer_norm)
        return self._policy_of(spec), self._critics_of(spec, self._config.critics, layers=layers)

    def judged(self, q: Tensor) -> Tensor:
        """The mean of all critics, [B]."""
        return q.mean(dim=0)

    def errors(self, batch: Transitions, now: Tensor, later: Tensor, next_log_prob: Tensor) -> Tensor:
        """As of ``SAC``, the mean over all critics; the target is of some that are drawn."""
        some = self._rng.choice(self._config.critics, self._config.target_critics, replace=False)
        return super().errors(batch, now, later[some.tolist()], next_log_prob)

    def _answers(self, batch: Transitions, next_action: Tensor) -> tuple[Tensor, Tensor]:
        """Of all critics at (s, a), [K, B, 1], and of the targets that are drawn at (s', a'), [M, B, 1]."""
        some = torch.randperm(self._config.critics, generator=self._noise)[: self._config.target_critics].tolist()
        action = self._box.to_unit(batch.action)
        now = self._critics.network(batch.observation, action, dropout=self._dropout)
        with torch.no_grad():
            return now, self._critics.target(batch.next_observation, next_action, some, dropout=self._dropout)

    def _climbed(self, batch: Transitions, action: Tensor) -> Tensor:
        answers: Tensor = self._critics.network(batch.observation, action, frozen=True, dropout=self._dropout)
        return answers
