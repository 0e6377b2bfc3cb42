"""A sampled batch of sequences on the device, as agents with a recurrent network take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from apexrl.agents.transition_batch import on_device, to_device, unread
from apexrl.protocols import FRESH, Sampled
from apexrl.spec import Array, split_observation

H, C = "lstm_h", "lstm_c"  # the fields of an LSTM's state


class Sequences(NamedTuple):
    """B sequences of W steps that only warm the state up and then L that are trained on, on one device.

    Observations keep the batch first; what has time first is marked.
    """

    warming: Mapping[str, Tensor]  # name -> [B, W, (stack,) *shape]
    observation: Mapping[str, Tensor]  # name -> [B, L + 1, (stack,) *shape], with the one to bootstrap from
    state: dict[str, Tensor]  # name -> [B, ...], the recurrent state before the first step, warming ones included
    first: Tensor  # [W + L + 1, B] bool, time first: the state is zeroed before this step
    resets: tuple[int, ...]  # the steps at which `first` is true anywhere
    action: Tensor  # [L, B, ...] int64, time first
    reward: Tensor  # [L, B] float32, of each step alone
    discount: Tensor  # [L, B] float32, γ·(1 − terminated)
    mask: Tensor  # [L, B] bool, a step was taken there
    fresh: Tensor  # [L, B] bool, such a step that may be learned from
    weights: Tensor  # [B] float32, importance weights


def sequences(batch: Sampled, burn_in: int, states: tuple[str, ...], device: torch.device) -> Sequences:
    """Hand a batch over to the device, and turn what is small time first.

    Args:
        batch: of a replay of kind ``sequence``.
        burn_in: W.
        states: the per-item fields that hold the recurrent state.
    """
    data = batch.data
    rows, steps = np.nonzero((data["discount"] == 0) & data["mask"])  # terminations
    seen = {name: unread(array, (rows, steps + 1)) for name, array in split_observation(data).items()}
    observation = on_device(seen, device)  # in one piece: slices would be copied on the host
    first = data["first"]
    action, reward, discount, mask = (
        to_device(time_first(data[name])[burn_in:], device) for name in ("action", "reward", "discount", "mask")
    )
    return Sequences(
        {name: value[:, :burn_in] for name, value in observation.items()},
        {name: value[:, burn_in:] for name, value in observation.items()},
        on_device({name: data[name] for name in states}, device),
        to_device(time_first(first), device),
        tuple(np.flatnonzero(first.any(axis=0)).tolist()),
        action,
        reward,
        discount,
        mask,
        mask & to_device(time_first(data[FRESH])[burn_in:], device) if FRESH in data else mask,
        to_device(batch.weights, device),
    )


def time_first(array: Array) -> Array:
    """[B, T, ...] as contiguous [T, B, ...]."""
    return np.ascontiguousarray(array.swapaxes(0, 1))


def items_time_first(items: Mapping[str, Array], names: tuple[str, ...], burn_in: int) -> list[Tensor]:
    """Freshly recorded sequences without their burn-in, [T, N, ...] each, for an agent's ``priorities``."""
    return [torch.from_numpy(time_first(items[name])[burn_in:]) for name in names]
