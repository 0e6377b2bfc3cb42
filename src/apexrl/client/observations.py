"""Checks and names the observations of a client."""

from __future__ import annotations

from typing import Any

import numpy as np

from apexrl.errors import SpecError
from apexrl.space_values import named_values, value_names, varying_rows
from apexrl.spec import Array, EnvSpec, past_missing


def named_observation(spec: EnvSpec, observation: Any) -> dict[str, Array]:
    """One observation as the run's named arrays, copied, ``[1, *shape]`` each.

    Raises:
        SpecError: an entry is missing or not known, or its shape, type or values are not those of its space.
    """
    given, wanted = named_values(spec, observation), set(value_names(spec).values())
    if given.keys() != wanted:
        raise SpecError(
            f"this run's observations are {sorted(wanted)}, but this one has {sorted(given)}"
            + past_missing(spec, given)
        )
    named = varying_rows(spec, [given]) if spec.padded else {}
    for name, field in spec.observation.items():
        if spec.varies(name):
            continue
        try:
            value = np.asarray(given[name])
        except (ValueError, TypeError) as error:
            raise SpecError(f"{name} is not an array: {error}") from None
        if value.shape != field.shape:
            raise SpecError(f"{name} has shape {list(value.shape)}; this run's environment has {list(field.shape)}")
        named[name] = _stored(name, value, spec.starts.get(name, 0), spec.categories.get(name, 0), field.dtype)
    return named


def _stored(name: str, value: Array, start: int, categories: int, dtype: str) -> Array:
    """``value`` [*shape] as stored, [1, *shape]. Refuses conversions that lose more than decimal places."""
    kind = np.dtype(dtype).kind
    if value.dtype.kind not in ("biuf" if kind == "f" else "biu"):
        raise SpecError(f"{name} has dtype {value.dtype}, which cannot be converted to {dtype}")
    if start:
        value = value.astype(np.int64) - start
    if kind == "f":
        with np.errstate(over="ignore"):
            stored = np.array(value[np.newaxis], dtype)
        if not np.isfinite(stored).all():
            raise SpecError(f"{name} holds NaN, infinity, or a number too large for {dtype}")
        return stored
    if value.dtype != np.dtype(dtype) or categories:
        least, most = (0, categories - 1) if categories else (0, 1) if kind == "b" else _range(dtype)
        low, high = int(value.min()), int(value.max())
        if low < least or high > most:
            wrong = low if low < least else high
            raise SpecError(f"{name} holds {wrong + start}; it must be between {least + start} and {most + start}")
    return np.array(value[np.newaxis], dtype)


def _range(dtype: str) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)
