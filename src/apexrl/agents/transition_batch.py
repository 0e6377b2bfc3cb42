"""A sampled batch of transitions on the device, as agents for feed-forward networks take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.networks.recall import Recalled
from apexrl.protocols import Arrays, Sampled
from apexrl.spec import Array, split_observation

Observation = Mapping[str, Tensor]
"""Name -> [B, (stack,) *shape]."""


class Transitions(NamedTuple):
    """B transitions over n or fewer steps, on one device."""

    observation: Mapping[str, Tensor]  # name -> [B, (stack,) *shape]
    next_observation: Mapping[str, Tensor]
    action: Tensor  # [B] int64, or [B, *shape]
    reward: Tensor  # [B] float32, n-step return without its bootstrap
    discount: Tensor  # [B] float32, γ^m · (1 − terminated)
    weights: Tensor  # [B] float32, importance weights
    mask: Tensor | None = None  # [L, S] bool: these are the steps there, in that order, of S sequences


def transitions(batch: Sampled, device: torch.device) -> Transitions:
    """Hand a batch over to the device; asynchronous on CUDA, no copy on the CPU."""
    return _transitions(batch.data, batch.weights, device)


def fresh_transitions(items: Arrays, device: torch.device) -> Transitions:
    """Items that an actor has just recorded, every one of weight 1."""
    return _transitions(items, np.ones(len(items["reward"]), np.float32), device)


def _transitions(data: Arrays, weights: NDArray[np.float32], device: torch.device) -> Transitions:
    ended = np.flatnonzero(data["discount"] == 0)
    later = split_observation(data, "next_")
    return Transitions(
        on_device(split_observation(data), device),
        on_device({name: unread(array, (ended,)) for name, array in later.items()}, device),
        to_device(data["action"], device),
        to_device(data["reward"], device),
        to_device(data["discount"], device),
        to_device(weights, device),
    )


def unread(observation: Array, where: tuple[NDArray[np.int64], ...]) -> Array:
    """``observation`` with zeros for what is not finite at the indices ``where``, behind terminations; untouched (and
    not copied) where there is nothing of that kind.

    Nothing is made of the state behind a termination, but 0 · NaN would be NaN, in targets and in gradients.
    """
    if observation.dtype.kind != "f" or not where[0].size:
        return observation
    behind = observation[where]
    if np.isfinite(behind).all():
        return observation
    cleaned = observation.copy()
    cleaned[where] = np.nan_to_num(behind, nan=0.0, posinf=0.0, neginf=0.0)
    return cleaned


def side_by_side(one: Observation, two: Observation) -> Observation:
    """Two batches as one of all their rows, [B + B', ...]."""
    if isinstance(one, Recalled) and isinstance(two, Recalled):
        return Recalled.joined((one, two))
    return {name: torch.cat((rows, two[name])) for name, rows in one.items()}


def on_device(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """Named arrays as tensors of the same names."""
    return {name: to_device(array, device) for name, array in arrays.items()}


def to_device(array: Array | Tensor, device: torch.device) -> Tensor:
    """One array as a tensor: the same memory on the CPU, a copy that does not wait on CUDA.

    What is a tensor already, as a simulator brings it, is copied where it lies elsewhere only.
    """
    if isinstance(array, Tensor):
        return array.to(device)
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def as_array(tensor: Tensor) -> NDArray[np.float32]:
    """A float32 tensor as NumPy, on the host, without gradient."""
    return cast("NDArray[np.float32]", tensor.detach().cpu().numpy())
