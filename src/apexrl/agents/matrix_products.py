"""Which library multiplies a learner's float32 matrices on the CPU: MKL, or oneDNN where that is quicker.

PyTorch's choice is MKL, whose products on AMD's processors do not use AVX-512: 110 GFLOP/s on a core of Zen 5, where
oneDNN's make 240. PyTorch takes oneDNN's where products may be rounded to bfloat16; on a processor without AMX oneDNN
does not round them. Small products are quicker with MKL: each of oneDNN's costs some ten microseconds more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn

LEAST_WORK = 1 << 23  # multiplications of a batch by the largest layer; with fewer, smaller layers lose what this gains


class HasNetwork(Protocol):
    """A parameter group of an agent: its ``networks`` holds these by name."""

    @property
    def network(self) -> nn.Module: ...


def choose_products(networks: Mapping[str, HasNetwork], rows: int) -> bool:
    """Set the library for this process, from these networks' layers and batches of so many rows.

    Nothing is set where the processor is not AMD's with AVX-512, or where oneDNN's products would not be float32.

    Returns:
        Whether products are oneDNN's from now on.
    """
    if not _able():
        return False
    layers = (weight for each in networks.values() for weight in each.network.parameters() if weight.ndim > 1)
    chosen = rows * max((weight.shape[-2] * weight.shape[-1] for weight in layers), default=0) >= LEAST_WORK
    torch.set_float32_matmul_precision("medium" if chosen else "highest")
    if chosen and not _keeps_float32():
        torch.set_float32_matmul_precision("highest")
        return False
    return chosen


def _able() -> bool:
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older releases cannot tell
    return bool(found.get("avx512_f")) and str(found.get("cpu_name", "")).startswith("AMD")


def _keeps_float32() -> bool:
    """Whether a product by the identity has the digits that bfloat16 would drop."""
    numbers = torch.full((256, 256), 1.0 + 2.0**-20)
    return torch.equal(numbers @ torch.eye(256), numbers)
