"""Checks of the keys and priorities that callers give."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import PriorityError, SpecError

LARGEST: Final = 1e150  # as in native/bind.h


def as_keys(keys: Any) -> NDArray[np.uint64]:
    """Keys as a contiguous array [B]. SpecError: they are not the keys of a batch."""
    array: NDArray[Any] = np.ascontiguousarray(keys)
    if array.ndim != 1 or array.dtype != np.uint64:
        raise SpecError(f"keys must be the uint64 [B] of a batch, got {array.dtype} {list(array.shape)}")
    return array


def as_priorities(value: Any, rows: int) -> NDArray[np.floating[Any]]:
    """Priorities as a contiguous float array [rows]. SpecError: they are something else."""
    try:
        array = np.ascontiguousarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"priorities cannot be made an array ({error})") from None
    if array.shape != (rows,):
        raise SpecError(f"priorities have shape {list(array.shape)}, expected [{rows}]: one for each row")
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "iuf":
        raise SpecError(f"priorities have dtype {array.dtype}, expected float32 or float64")
    return array.astype(np.float64)


def bad_priority(row: int, priorities: Any) -> PriorityError:
    value = np.asarray(priorities).reshape(-1)[row]
    return PriorityError(f"priority of row {row} is {value}: priorities are finite magnitudes |δ| from 0 to 1e150")


def checked(keys: Any, priorities: Any) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Keys and raw magnitudes [B], to be sent to another process.

    Raises:
        SpecError: the keys are not those of a batch, or there is not one priority for each.
        PriorityError: a value is NaN, infinite or negative; the row is named.
    """
    keys = as_keys(keys)
    values = np.asarray(as_priorities(priorities, len(keys)), np.float64)
    bad = np.flatnonzero(~((values >= 0.0) & (values <= LARGEST)))
    if bad.size:
        raise bad_priority(int(bad[0]), values)
    return keys, values
