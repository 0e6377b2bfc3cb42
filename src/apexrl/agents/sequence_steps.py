"""Single steps of sequences as transitions, so that agents learn from sequences by the rules that they have.

Every step that was taken becomes a transition over n steps, or fewer where the sequence ends first, as of R2D2's
targets. Its observations are rows of a ``Window``, which networks with a memory run through as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from apexrl.agents.sequence_batch import Sequences
from apexrl.agents.transition_batch import Transitions
from apexrl.losses import sequence_priority
from apexrl.networks.recall import Recalled, Window


class Steps(NamedTuple):
    """The N steps that were taken in B sequences of L, time first."""

    rows: Tensor  # int64 [N], t·B + b
    later: Tensor  # int64 [N], of the observation to bootstrap from, of (L + 1)·B
    reward: Tensor  # [N] float32, n-step return without its bootstrap
    discount: Tensor  # [N] float32, γ^m · (1 − terminated)


def steps_of(reward: Tensor, discount: Tensor, mask: Tensor, n_step: int) -> Steps:
    """The steps where ``mask`` [L, B] is true, of which the rewards [L, B] and discounts [L, B] of one step are
    given."""
    length, sequences = mask.shape
    total, product, ahead = reward.clone(), discount.clone(), torch.ones_like(mask, dtype=torch.int64)
    for n in range(1, min(n_step, length)):
        here, later = slice(0, length - n), slice(n, length)
        goes_on = mask[later] & (product[here] > 0.0)
        total[here] += torch.where(goes_on, product[here] * reward[later], 0.0)
        product[here] = torch.where(goes_on, product[here] * discount[later], product[here])
        ahead[here] += goes_on
    rows = mask.flatten().nonzero().squeeze(1)
    later_rows = rows + sequences * ahead.flatten()[rows]
    return Steps(rows, later_rows, total.flatten()[rows], product.flatten()[rows])


def as_transitions(batch: Sequences, n_step: int) -> Transitions:
    """Every step of a scaled batch as a transition with its sequence's weight; 0 where it may not be learned from."""
    steps = steps_of(batch.reward, batch.discount, batch.mask, n_step)
    window = Window(batch.warming, batch.observation, batch.state, batch.first, batch.resets)
    weights = torch.where(batch.fresh, batch.weights, 0.0).flatten()[steps.rows]
    return Transitions(
        Recalled(window, steps.rows),
        Recalled(window, steps.later),
        batch.action.flatten(0, 1)[steps.rows],
        steps.reward,
        steps.discount,
        weights,
        batch.mask,
    )


def item_priorities(batch: Transitions, errors: Tensor, eta: float) -> Tensor:
    """Priorities of what was drawn, from those of the rows: the same, or of steps of sequences
    η·max + (1 − η)·mean of each."""
    return errors if batch.mask is None else of_sequences(batch.mask, errors, eta)


def of_sequences(mask: Tensor, errors: Tensor, eta: float) -> Tensor:
    """``sequence_priority`` [B] of the ``errors`` [N] of the steps where ``mask`` [L, B] is true."""
    delta = torch.zeros(mask.shape, dtype=errors.dtype, device=errors.device)
    delta[mask] = errors.detach()
    return sequence_priority(delta, mask, eta)


def recorded_at(steps: Steps, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fields [L + 1, B, ...] that acting recorded, at the steps and, as ``next_…``, at the later ones, [N, ...]."""
    flat = {name: values.flatten(0, 1) for name, values in recorded.items()}
    found = {name: values[steps.rows] for name, values in flat.items()}
    return found | {f"next_{name}": values[steps.later] for name, values in flat.items()}
