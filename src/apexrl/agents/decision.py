"""Acting in PyTorch alone, for agents that leave this package (``evaluation.export``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from apexrl.agents.acting_noise import ActingNoise
from apexrl.agents.rng_state import RandomGenerator
from apexrl.agents.transition_batch import Observation


class Decision(NamedTuple):
    """What an agent decides for B environments."""

    action: Tensor  # [B] or [B, *shape], counted from 0 where it is discrete
    state: dict[str, Tensor]  # recurrent state after it, name -> [B, ...]


@runtime_checkable
class Decides(Protocol):
    """An agent whose greedy acting can be exported."""

    def decide(self, observation: Observation, state: Mapping[str, Tensor]) -> Decision:
        """As ``act`` with ``greedy``.

        Args:
            observation: name -> [B, (stack,) *shape], raw.
            state: recurrent state, name -> [B, ...]; zeros at the beginning of an episode.
        """


@runtime_checkable
class Draws(Protocol):
    """An agent whose policy draws actions, which can be exported too."""

    policy_noise: ActingNoise
    """By whose ``numbers`` ``act`` draws, and from nothing else."""
    generators: dict[str, RandomGenerator]
    """``rng``: NumPy's, where ``act`` has them from."""

    def decide(self, observation: Observation, state: Mapping[str, Tensor], noise: Tensor | None = None) -> Decision:
        """As of ``Decides``; with ``noise`` as ``act`` draws by these numbers.

        Args:
            noise: float32 [B, k], uniform in 0 … 1 (1 left out) or standard normal, as ``policy_noise.kind`` says.
        """
