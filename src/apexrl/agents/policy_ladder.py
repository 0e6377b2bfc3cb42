"""Policies with a γ of their own that one recurrent network learns: which of them acts, and what follows from that.

Never Give Up and Agent57 (Badia et al. 2020, arXiv 2002.06038 and 2003.13350) without their curiosity. A policy is
drawn uniformly when an episode begins, where Agent57 has a bandit; how much an environment explores is its rung of the
ε ladder, whichever policy acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.horizon import ladder
from apexrl.agents.transition_batch import Observation
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.networks.recurrent_trunk import POLICY
from apexrl.spec import Array, EnvSpec, Field


class PolicyLadder:
    """The policies of a configuration. Their numbers, float32 [B, 1], begin with 1: in a state, 0 means that an episode
    begins and none is drawn yet. Of one policy alone nothing is recorded, told or drawn.

    Args:
        config: says how many, and γ of the first and the last.
        device: of batches.

    Raises:
        AgentError: γ does not fall from the first to the last.
    """

    def __init__(self, config: AgentConfig, device: torch.device) -> None:
        self.count = config.policies
        if self.count > 1 and not 0.0 < config.gamma_least <= config.gamma < 1.0:
            raise AgentError(
                f"{config.agent}: with --policies {self.count} γ falls from --gamma to --gamma-least, between 1 and 0, "
                f"and they are {config.gamma:g} and {config.gamma_least:g}"
            )
        several = self.count > 1
        self.fields = {POLICY: Field((1,), "float32", per_item=True)} if several else {}
        """What every sequence keeps."""
        gammas = ladder(self.count, config.gamma, config.gamma_least) if several else []
        self._gammas = torch.tensor(gammas, dtype=torch.float32, device=device)

    def shown(self, spec: EnvSpec) -> EnvSpec:
        """What the network sees: the environment, and which policy acts."""
        if self.count == 1:
            return spec
        return replace(spec, observation={**spec.observation, POLICY: Field((self.count,), "float32")})

    def acting(
        self, state: Mapping[str, Array], rows: int, rng: np.random.Generator, greedy: bool
    ) -> dict[str, NDArray[np.float32]]:
        """Who acts in each of ``rows`` environments: the policy that did, or a new one where an episode begins; the
        first where ``greedy``. Empty of one alone."""
        if self.count == 1:
            return {}
        if greedy:
            return {POLICY: np.ones((rows, 1), np.float32)}
        numbers = np.array(state[POLICY], np.float32) if POLICY in state else np.zeros((rows, 1), np.float32)
        begins = numbers == 0.0
        if begins.any():
            numbers[begins] = rng.integers(1, self.count + 1, size=int(begins.sum()))
        return {POLICY: numbers}

    def told(self, observation: Observation, state: Mapping[str, Tensor], lead: tuple[int, ...]) -> Observation:
        """``observation`` with the policy of ``state``, which says its number for each of B.

        Args:
            lead: dimensions between B and a field's own: of steps and of stacked frames.
        """
        if self.count == 1:
            return observation
        chosen = torch.nn.functional.one_hot(self._index(state), self.count).to(torch.float32)
        return {**observation, POLICY: chosen.view(-1, *(1,) * len(lead), self.count).expand(-1, *lead, -1)}

    def discount(self, discount: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """γ of each sequence's policy where ``discount`` [L, B] is not 0."""
        if self.count == 1:
            return discount
        return torch.where(discount > 0.0, self._gammas.to(discount.device)[self._index(state)], 0.0)

    def _index(self, state: Mapping[str, Tensor]) -> Tensor:
        """int64 [B], from 0."""
        return (state[POLICY][:, 0].long() - 1).clamp(0, self.count - 1)
