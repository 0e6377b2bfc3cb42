"""The layout of a replay's rows: declared fields, windows, and checks of values against them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import SpecError
from apexrl.replay.hindsight import Hindsight, hindsight_of
from apexrl.spec import Array, Field, is_observation, length_of, with_lengths

Kind = Literal["rows", "transition", "sequence", "unroll"]
KINDS: tuple[Kind, ...] = ("rows", "transition", "sequence", "unroll")
BUILT_IN = {"reward": "float32", "terminated": "bool", "truncated": "bool"}


NativeField = tuple[str, str, int, list[int], bool, bool, bool, int, bool]


@dataclass(frozen=True)
class Column:
    """A declared field, as stored and gathered."""

    name: str
    field: Field
    windowed: bool
    stack: int
    steps: int  # T of a sequence or unroll; 0: an item is one step
    lengths: int = -1  # number of the field with the lengths of a ragged one; -1: it is not ragged

    @property
    def window_shape(self) -> tuple[int, ...]:
        """Shape of one item's value in a batch."""
        if self.field.per_item:
            return self.field.shape
        frames = (self.stack, *self.field.shape) if self.windowed and self.stack > 1 else self.field.shape
        return (self.steps + self.windowed, *frames) if self.steps else frames

    def native(self) -> NativeField:
        field, dtype = self.field, np.dtype(self.field.dtype)
        return (
            self.name,
            dtype.kind,
            dtype.itemsize,
            list(field.shape),
            self.windowed,
            field.sampled,
            field.per_item,
            self.lengths + 1,
            field.compressed,
        )


