"""A sampled batch of transitions on the device, as agents for feed-forward networks take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from apexrl.protocols import Sampled
from apexrl.spec import Array, split_observation

Observation = dict[str, Tensor]
"""Name -> [B, (stack,) *shape]."""


class Transitions(NamedTuple):
    """B transitions over n or fewer steps, on one device."""

    observation: dict[str, Tensor]  # name -> [B, (stack,) *shape]
    next_observation: dict[str, Tensor]
    action: Tensor  # [B] int64, or [B, *shape]
    reward: Tensor  # [B] float32, n-step return without its bootstrap
    discount: Tensor  # [B] float32, γ^m · (1 − terminated)
    weights: Tensor  # [B] float32, importance weights


def transitions(batch: Sampled, device: torch.device) -> Transitions:
    """Hand a batch over to the device; asynchronous on CUDA, no copy on the CPU."""
    data = batch.data
    return Transitions(
        on_device(split_observation(data), device),
        on_device(split_observation(data, "next_"), device),
        to_device(data["action"], device),
        to_device(data["reward"], device),
        to_device(data["discount"], device),
        to_device(batch.weights, device),
    )


def side_by_side(one: Observation, two: Observation) -> Observation:
    """Two batches as one of all their rows, [B + B', ...]."""
    return {name: torch.cat((rows, two[name])) for name, rows in one.items()}


def on_device(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """Named arrays as tensors of the same names."""
    return {name: to_device(array, device) for name, array in arrays.items()}


def to_device(array: Array, device: torch.device) -> Tensor:
    """One array as a tensor: the same memory on the CPU, a copy that does not wait on CUDA."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
