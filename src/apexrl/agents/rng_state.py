"""Random generators of agents: made from a seed, and saved as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from apexrl.errors import SnapshotError
from apexrl.spec import Array

RandomGenerator = np.random.Generator | torch.Generator

_WORD = (1 << 64) - 1


def acting_generator(seed: int) -> np.random.Generator:
    """The generator of an agent's exploration."""
    return np.random.default_rng(np.random.SeedSequence([seed, 1]))


def noise_generator(seed: int) -> torch.Generator:
    """PyTorch's generator, for noise: it draws many numbers faster than NumPy's. It is on the CPU, so that a run goes
    on alike on any device."""
    return torch.Generator().manual_seed(seed)


@contextmanager
def seeded_layers(seed: int) -> Iterator[None]:
    """Layers made within begin with the weights of this seed; PyTorch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone, where layers are made
        yield


def pack(generator: RandomGenerator) -> Array:
    """A generator's state. Of NumPy's PCG64 uint64 [6]: state and increment (low word, high word each), and its spare
    half draw; of PyTorch's uint8."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy()
    state: Any = generator.bit_generator.state
    words = [word for name in ("state", "inc") for word in (state["state"][name] & _WORD, state["state"][name] >> 64)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def restore(generator: RandomGenerator, packed: Array) -> None:
    """Put a generator back to the state that ``pack`` gave.

    Raises:
        SnapshotError: the array is no such state.
    """
    like = pack(generator)
    if packed.shape != like.shape or packed.dtype != like.dtype:
        raise SnapshotError(
            f"a random generator's state is {like.dtype} {like.shape}, not {packed.dtype} {packed.shape}"
        )
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.from_numpy(np.array(packed)))
        return
    low, high, inc_low, inc_high, has_uint32, uinteger = (int(word) for word in packed)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
