"""What an environment shows and takes (``EnvSpec``) as JSON, as it lies in run folders and crosses hosts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from apexrl.spec import LENGTH, ActionPart, ActionSpec, EnvSpec, Field, Padded

_MOST_ENTRIES = 4096  # of an observation, or choices at once
_MOST_CHOICES = 1 << 20
_MOST_DEPTH = 64  # of nested tuples and dicts of actions
_MOST_OBSERVATION_BYTES = 256 << 20  # of what an agent sees at once


def spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    """An ``EnvSpec`` as JSON-able values."""
    action = asdict(replace(spec.action, parts=()))
    del action["parts"]
    if spec.action.parts:  # what older versions know is written as they write it
        action["parts"] = [[list(part.path), list(part.shape), *part[2:]] for part in spec.action.parts]
    for name in ("shape", "nvec", "starts"):
        action[name] = list(action[name])
    for bound in ("low", "high"):
        action[bound] = None if action[bound] is None else _words(np.asarray(action[bound]).tolist())
    observation = {name: {"shape": list(f.shape), "dtype": f.dtype} for name, f in spec.observation.items()}
    found = {
        "observation": observation,
        "action": action,
        "stack": spec.stack,
        "categories": dict(spec.categories),
        "starts": dict(spec.starts),
    }
    # Left out where empty, since 0.2: hosts of adjacent releases compare environments by these values.
    if spec.agents:
        found["agents"] = list(spec.agents)
    if spec.padded:
        found["padded"] = {name: list(padded) for name, padded in spec.padded.items()}
    return found


def fields_to_json(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Fields of steps as JSON-able values. ``ragged`` and ``compressed`` are left out where they are false: older
    releases do not know them, and hosts compare these values."""
    told = {name: {**vars(field), "shape": list(field.shape)} for name, field in fields.items()}
    for values in told.values():
        for name in ("ragged", "compressed"):
            if not values[name]:
                del values[name]
    return told


def spec_from_json(values: Mapping[str, Any]) -> EnvSpec:
    """The inverse of ``spec_to_json``. Raises KeyError, TypeError, ValueError, … or SpecError when ``values`` is not a
    spec or has sizes beyond the limits: agents and replays are allocated by them."""
    action = dict(values["action"])
    for name in ("shape", "nvec", "starts"):
        action[name] = tuple(action.get(name, ()))
    for bound in ("low", "high"):
        if action[bound] is not None:
            action[bound] = np.asarray(action[bound], dtype=np.float32)
    action["parts"] = tuple(
        ActionPart(tuple(path), tuple(shape), np.dtype(dtype).name, bool(choices))
        for path, shape, dtype, choices in action.get("parts", ())
    )
    agents = tuple(str(name) for name in values.get("agents", ()))
    padded = {name: Padded(kind, str(of)) for name, (kind, of) in values.get("padded", {}).items()}
    observation = {
        name: Field(tuple(f["shape"]), f["dtype"], ragged=name in padded) for name, f in values["observation"].items()
    }
    counted = {name: {k: int(v) for k, v in values.get(name, {}).items()} for name in ("categories", "starts")}
    spec = EnvSpec(observation, ActionSpec(**action), int(values["stack"]), **counted, agents=agents, padded=padded)
    _check_sizes(spec)
    return spec


def _check_sizes(spec: EnvSpec) -> None:
    """Refuse sizes beyond the limits. Raises ValueError."""
    action = spec.action
    if not 1 <= spec.stack <= 255:
        raise ValueError(f"a stack of {spec.stack} frames")
    nbytes = spec.stack * sum(field.nbytes for field in spec.observation.values())
    if not spec.observation or len(spec.observation) > _MOST_ENTRIES or nbytes > _MOST_OBSERVATION_BYTES:
        raise ValueError(f"observations of {len(spec.observation)} entries and {nbytes} bytes")
    counts = [action.n, *action.nvec, *spec.categories.values()]
    box = math.prod(action.shape) - len(action.nvec) if action.box or action.hybrid else 0
    if any(not isinstance(count, int) or count < 0 for count in (*counts, *action.shape)):
        raise ValueError("a negative or non-integer number of choices")
    if len(counts) > _MOST_ENTRIES or sum(counts) + box > _MOST_CHOICES:
        raise ValueError(
            f"{sum(counts) + box} choices or numbers of an action and categories of observations; at most "
            f"{_MOST_CHOICES} may be"
        )
    bounds = (action.low, action.high)
    shape = tuple(action.shape) if action.box else (box,)
    if not action.n and any(bound is not None and bound.shape != shape for bound in bounds):
        raise ValueError("action bounds of another shape than the action")
    _check_parts(action)
    for name, padded in spec.padded.items():
        length = spec.observation.get(name + LENGTH)
        if padded.kind not in ("text", "sequence", "graph") or length != Field((), "int32"):
            raise ValueError(f"{name!r} is said to be a {padded.kind!r} without a length")
        if not spec.observation[name].shape or not (name == padded.of or name.startswith(padded.of + "/")):
            raise ValueError(f"{name!r} is said to be of {padded.of!r}")


def _check_parts(action: ActionSpec) -> None:
    """Refuse parts that are not those of the action. Raises ValueError."""
    for part in action.parts:
        if not 1 <= len(part.path) <= _MOST_DEPTH or not all(isinstance(key, str | int) for key in part.path):
            raise ValueError(f"the action's part {part.path!r}")
        if any(not isinstance(n, int) or n < 0 for n in part.shape) or np.dtype(part.dtype).kind not in "iuf":
            raise ValueError(f"the action's part {part.path!r} of shape {part.shape} and dtype {part.dtype}")
    if len({part.path for part in action.parts}) != len(action.parts):
        raise ValueError("two parts of the action at one place")
    numbers = sum(math.prod(part.shape) for part in action.parts)
    choices = sum(math.prod(part.shape) for part in action.parts if part.choices)
    if action.parts and (numbers, choices) != (math.prod(action.shape), len(action.nvec)):
        raise ValueError(f"parts of {numbers} numbers, {choices} of them choices")


def _words(bounds: Any) -> Any:
    """Write infinity, which JSON lacks, as ``"inf"``, which NumPy reads."""
    if isinstance(bounds, list):
        return [_words(bound) for bound in bounds]
    return bounds if math.isfinite(bounds) else str(bounds)