class Layout:
    """The declared fields of a replay, in order, and the lengths of ragged ones.

    Args:
        fields: name -> Field.
        kind: what an item is.
        stack: frames of a windowed field.
        steps: T, the steps of a sequence or unroll with its burn-in; 0 for the other kinds.
        hindsight: goals that are drawn for its items; None: none are.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        kind: Kind,
        stack: int,
        steps: int = 0,
        hindsight: Hindsight | None = None,
    ) -> None:
        if not isinstance(fields, Mapping) or not fields:
            raise SpecError("a replay needs at least one field: a mapping of names to Field")
        self.kind: Kind = kind
        self.stack = stack
        self.steps = steps
        self.hindsight = hindsight
        self.columns: list[Column] = []
        for name, field in fields.items():
            if not isinstance(name, str) or not name:
                raise SpecError(f"field name {name!r} is not a non-empty string")
            if not isinstance(field, Field):
                raise SpecError(f"field {name!r} must be a Field, got {type(field).__name__}")
        fields = with_lengths(fields)
        numbers = {name: i for i, name in enumerate(fields)}
        for name, field in fields.items():
            if kind != "rows" and name in (*BUILT_IN, "discount", *(("mask", "first") if steps else ())):
                raise SpecError(f"field {name!r} is built into kind={kind!r}: leave it out of fields=")
            if field.per_item and not steps:
                raise SpecError(f"field {name!r}: per_item belongs to kind='sequence' and 'unroll'")
            windowed = kind != "rows" and (is_observation(name) if field.windowed is None else field.windowed)
            if field.per_item and windowed:
                raise SpecError(f"field {name!r} is both per_item and windowed: choose one")
            lengths = numbers[length_of(name)] if field.ragged else -1
            self.columns.append(Column(name, field, windowed, stack, steps, lengths))
        for column in self.columns:
            lengths_column = self.columns[column.lengths]
            if column.lengths >= 0 and lengths_column.windowed != column.windowed:
                raise SpecError(f"field {lengths_column.name!r} must be windowed exactly where {column.name!r} is")
        known = set(fields)
        for column in self.columns:
            if kind == "transition" and column.windowed and "next_" + column.name in known:
                raise SpecError(f"field 'next_{column.name}' collides with what {column.name!r} yields in a batch")

    def native(self) -> list[NativeField]:
        return [column.native() for column in self.columns]

    def names(self) -> list[str]:
        return [column.name for column in self.columns] + (list(BUILT_IN) if self.kind != "rows" else [])

    def plain(self, values: Mapping[str, Any], rows: int | None = None) -> dict[str, Array]:
        """Values as C-contiguous arrays of the declared dtypes.

        Lists and scalars are converted. An array of another dtype is refused, not cast. Of a ragged field, a list or
        tuple of arrays is filled up with zeros, and gives the lengths where ``values`` has none.

        Raises:
            SpecError: names the field, its value and what is expected.
        """
        if not isinstance(values, Mapping):
            raise SpecError(f"expected a mapping of field names to arrays, got {type(values).__name__}")
        wanted = self.names()
        values = self._filled_up(values)
        missing = [name for name in wanted if name not in values]
        unknown = [name for name in values if name not in wanted]
        if missing or unknown:
            parts = [f"missing field {name!r}" for name in missing] + [f"unknown field {name!r}" for name in unknown]
            raise SpecError(f"{'; '.join(parts)}. This replay takes {', '.join(map(repr, wanted))}")
        arrays: dict[str, Array] = {}
        first = ""
        for column in self.columns:
            arrays[column.name] = as_array(column.name, values[column.name], column.field.dtype, column.field.shape)
        if self.kind != "rows":
            for name, dtype in BUILT_IN.items():
                value = values[name]
                if name == "reward" and getattr(getattr(value, "dtype", None), "kind", "") in ("f", "i", "u"):
                    value = np.asarray(value, dtype)  # environments give rewards of various dtypes
                arrays[name] = as_array(name, value, dtype, ())
        for column in self.columns:
            if column.lengths >= 0:
                _check_lengths(column, self.columns[column.lengths].name, arrays)
        for name, array in arrays.items():
            if rows is None:
                rows, first = len(array), name
            elif len(array) != rows:
                where = f"field {first!r} has {rows}" if first else f"{rows} expected"
                raise SpecError(f"field {name!r} has {len(array)} rows, but {where}")
        return arrays

    def _filled_up(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """``values`` with lists of ragged values as arrays, and their lengths."""
        for column in self.columns:
            given = values.get(column.name)
            if column.lengths < 0 or not isinstance(given, list | tuple):
                continue
            name, field, lengths = column.name, column.field, self.columns[column.lengths].name
            rows = [as_array(f"{name}[{i}]", row, field.dtype, field.shape[1:]) for i, row in enumerate(given)]
            longest = max(map(len, rows), default=0)
            if longest > field.shape[0]:
                raise SpecError(f"field {name!r} has a value of length {longest}, more than its {field.shape[0]}")
            full = np.zeros((len(rows), *field.shape), field.dtype)
            for row, value in zip(full, rows, strict=True):
                row[: len(value)] = value
            own = {name: full, lengths: np.array([len(row) for row in rows], np.int32)}
            values = {**own, **values, name: full}
        return values

    def to_json(self, options: Mapping[str, Any]) -> str:
        fields = {
            c.name: {
                "shape": c.field.shape,
                "dtype": c.field.dtype,
                "windowed": c.field.windowed,
                "sampled": c.field.sampled,
                "per_item": c.field.per_item,
                **{name: True for name in ("ragged", "compressed") if getattr(c.field, name)},
            }
            for c in self.columns
        }
        return json.dumps(
            {"kind": self.kind, "stack": self.stack, "steps": self.steps, "fields": fields, "options": dict(options)}
        )

    @staticmethod
    def from_json(text: str) -> tuple[Layout, dict[str, Any]]:
        description = json.loads(text)
        fields = {
            name: Field(
                *(tuple(f["shape"]), f["dtype"], f["windowed"], f["sampled"], f["per_item"]),
                *(f.get("ragged", False), f.get("compressed", False)),
            )
            for name, f in description["fields"].items()
        }
        options = description["options"]
        goals = hindsight_of(fields, options)
        return Layout(fields, description["kind"], description["stack"], description["steps"], goals), options


def _check_lengths(column: Column, lengths: str, arrays: Mapping[str, Array]) -> None:
    given, most = cast("NDArray[np.int32]", arrays[lengths]), column.field.shape[0]
    bad = np.flatnonzero((given < 0) | (given > most))
    if bad.size:
        raise SpecError(
            f"field {lengths!r} of row {bad[0]} is {given[bad[0]]}: {column.name!r} has 0 to {most} elements"
        )


def as_array(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    given = getattr(value, "dtype", None)
    try:
        array = np.asarray(value)
        if given is None and array.size and array.dtype != np.dtype(dtype):
            plain, array = array, array.astype(dtype, casting="unsafe" if array.dtype.kind in "iu" else "same_kind")
            if array.dtype.kind != "f" and not np.array_equal(plain, array):
                raise ValueError(f"a value does not fit: {plain.min()} … {plain.max()}")
        elif given is None:
            array = array.astype(dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SpecError(f"field {name!r}: cannot make a {dtype} array of it ({error})") from None
    if array.dtype != np.dtype(dtype):
        raise SpecError(f"field {name!r} has dtype {array.dtype}, declared {dtype}: convert it with .astype({dtype!r})")
    if array.ndim == 0 or array.shape[1:] != shape:
        raise SpecError(f"field {name!r} has shape {list(array.shape)}, expected [N{''.join(f', {n}' for n in shape)}]")
    return np.ascontiguousarray(array)
