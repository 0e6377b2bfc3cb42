"""Weights as bfloat16: 8 binary digits of each value, in half the bytes. Receivers make them float32 again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.protocols import NORMALIZER
from apexrl.spec import Array

_LEAST_VALUES: Final = 256  # of an array; what is smaller saves nothing


def may_round(name: str, array: Array) -> bool:
    """Whether one of an agent's weights may lose digits: a large matrix of float32. Vectors (biases, scales) and the
    running statistics of observations and rewards stay whole."""
    large = array.size >= _LEAST_VALUES and sum(length > 1 for length in array.shape) > 1
    return large and array.dtype == np.float32 and not name.startswith(f"{NORMALIZER}/")


def shortened(array: Array) -> NDArray[np.uint16]:
    """The upper halves of float32 values, rounded to the nearest, ties to even; of the same shape. NaN stays NaN."""
    bits = np.array(array, np.float32, order="C").view(np.uint32)
    bits[np.isnan(array)] = 0x7FC00000
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits >> 16).astype(np.uint16)


def lengthened(short: Array) -> NDArray[np.float32]:
    """The float32 values of halves that ``shortened`` made, uint16; of the same shape."""
    return (short.astype(np.uint32) << 16).view(np.float32)


class Rounded(NamedTuple):
    """Weights, some of them as upper halves."""

    arrays: dict[str, Array]
    short: frozenset[str]
    """Names of those that are halves."""

    @classmethod
    def of(cls, weights: Mapping[str, Array], rounds: bool = True) -> Rounded:
        """``rounds`` says whether any are halves."""
        short = frozenset(name for name, array in weights.items() if rounds and may_round(name, array))
        return cls({name: shortened(one) if name in short else one for name, one in weights.items()}, short)

    def weights(self) -> dict[str, Array]:
        """All of them as float32, or as they were."""
        return {name: lengthened(one) if name in self.short else one for name, one in self.arrays.items()}
