"""Named arrays with one row per environment, of which some rows are put, taken, or zeroed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from apexrl.spec import Array

Which = NDArray[np.int64] | None
"""Numbers of some of an actor's environments, [R]; None: all M, in order."""


def zeroed(arrays: Mapping[str, Array], rows: NDArray[np.bool_] | NDArray[np.int64]) -> dict[str, Array]:
    """Copies of ``arrays`` name -> [M, ...] with zeros in ``rows``, a mask [M] or numbers. What was given is not
    written into: others may hold it, and it may be read-only, or of another library."""
    copies = {name: np.array(array) for name, array in arrays.items()}
    for array in copies.values():
        array[rows] = 0
    return copies


class EnvArrays:
    """Named arrays of M environments, of which some rows are put and some are taken. All rows are not copied."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._arrays: dict[str, Array] = {}

    def put(self, which: Which, rows: dict[str, Array]) -> None:
        """``rows`` name -> [R, ...]. Rows that were never put are zero."""
        if which is None:
            self._arrays = rows
            return
        for name, values in rows.items():
            if name not in self._arrays:
                self._arrays[name] = np.zeros((self._num_envs, *values.shape[1:]), values.dtype)
            self._arrays[name][which] = values

    def take(self, which: Which) -> dict[str, Array]:
        """Name -> [R, ...]."""
        return self._arrays if which is None else {name: array[which] for name, array in self._arrays.items()}

    def clear(self, which: Which, starts: NDArray[np.bool_]) -> None:
        """Zero the rows where ``starts`` [R] is true."""
        if self._arrays and starts.any():
            self._arrays = zeroed(self._arrays, starts if which is None else which[starts])
