"""Action masks: an agent's values and logits of actions that are not possible (``spec.ACTION_MASK``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.protocols import Arrays
from apexrl.spec import ACTION_MASK, EnvSpec

LEAST = -1e30
"""The value or logit of an action that is not possible: no other is less, its softmax is exactly 0, and 0 times it is
0, which of −∞ would be NaN (Huang & Ontañón 2022, arXiv 2006.14171)."""

_LEAST = np.float32(LEAST)
_ZERO_ON_CPU, _LEAST_ON_CPU = torch.zeros(()), torch.tensor(LEAST)  # PyTorch makes a tensor of a number at each call

V = TypeVar("V")
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Observation = Mapping[str, Any]
"""Name -> array or tensor [B, (stack,) *shape]."""


class Masks(Protocol):
    """What an agent asks of the masks in its observations. n is the number of outputs: one for each action."""

    def values(self, outputs: Tensor, observation: Observation) -> Tensor:
        """Outputs float [B, n], those of actions that are not possible replaced by ``LEAST``."""

    def acted(self, outputs: Floats, observation: Arrays) -> Floats:
        """As ``values``, of arrays."""

    def networks_see(self, observation: Mapping[str, V]) -> Mapping[str, V]:
        """What an observation holds beside its mask, which no network reads."""

    def mean(self, outputs: Tensor, observation: Observation) -> float:
        """Mean of outputs [B, n], those of actions that are not possible left out."""

    def unrolled(self, outputs: Tensor, observation: Observation) -> Tensor:
        """As ``values``, of outputs [T, B, n] and observations [B, T or more, (stack,) *shape]."""

    def addends(self, observation: Observation) -> Observation:
        """A batch's observation with, in place of its mask, what ``added`` adds: float32 [..., n], 0 or ``LEAST``. For
        batches of which parts are evaluated often: an addition needs no work in the gradient."""

    def added(self, outputs: Tensor, observation: Observation) -> Tensor:
        """As ``unrolled``, of what ``addends`` made."""

    def explored(
        self, index: Ints, explore: NDArray[np.bool_], rng: np.random.Generator, observation: Observation
    ) -> Ints:
        """Actions [B], those where ``explore`` [B] is true replaced by uniformly random possible ones."""

    def steered(self, log_prob: Tensor, observation: Observation, target: float) -> Tensor:
        """E[log π] [B], moved so that it is compared with ``target``, nats, as if all actions were possible: of the
        entropy that a state's possible actions allow, the policy is to have the same share."""


class EveryAction:
    """There are no masks."""

    def __init__(self, actions: int) -> None:
        self._actions = actions

    def values(self, outputs: Tensor, observation: Observation) -> Tensor:
        return outputs

    def acted(self, outputs: Floats, observation: Arrays) -> Floats:
        return outputs

    def networks_see(self, observation: Mapping[str, V]) -> Mapping[str, V]:
        return observation

    def mean(self, outputs: Tensor, observation: Observation) -> float:
        return float(outputs.mean())

    def unrolled(self, outputs: Tensor, observation: Observation) -> Tensor:
        return outputs

    def addends(self, observation: Observation) -> Observation:
        return observation

    def added(self, outputs: Tensor, observation: Observation) -> Tensor:
        return outputs

    def explored(
        self, index: Ints, explore: NDArray[np.bool_], rng: np.random.Generator, observation: Observation
    ) -> Ints:
        return np.where(explore, rng.integers(self._actions, size=len(index)), index)

    def steered(self, log_prob: Tensor, observation: Observation, target: float) -> Tensor:
        return log_prob


