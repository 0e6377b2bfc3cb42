"""Observations as environments have them: entries of nested dicts and tuples, and values of variable length.

Text, sequences and graphs lie in arrays of fixed size: their content first, then zeros, and their length beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from apexrl.errors import SpecError
from apexrl.spec import ACTION_MASK, LENGTH, OBSERVATION, Array, EnvSpec, Field, Padded

BYTE_VALUES = 256  # of text, which is UTF-8


class LengthLimit(NamedTuple):
    """Of values whose space has no greatest length."""

    length: int = 128
    """Bytes of a text, elements of a sequence, nodes or edges of a graph."""
    cut: bool = False
    """Longer ones are cut, and counted; else they are an error."""


class PaddedField:
    """Writes one field of values of variable length.

    Args:
        name: of the field.
        padded: what it is.
        field: its shape, of which the first dimension is the greatest length, and dtype.
        start: of discrete values, subtracted.
        categories: of discrete values.
        cut: longer ones are cut; else they are an error.
        bound: what an error says that the greatest length comes from.
    """

    def __init__(
        self,
        name: str,
        padded: Padded,
        field: Field,
        start: int = 0,
        categories: int = 0,
        cut: bool = False,
        bound: str = "",
    ) -> None:
        self.name, self.padded = name, padded
        self._field, self._start, self._categories, self._cut, self._bound = field, start, categories, cut, bound
        self._path = name.removeprefix(padded.of).split("/")[1:]

    def write(self, value: Any, rows: Mapping[str, Array], row: int) -> int:
        """Write the text, sequence or graph ``value`` into one row of ``rows``; returns how much was cut off.

        Raises:
            SpecError: it is too long, or is no such value.
        """
        content = self._content(value)
        most, length = self._field.shape[0], len(content)
        if length > most and not self._cut:
            raise SpecError(
                f"{self.name} is {length} long, and at most {most} may be"
                + (self._bound or ": see its space, or --max-sequence-length")
            )
        kept, column = min(length, most), rows[self.name]
        column[row, :kept] = content[:kept]
        if column.dtype.kind in "iu" and content.dtype != column.dtype and (column[row, :kept] != content[:kept]).any():
            raise SpecError(f"{self.name} holds {content.dtype} values that {column.dtype} does not hold")
        column[row, kept:] = 0
        rows[self.name + LENGTH][row] = kept
        return length - kept

    def _content(self, value: Any) -> Array:
        """``value`` as an array [length, ...]."""
        shape, dtype = self._field.shape[1:], np.dtype(self._field.dtype)
        content: Any
        try:
            match self.padded.kind:
                case "text":
                    return text_bytes(value)
                case "sequence":
                    content = self._elements(value, shape)
                case "graph":
                    content = self._of_graph(value)
            content = np.zeros((0, *shape), dtype) if content is None or not len(content) else np.asarray(content)
        except SpecError:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise SpecError(
                f"{self.padded.of} is no {self.padded.kind} of its space: {type(error).__name__}: {error}"
            ) from error
        if content.shape[1:] != shape:
            raise SpecError(f"{self.name} has elements of shape {list(content.shape[1:])}, not {list(shape)}")
        if content.dtype.kind not in ("biuf" if dtype.kind == "f" else "biu"):
            raise SpecError(f"{self.name} holds {content.dtype}, which cannot be converted to {dtype}")
        if self._start:
            content = content - np.int64(self._start)  # of int16 it would wrap
        if self._categories and len(content) and dtype != np.uint8:
            low, high = int(content.min()), int(content.max())
            if low < 0 or high >= self._categories:
                wrong, last = (low if low < 0 else high) + self._start, self._categories - 1 + self._start
                raise SpecError(f"{self.name} holds {wrong}; it must be between {self._start} and {last}")
        return cast("Array", content)

    def _elements(self, value: Any, shape: tuple[int, ...]) -> Any:
        if isinstance(value, np.ndarray):  # of a stacked sequence, as a Mapping of arrays is
            found: Any = value
        elif isinstance(value, Mapping):
            found = reached(value, self._path)
        else:
            found = [reached(one, self._path) for one in value]
        if self._categories == BYTE_VALUES and self._field.dtype == "uint8":
            return _texts(found, shape[0], self.name)
        return found

    def _of_graph(self, value: Any) -> Any:
        (part,) = self._path
        parts = value if isinstance(value, Mapping) else value._asdict()
        found, links, nodes = parts[part], parts["edge_links"], len(parts["nodes"])
        if part == "nodes" or found is None or not len(found):
            return found
        links = np.asarray(links)
        if len(links) != len(found):
            raise SpecError(f"{self.name} are {len(found)}, and {self.padded.of}/edge_links are {len(links)}")
        if links.min() < 0 or links.max() >= nodes:
            wrong = links.min() if links.min() < 0 else links.max()
            raise SpecError(f"{self.padded.of}/edge_links names the node {wrong}, and there are {nodes}")
        most = self._field.shape[0]
        if self._cut and nodes > most:  # edges of nodes that are cut off go with them
            return np.asarray(found)[(links < most).all(axis=1)]
        return found


def text_bytes(value: Any) -> Array:
    """A text as its UTF-8, uint8 [length]. Raises TypeError where it is none."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is no text")
    return np.frombuffer(value.encode(), np.uint8)


