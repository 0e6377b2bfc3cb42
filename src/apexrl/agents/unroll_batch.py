"""A sampled batch of unrolls on the device, as actor-critic agents take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.sequence_batch import time_first
from apexrl.agents.transition_batch import on_device, to_device, unread
from apexrl.protocols import FRESH, Sampled
from apexrl.spec import Array, split_observation


class Unrolls(NamedTuple):
    """B unrolls of T steps on one device. Observations keep the batch first; all else has time first. What ``steps``
    gives has no observation to bootstrap from. Of an actor-critic a mask of actions is what is added to their logits,
    float32, 0 or −1e30 (``Masks.addends``)."""

    observation: Mapping[str, Tensor]  # name -> [B, T + 1, (stack,) *shape], with the one to bootstrap from
    state: dict[str, Tensor]  # name -> [B, ...], the recurrent state before the first step; empty where there is none
    first: Tensor  # [T + 1, B] bool, the state is zeroed before this step
    resets: tuple[int, ...]  # the steps at which `first` is true anywhere
    action: Tensor  # [T, B, ...], as the policy drew it
    log_prob: Tensor  # [T, B] float32, log μ(a|s) of the policy that acted; 0 where the agent records none
    reward: Tensor  # [T, B] float32, of each step alone
    discount: Tensor  # [T, B] float32, γ·(1 − terminated)
    mask: Tensor  # [T, B] bool, a step was taken there: no final observation
    fresh: Tensor  # [T, B] bool, such a step that may be learned from

    def rows(self, index: Tensor) -> Unrolls:
        """Some of the unrolls, numbers [M] int64 of 0 … B−1, copied."""
        return Unrolls(
            {name: value[index] for name, value in self.observation.items()},
            {name: value[index] for name, value in self.state.items()},
            self.first[:, index],
            self.resets,
            *(value[:, index] for value in self[4:]),
        )

    def steps(self, seen: Tensor, taken: Tensor) -> Unrolls:
        """Some steps [N], each as an unroll of its own, with no observation behind it and without memory.

        Args:
            seen, taken: int64 [N], their numbers among all observations, b·(T + 1) + t, and among all steps, t·B + b.
        """
        nowhere = torch.zeros((1, len(seen)), dtype=torch.bool, device=seen.device)
        return Unrolls(
            {name: among(value, seen).unsqueeze(1) for name, value in self.observation.items()},
            {},
            nowhere,
            (),
            *(among(value, taken).unsqueeze(0) for value in self[4:]),
        )


def among(value: Tensor, numbers: Tensor) -> Tensor:
    """Some entries [N, ...] of [A, B, ...], by their numbers a·B + b. On a CPU two indices would copy images byte by
    byte, which takes 20 times as long."""
    return value.flatten(0, 1).index_select(0, numbers)


def unrolls(
    batch: Sampled, action: str, states: tuple[str, ...], device: torch.device, gamma_share: float = 1.0
) -> Unrolls:
    """Hand a batch over to the device, and turn what is small time first.

    Args:
        batch: of a replay of kind ``unroll``.
        action: the field that holds what the policy drew.
        states: the per-item fields that hold the recurrent state.
        gamma_share: γ to learn with, over that of the recorded discounts.
    """
    data = batch.data
    seen = {name: unread(array, _behind_ends(data)) for name, array in split_observation(data).items()}
    first, mask = data["first"], data["mask"]
    fresh = np.logical_and(mask, data[FRESH]) if FRESH in data else mask

    def turned(array: Array) -> Tensor:
        return to_device(time_first(array), device)

    return Unrolls(
        on_device(seen, device),
        on_device({name: data[name] for name in states}, device),
        turned(first),
        tuple(np.flatnonzero(first.any(axis=0)).tolist()),
        turned(data[action]),
        turned(data["log_prob"] if "log_prob" in data else np.zeros_like(data["reward"])),
        turned(data["reward"]),
        turned(data["discount"]) * gamma_share,
        turned(mask),
        turned(fresh),
    )


def _behind_ends(data: dict[str, Array]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the final observations that no value is read of: behind terminations, and where an unroll
    begins with one."""
    rows, steps = np.nonzero((data["discount"] == 0) & data["mask"])
    begin = np.flatnonzero(np.logical_not(data["mask"][:, 0]))
    return np.concatenate((rows, begin)), np.concatenate((steps + 1, np.zeros_like(begin)))
