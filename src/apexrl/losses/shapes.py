"""Checks of shapes and dtypes, before a loss computes anything."""

from __future__ import annotations

import torch
from torch import Tensor

from apexrl.errors import SpecError


def check(name: str, tensor: Tensor, shape: tuple[int | None, ...], dtype: torch.dtype | None = None) -> None:
    """Refuse a tensor of another shape (None: any size) or dtype (None: any float)."""
    actual = tensor.shape
    if len(actual) != len(shape) or any(want not in (None, have) for want, have in zip(shape, actual, strict=True)):
        wanted = ", ".join("*" if size is None else str(size) for size in shape)
        raise SpecError(f"{name} has shape {tuple(actual)}; expected ({wanted})")
    if not (tensor.is_floating_point() if dtype is None else tensor.dtype == dtype):
        raise SpecError(f"{name} is {tensor.dtype}; expected {dtype or 'a floating-point dtype'}")
