"""A generator's state as an array, so that a checkpoint holds nothing but arrays."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from apexrl.errors import SnapshotError
from apexrl.spec import Array

_WORD = (1 << 64) - 1


def pack_generator(generator: np.random.Generator) -> NDArray[np.uint64]:
    """uint64 [6]: PCG64's state and increment (low word, high word each), and its spare half draw."""
    state: Any = generator.bit_generator.state
    words = [word for name in ("state", "inc") for word in (state["state"][name] & _WORD, state["state"][name] >> 64)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def unpack_generator(packed: Array) -> np.random.Generator:
    """The inverse of ``pack_generator``.

    Raises:
        SnapshotError: not such an array.
    """
    if packed.shape != (6,) or packed.dtype != np.uint64:
        raise SnapshotError(f"a random generator's state is uint64 [6], not {packed.dtype} {packed.shape}")
    low, high, inc_low, inc_high, has_uint32, uinteger = (int(word) for word in packed)
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)


def noise_generator(seed: int) -> torch.Generator:
    """PyTorch's generator for a learner's noise. On the CPU: a run goes on alike on any device."""
    return torch.Generator().manual_seed(seed)


def pack_noise(generator: torch.Generator) -> NDArray[np.uint8]:
    """Its state as an array."""
    return cast("NDArray[np.uint8]", generator.get_state().numpy())


def unpack_noise(packed: Array) -> torch.Generator:
    """The inverse of ``pack_noise``.

    Raises:
        SnapshotError: not such an array.
    """
    generator = torch.Generator()
    if packed.dtype != np.uint8 or packed.shape != tuple(generator.get_state().shape):
        raise SnapshotError(f"the state of a generator of noise is uint8, not {packed.dtype} {packed.shape}")
    generator.set_state(torch.from_numpy(np.array(packed)))
    return generator
