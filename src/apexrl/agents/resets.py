"""Resets of a network in training, against overfitting to its first experience.

Nikishin et al. 2022 (arXiv 2205.07802) reset the last layers; D'Oro et al. 2023 (SR-SPR) and Schwarzer et al. 2023
(BBF, arXiv 2305.19452) shrink and perturb the encoder besides (Ash & Adams 2020, arXiv 1910.08475).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apexrl.agents.horizon import last_reset
from apexrl.agents.rng_state import seeded_layers
from apexrl.agents.trained_network import Trained
from apexrl.config import AgentConfig
from apexrl.networks import FlatParameters

ENCODER = "encoder."
"""Begin of the names of parameters that are shrunk and perturbed; all others begin anew."""


class Resets:
    """Resets a network every ``reset_period_updates``, and its target alike, each towards fresh weights of its own.

    Args:
        trained: the network; its parameters are those of ``make``'s.
        make: a network with fresh weights, from PyTorch's generator.
        config: says when, and how much of the encoder is kept.
        seed: of the fresh weights.
    """

    def __init__(self, trained: Trained[Any], make: Callable[[], nn.Module], config: AgentConfig, seed: int) -> None:
        self._trained, self._make, self._config = trained, make, config
        self.rng = np.random.default_rng(np.random.SeedSequence([seed, 2]))
        """Of which a resume needs the state."""

    def after(self, updates: int) -> bool:
        """Reset, if it is due after so many updates. True: it was."""
        if updates == 0 or last_reset(self._config, updates) != updates:
            return False
        trained = self._trained
        with torch.no_grad():
            for parameters in (trained.parameters, trained.target_parameters):
                with seeded_layers(int(self.rng.integers(2**63))):
                    fresh_vector = FlatParameters(self._make()).vector
                shrink_and_perturb(parameters, fresh_vector, self._config.shrink_factor)
            fresh, kept = trained.optimizer_for(trained.parameters.vector), trained.optimizer
            for name, vector in kept.state.items():
                vector.copy_(fresh.state[name])
            kept.steps.zero_()
        return True


def shrink_and_perturb(parameters: FlatParameters, fresh: Tensor, kept: float) -> None:
    """θ becomes ``kept``·θ + (1 − ``kept``)·θ' in the encoder, and θ' elsewhere, in place.

    Args:
        fresh: θ', float32 [size], laid out like ``parameters``.
        kept: 0 … 1.
    """
    share = torch.ones_like(parameters.vector)
    for name, where in parameters.slices.items():
        if name.startswith(ENCODER):
            share[where] = 1.0 - kept
    parameters.vector.lerp_(fresh.to(share.device), share)