def _texts(values: Any, most: int, name: str) -> Array:
    rows = np.zeros((len(values), most), np.uint8)
    for row, value in zip(rows, values, strict=True):
        content = text_bytes(value)
        if len(content) > most:
            raise SpecError(f"{name} has a text of {len(content)} bytes, and at most {most} may be")
        row[: len(content)] = content
    return rows


def reached(value: Any, path: list[str]) -> Any:
    """An entry of nested dicts and tuples, by keys and places."""
    for key in path:
        value = value[key] if isinstance(value, Mapping) else value[int(key)]
    return value


def named_values(spec: EnvSpec, observation: Any) -> dict[str, Any]:
    """The values of an observation by name; a text, sequence or graph is one. What the environment does not have is
    there too."""
    wholes = set(value_names(spec).values())
    varying = {padded.of for padded in spec.padded.values()}

    def walk(value: Any, name: str) -> dict[str, Any]:
        if name in varying:
            return {name: value}
        if isinstance(value, Mapping):
            inner: Any = value.items()
        elif isinstance(value, tuple) and name not in wholes:
            inner = enumerate(value)
        else:
            return {name: value}
        return {whole: one for key, below in inner for whole, one in walk(below, f"{name}/{key}").items()}

    return walk(observation, OBSERVATION)


def refuse_no_action(spec: EnvSpec, values: Mapping[str, Array]) -> None:
    """Look at the masks among ``values``, name -> [B, ...], with which an agent is to act.

    Raises:
        SpecError: one leaves nothing of a choice.
    """
    if spec.masked and not (some := spec.action.possible_in(values[ACTION_MASK])).all():
        row = f" of row {int(np.flatnonzero(~some)[0])}" if len(some) > 1 else ""
        raise SpecError(f"{ACTION_MASK}{row} {spec.action.nothing_left}: a mask must leave one")


def value_names(spec: EnvSpec) -> dict[str, str]:
    """The name of the value that each field is made of: of a text, sequence or graph, or the field's own."""
    whole = {name + end: padded.of for name, padded in spec.padded.items() for end in ("", LENGTH)}
    return {name: whole.get(name, name) for name in spec.observation}


def varying_rows(spec: EnvSpec, values: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The fields of all texts, sequences and graphs of some observations, name -> [len(values), *shape].

    Args:
        values: of ``named_values``.

    Raises:
        SpecError: one is too long, or is no such value.
    """
    rows: dict[str, Array] = {}
    for name, padded in spec.padded.items():
        for stored in (name, name + LENGTH):
            field = spec.observation[stored]
            rows[stored] = np.zeros((len(values), *field.shape), field.dtype)
        counted = spec.starts.get(name, 0), spec.categories.get(name, 0)
        writer = PaddedField(name, padded, spec.observation[name], *counted)
        for row, one in enumerate(values):
            writer.write(one[padded.of], rows, row)
    return rows
