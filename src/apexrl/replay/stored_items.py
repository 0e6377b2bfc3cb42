"""Items of a replay by their keys: listed, read, deleted and changed by the process that owns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ConfigError, SpecError
from apexrl.replay.batch import Allocator, ArraySet, Batch, Updated
from apexrl.replay.core import ReplayCore
from apexrl.replay.hindsight import GOALS
from apexrl.replay.layout import Column, as_array
from apexrl.replay.priorities import as_keys
from apexrl.spec import Array


def keys(core: ReplayCore) -> NDArray[np.uint64]:
    """Of all items, chunk by chunk, oldest first."""
    while True:
        _own(core)
        listed = core.native.keys()
        if listed is not None:
            return np.frombuffer(listed, np.uint64).copy()


def read(core: ReplayCore, wanted: Any, allocator: Allocator) -> Batch:
    """The items that are still there, in the order of their keys."""
    names = as_keys(wanted)
    arrays = ArraySet(core.native, core.layout, len(names), allocator)
    found = _owned(core, lambda: core.native.read(arrays.outputs, names))
    batch = arrays.batch()
    data = {name: values for name, values in batch.data.items() if name not in GOALS}  # none is drawn
    data = {name: values[:found] for name, values in data.items()}
    return Batch(data, batch.keys[:found], batch.probabilities[:found], batch.weights[:found])


def delete(core: ReplayCore, wanted: Any) -> Updated:
    """Remove items. ConfigError: the replay is fifo, or draws goals."""
    if core.fifo:
        raise ConfigError("sampler='fifo' gives every item out once: sample what shall go")
    if core.layout.hindsight is not None:
        raise ConfigError("hindsight= draws goals from whole episodes: no single item of one can be deleted")
    names = as_keys(wanted)
    deleted = _owned(core, lambda: core.native.remove(names))
    return Updated(deleted, len(names) - deleted)


def change(core: ReplayCore, wanted: Any, values: Mapping[str, Any]) -> Updated:
    """Write new values. SpecError: names the field that is wrong."""
    names = as_keys(wanted)
    known = {column.name: (place, column) for place, column in enumerate(core.layout.columns)}
    places: list[int] = []
    arrays: list[Array] = []
    for name, value in values.items():
        if name not in known:
            raise SpecError(f"unknown field {name!r}: this replay stores {', '.join(map(repr, known))}")
        place, column = known[name]
        _check_changeable(core, column)
        array = as_array(name, value, column.field.dtype, column.field.shape)
        if len(array) != len(names):
            raise SpecError(f"field {name!r} has {len(array)} rows, but there are {len(names)} keys")
        places.append(place)
        arrays.append(array)
    changed = _owned(core, lambda: core.native.change(names, places, arrays))
    return Updated(changed, len(names) - changed)


def _check_changeable(core: ReplayCore, column: Column) -> None:
    kind, columns = core.layout.kind, core.layout.columns
    if column.lengths >= 0 or any(columns[one.lengths] is column for one in columns if one.lengths >= 0):
        raise SpecError(f"field {column.name!r} is ragged or says how long one is: it cannot be changed")
    if column.field.compressed:
        raise SpecError(f"field {column.name!r} is compressed: it cannot be changed")
    if kind == "transition" and column.windowed:
        raise SpecError(f"field {column.name!r} is windowed: other items hold its values too, so it cannot be changed")
    if kind in ("sequence", "unroll") and not column.field.per_item:
        raise SpecError(
            f"field {column.name!r} has values of steps, which other items may hold too: with kind={kind!r}, only "
            "fields with per_item=True can be changed"
        )


def _owned(core: ReplayCore, call: Callable[[], int]) -> int:
    """The answer of ``call`` in the owner. OwnershipError: another living process owns the replay."""
    while True:
        _own(core)
        answer = call()
        if answer >= 0:
            return answer


def _own(core: ReplayCore) -> None:
    if not core.native.owned or core.closed:
        core.own()
    core.publish_local()
