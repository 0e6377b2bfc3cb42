"""Which library multiplies a learner's float32 matrices on the CPU: MKL, or oneDNN where that is quicker.

PyTorch's choice is MKL, whose products on AMD's processors do not use AVX-512: 110 GFLOP/s on a core of Zen 5, where
oneDNN's make 240. PyTorch takes oneDNN's where products may be rounded to bfloat16; on a processor without AMX oneDNN
does not round them. Small products are quicker with MKL: each of oneDNN's costs some ten microseconds more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch

from apexrl.spec import Array

LEAST_WORK = 1 << 23  # multiplications of a batch by the largest layer; with fewer, smaller layers lose what this gains


def choose_products(weights: Mapping[str, Array], rows: int) -> bool:
    """Set the library for this process, by an agent's ``weights`` and the rows of its batches.

    Nothing is set where the processor is not AMD's with AVX-512, or where oneDNN's products would not be float32.

    Returns:
        Whether products are oneDNN's from now on.
    """
    if not able():
        return False
    layers = [array.shape[-2] * array.shape[-1] for array in weights.values() if array.ndim > 1]  # one of an ensemble's
    chosen = rows * max(layers, default=0) >= LEAST_WORK
    torch.set_float32_matmul_precision("medium" if chosen else "highest")
    if chosen and not exact(torch.mm):
        torch.set_float32_matmul_precision("highest")
        return False
    return chosen


@cache
def able() -> bool:
    """Whether Linux says that the processor is AMD's, with AVX-512."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "AuthenticAMD" in told and "avx512f" in told


def exact(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> bool:
    """Whether ``product`` of two matrices, one of them the identity, has the digits that bfloat16 would drop."""
    numbers = torch.full((256, 256), 1.0 + 2.0**-20)
    return torch.equal(product(numbers, torch.eye(256)), numbers)