class MaskedActions:
    """Reads the mask of every observation; of stacked frames that of the newest.

    Args:
        choices: alternatives of every choice, side by side in a mask.
        stacked: observations have several frames.
        combined: outputs are of all combinations, the last choice varying fastest; else they are like the mask.
    """

    def __init__(self, choices: tuple[int, ...], stacked: bool, combined: bool) -> None:
        self._choices, self._ends, self._stacked = choices, tuple(accumulate(choices)), stacked
        self._combined = combined and len(choices) > 1

    def values(self, outputs: Tensor, observation: Observation) -> Tensor:
        return _masked(outputs, self._read(observation[ACTION_MASK]))

    def acted(self, outputs: Floats, observation: Arrays) -> Floats:
        return np.where(self._read(observation[ACTION_MASK]), outputs, _LEAST)

    def networks_see(self, observation: Mapping[str, V]) -> Mapping[str, V]:
        return {name: array for name, array in observation.items() if name != ACTION_MASK}

    def mean(self, outputs: Tensor, observation: Observation) -> float:
        return float(outputs[self._read(observation[ACTION_MASK])].mean())

    def unrolled(self, outputs: Tensor, observation: Observation) -> Tensor:
        return _masked(outputs, self._read(observation[ACTION_MASK])[:, : outputs.shape[0]].transpose(0, 1))

    def addends(self, observation: Observation) -> Observation:
        return {**observation, ACTION_MASK: _lacks(self._read(observation[ACTION_MASK]))}

    def added(self, outputs: Tensor, observation: Observation) -> Tensor:
        addends: Tensor = observation[ACTION_MASK]
        return outputs + addends[:, : outputs.shape[0]].transpose(0, 1)

    def explored(
        self, index: Ints, explore: NDArray[np.bool_], rng: np.random.Generator, observation: Observation
    ) -> Ints:
        rows = np.flatnonzero(explore)
        if not len(rows):
            return index
        chosen = index.copy()
        chosen[rows] = random_possible(self._read(observation[ACTION_MASK][rows]), rng)
        return chosen

    def steered(self, log_prob: Tensor, observation: Observation, target: float) -> Tensor:
        count = self._read(observation[ACTION_MASK]).sum(dim=1)
        self._lacking = self._lacking.to(count.device)
        return torch.sub(log_prob, self._lacking.take(count), alpha=target)

    @cached_property
    def _lacking(self) -> Tensor:
        """Of as many possible actions, the share of all actions' entropy that they lack, float32 [n + 1]."""
        most = math.prod(self._choices)
        return 1.0 - torch.arange(most + 1).clamp(min=1).log() / max(math.log(most), 1e-6)

    def _read(self, mask: Any) -> Any:
        """The same of a mask, an array or a tensor [..., (stack,) sum of choices]."""
        if self._stacked:
            mask = mask[..., -1, :]
        if not self._combined:
            return mask
        first, *others = (mask[..., end - n : end] for n, end in zip(self._choices, self._ends, strict=True))
        for part in others:
            first = (first[..., :, None] & part[..., None, :]).reshape(*first.shape[:-1], -1)
        return first


def _masked(outputs: Tensor, possible: Tensor) -> Tensor:
    """Outputs, ``LEAST`` where not ``possible``. The sum has the quicker gradient, which also reaches outputs that are
    not possible; the choice is quicker where there is none."""
    if outputs.requires_grad:
        return outputs + _lacks(possible)
    return torch.where(possible, outputs, _LEAST_ON_CPU if possible.is_cpu else LEAST)


def _lacks(possible: Tensor) -> Tensor:
    """What makes outputs those of ``_masked``, float32: they vanish beside ``LEAST``."""
    return torch.where(possible, _ZERO_ON_CPU, _LEAST_ON_CPU) if possible.is_cpu else torch.where(possible, 0.0, LEAST)


def action_masks(spec: EnvSpec, combined: bool = False) -> Masks:
    """Those of an environment with discrete actions.

    Args:
        combined: of an agent that has an output for every combination of several choices.
    """
    choices = spec.action.choices
    if spec.masked:
        return MaskedActions(choices, spec.stack > 1, combined)
    return EveryAction(math.prod(choices))


def random_possible(possible: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """One uniformly random number of the columns that are true in each row of [B, n]; 0 where none is."""
    chosen: NDArray[np.int64] = np.where(possible, rng.random(possible.shape), -1.0).argmax(axis=1)
    return chosen
