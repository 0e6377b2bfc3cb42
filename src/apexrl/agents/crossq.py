"""CrossQ: SAC with batch normalisation instead of target networks (Bhatt et al. 2024, arXiv 1902.05605)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from apexrl.agents.memory import memory_choice
from apexrl.agents.sac import CRITICS, SAC
from apexrl.agents.transition_batch import Transitions, side_by_side
from apexrl.networks.actor_critic import Critics
from apexrl.networks.batch_norm import NormedLayers, NormedPolicy, commit, in_training
from apexrl.spec import EnvSpec


class CrossQ(SAC):
    """Critics judge (s, a) and (s', a') in one pass, whose batch statistics are then those of both: what makes
    normalisation work here, and target networks needless. Policies are normalised too, as in the authors' code.

    Everything else is SAC's. Acting and priorities use the running statistics, which travel with the weights.
    """

    _targets = False

    def _networks(self, spec: EnvSpec) -> tuple[NormedPolicy, Critics]:
        config = self._config
        memory = memory_choice(config)
        policy = NormedPolicy(spec, config.hidden, 2 * self._box.size, config.image_units, config.network, memory)
        return policy.eval(), self._critics_of(spec, CRITICS, layers=NormedLayers).eval()

    def _answers(self, batch: Transitions, next_action: Tensor) -> tuple[Tensor, Tensor]:
        both = side_by_side(batch.observation, batch.next_observation)
        actions = torch.cat((self._box.to_unit(batch.action), next_action))
        with in_training(self._critics.network):
            now, later = self._critics.network(both, actions).tensor_split(2, dim=1)
        return now, later.detach()

    def _policy_output(self, batch: Transitions) -> Tensor:
        with in_training(self._policy.network):
            output: Tensor = self._policy.network(batch.observation)
        return output

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """As ``SAC.apply``; and the running statistics move towards the batch's."""
        super().apply(groups)
        commit(self._critics.network)
        if "policy" in groups:
            commit(self._policy.network)
