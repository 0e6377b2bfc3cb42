"""Converts Gymnasium spaces to the fields of an ``EnvSpec``, and observations to named arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.config import EnvConfig
from apexrl.envs.action_spaces import action_spec
from apexrl.errors import SpecError
from apexrl.space_values import BYTE_VALUES, LengthLimit, PaddedField
from apexrl.spec import ACTION_MASK, LENGTH, OBSERVATION, ActionSpec, Array, EnvSpec, Field, Padded

Arrays = dict[str, Array]

LIMIT = LengthLimit()


_OTHER_KINDS = frozenset("cmMSU")
"""NumPy's kinds that are no real numbers, beside records: complex ones, times and texts. V has bfloat16, too."""


def length_limit(config: EnvConfig) -> LengthLimit:
    """Of values whose space has no greatest length."""
    return LengthLimit(config.max_sequence_length, config.cut_long_sequences)


def _may_lose(stored: Array, given: Array) -> bool:
    """Whether ``given`` may hold other values than are stored of it. Masks of whole numbers are taken for truths."""
    return stored.dtype.kind in "iu" or (stored.dtype.kind == "b" and given.dtype.kind == "f")


@dataclass(frozen=True)
class Leaf:
    """One array of an observation: where it sits in the (nested) Dict or Tuple, and how it is stored."""

    name: str  # "observation" or "observation/<key>/…"
    path: tuple[str | int, ...]  # keys and places from the outermost inwards, to the whole of a text or sequence
    field: Field
    start: int = 0  # smallest value of a discrete space, subtracted when stored
    categories: int = 0  # of a discrete space
    padded: Padded | None = None
    writer: PaddedField | None = None  # of a value of variable length

    @cached_property
    def fields(self) -> dict[str, Field]:
        """What is stored of it."""
        return {self.name: self.field} | ({self.name + LENGTH: Field((), "int32")} if self.padded else {})

    def plain(self) -> frozenset[np.dtype[Any]]:
        """Dtypes of arrays of ``field.shape`` that ``store`` writes as they are; empty: it changes what it writes."""
        if self.writer is not None or self.start:
            return frozenset()
        own = np.dtype(self.field.dtype)
        also = {"f": ("float32", "float64"), "b": ("bool", "int8", "uint8")}.get(own.kind, ())
        return frozenset({own, *map(np.dtype, also)})

    def of(self, observation: Any) -> Any:
        """Its value in an observation, or its values in a batch."""
        for key in self.path:
            observation = observation[key]
        return observation

    def store(self, observation: Any, rows: Mapping[str, Array], row: int) -> int:
        """Write its value in one observation into a row of named arrays; returns how much was cut off.

        Raises:
            SpecError: it has none, or one that does not fit; the message says what was shown instead.
        """
        value = observation
        try:
            for key in self.path:  # as ``of``, whose call costs a sixth of this one
                value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise SpecError(f"nothing of {self.name!r}, which its observation space has") from error
        if self.writer is not None:
            try:
                return self.writer.write(value, rows, row)
            except (SpecError, KeyError, IndexError, TypeError) as error:
                raise SpecError(f"{self.name!r} that does not fit its observation space: {error}") from error
        kept = rows[self.name]
        try:
            array = np.asarray(value)
            if array.dtype != kept.dtype:
                self._refuse_other(array)
            fits = array.shape == self.field.shape
            if fits:
                array = array - np.int64(self.start) if self.start else array  # of int16 it would wrap
                kept[row] = array
        except SpecError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:  # the last: a tensor with a gradient
            raise SpecError(f"{self.name!r} that is no array of {self.field.dtype}: {error}") from error
        if not fits:
            raise SpecError(
                f"{self.name!r} of shape {list(array.shape)}; its observation space says {list(self.field.shape)}"
            )
        if kept.dtype != array.dtype and _may_lose(kept, array) and (kept[row] != array).any():
            raise self._not_held(array)
        return 0

    def kept(self, values: Any) -> Array:
        """Its values in a batch of observations, of no variable length, as they are stored.

        Raises:
            SpecError: its dtype does not hold one.
        """
        array = np.asarray(values)
        self._refuse_other(array)
        array = array - np.int64(self.start) if self.start else array  # of int16 it would wrap
        with np.errstate(invalid="ignore"):  # of NaN
            stored = array.astype(self.field.dtype, copy=False)
        if stored is not array and _may_lose(stored, array) and (stored != array).any():
            raise self._not_held(array)
        return stored

    def _refuse_other(self, array: Array) -> None:
        if array.dtype.kind in _OTHER_KINDS or array.dtype.names:
            raise SpecError(
                f"{self.name!r} of {array.dtype} values; its observation space says {self.field.dtype}: return numbers "
                "of that kind, or change the space"
            )

    def _not_held(self, array: Array) -> SpecError:
        return SpecError(
            f"{self.name!r} of {array.dtype} values that {self.field.dtype} does not hold, which its observation "
            "space says: return whole numbers in its range, or change the space"
        )


def env_spec(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], stack: int = 1, limit: LengthLimit = LIMIT
) -> EnvSpec:
    """Describe an environment without Gymnasium.

    Raises:
        SpecError: a space is not supported; the message names it.
    """
    return spec_of(observation_leaves(observation_space, limit), action_space, stack)


def spec_of(leaves: tuple[Leaf, ...], action_space: gym.Space[Any], stack: int = 1) -> EnvSpec:
    """As ``env_spec``, of an observation's ``leaves``."""
    action = action_spec(action_space)
    _check_mask(leaves, action)
    return EnvSpec(
        observation={name: field for leaf in leaves for name, field in leaf.fields.items()},
        action=action,
        stack=stack,
        categories={leaf.name: leaf.categories for leaf in leaves if leaf.categories},
        starts={leaf.name: leaf.start for leaf in leaves if leaf.start},
        padded={leaf.name: leaf.padded for leaf in leaves if leaf.padded},
    )


def observation_leaves(space: gym.Space[Any], limit: LengthLimit = LIMIT) -> tuple[Leaf, ...]:
    """The arrays that an observation is made of, nested ``Dict`` keys and places in a ``Tuple`` joined by ``/``.

    Box keeps its dtype, except float64 which is stored as float32; whole numbers in two dimensions, of more values than
    a byte holds, are categories. Discrete becomes an int64 scalar counted
    from 0, MultiDiscrete an int64 array; MultiBinary an int8 array. Text, Sequence and Graph become arrays of their
    greatest length, with a field ``<name>/length`` each; a space of one's own whose samples are strings is a text. The
    outermost key ``action_mask`` becomes bool (``spec.ACTION_MASK``).

    Args:
        limit: of a Sequence, a Graph, or a text without a greatest length.

    Raises:
        SpecError: another kind of space, an empty one, a key that cannot be part of a name, or two equal names.
    """
    leaves = tuple(_walk(space, (), limit))
    if not leaves:
        raise SpecError(f"observation space {space} holds no entry: give the agent something to see")
    counts = Counter(name for leaf in leaves for name in leaf.fields)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise SpecError(
            f"observation space {space} has two entries that are called {twice[0]!r}: rename one of the keys"
        )
    return leaves


def _walk(space: gym.Space[Any], path: tuple[str | int, ...], limit: LengthLimit) -> list[Leaf]:
    name = "/".join((OBSERVATION, *map(str, path)))
    if name == ACTION_MASK:
        return [_mask_leaf(space, path)]
    match space:
        case gym.spaces.Dict():
            for key in space.spaces:
                if not isinstance(key, str) or not key:
                    raise SpecError(f"{name} has the key {key!r}: keys must be non-empty strings")
            return [leaf for key, inner in space.spaces.items() for leaf in _walk(inner, (*path, key), limit)]
        case gym.spaces.Tuple():
            return [leaf for place, inner in enumerate(space.spaces) for leaf in _walk(inner, (*path, place), limit)]
        case gym.spaces.Box():
            dtype = "float32" if space.dtype == np.float64 else str(space.dtype)
            start, categories = _codes(space)
            dtype = "int32" if categories - 1 > np.iinfo("int16").max and space.dtype == np.int16 else dtype
            try:
                return [Leaf(name, path, Field(space.shape, dtype), start, categories)]
            except SpecError as error:
                raise SpecError(f"{name} is {space}, which cannot be stored: {error}") from error
        case gym.spaces.Discrete():
            return [Leaf(name, path, Field((), "int64"), start=int(space.start), categories=int(space.n))]
        case gym.spaces.MultiDiscrete():
            start = int(space.start.min())
            most = int((space.start + space.nvec).max())
            return [Leaf(name, path, Field(space.shape, "int64"), start=start, categories=most - start)]
        case gym.spaces.MultiBinary():
            return [Leaf(name, path, Field(space.shape, "int8"))]
        case gym.spaces.Text():
            if not space.characters:
                raise SpecError(f"{name} is {space}, whose charset is empty: say which characters its texts have")
            longest = int(space.max_length) * max(len(character.encode()) for character in space.characters)
            return [_text(name, path, longest, f": its space is {space}", cut=False)]
        case gym.spaces.Sequence():
            return [_element(leaf, name, path, space, limit) for leaf in _walk(space.feature_space, (), limit)]
        case gym.spaces.Graph():
            return _graph(space, name, path, limit)
    if isinstance(sample_of(space), str):
        return [_text(name, path, limit.length, _raise_limit(limit), limit.cut)]
    raise SpecError(
        f"{name} is a {type(space).__name__} space ({space}), which is not supported: use Box, Discrete, "
        "MultiDiscrete, MultiBinary, Text, Sequence, Graph, or a Dict or Tuple of them"
    )


def _mask_leaf(space: gym.Space[Any], path: tuple[str | int, ...]) -> Leaf:
    """The key ``action_mask``: kept as bool."""
    if isinstance(space, gym.spaces.Box) and space.dtype != np.bool_:
        kept = (space.low == 0).all() and (space.high == 1).all()
    else:
        kept = isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary)
    if not kept:
        raise SpecError(
            f"the observation's key action_mask is {space}: a mask of possible actions is a Box of 0 to 1 or a "
            "MultiBinary; give the key another name if it is something else"
        )
    return Leaf(ACTION_MASK, path, Field(space.shape or (), "bool"))


def _check_mask(leaves: tuple[Leaf, ...], action: ActionSpec) -> None:
    """Refuse a mask that does not fit the actions."""
    for leaf in leaves:
        if leaf.name != ACTION_MASK:
            continue
        if action.box or action.hybrid:
            kind = "a box" if action.box else action.words
            raise SpecError(
                f"the observation has the key action_mask, and actions are {kind}: masks are for discrete actions; "
                "give the key another name"
            )
        if leaf.field.shape != (size := mask_shape(action)):
            raise SpecError(
                f"the observation's key action_mask has shape {list(leaf.field.shape)}; the actions "
                f"{' + '.join(map(str, action.choices))} take {list(size)}"
            )


def mask_shape(action: ActionSpec) -> tuple[int]:
    """The shape of the mask of discrete actions: of several choices the alternatives of all, side by side."""
    return (sum(action.choices),)


def _codes(space: gym.spaces.Box) -> tuple[int, int]:
    """The first and the number of a box's values, where these can be no intensities: of whole numbers in two dimensions
    more than a byte holds, such as NetHack's glyphs. Else 0, 0."""
    if len(space.shape) != 2 or not np.issubdtype(space.dtype, np.integer):
        return 0, 0
    least = int(space.low.min())
    values = int(space.high.max()) - least + 1
    return (least, values) if 256 < values <= 1 << 16 else (0, 0)


def sample_of(space: gym.Space[Any]) -> Any:
    """A sample of a space of one's own; None: it gives none."""
    try:
        return space.sample()
    except Exception:
        return None


def _text(name: str, path: tuple[str | int, ...], longest: int, bound: str, cut: bool) -> Leaf:
    return _padded(Leaf(name, path, Field((longest,), "uint8"), categories=BYTE_VALUES), "text", name, bound, cut)


def _element(
    leaf: Leaf, name: str, path: tuple[str | int, ...], space: gym.spaces.Sequence, limit: LengthLimit
) -> Leaf:
    """An entry of a sequence's elements as an array of all of them."""
    if any("/" in str(key) for key in leaf.path):
        raise SpecError(f"{name} is {space}: keys in elements of a Sequence must be without '/'")
    if leaf.padded is not None and leaf.padded.kind != "text":
        raise SpecError(
            f"{name} is {space}: a Sequence of {leaf.padded.kind}s is not supported; elements may be Box, "
            "Discrete, MultiDiscrete, MultiBinary, Text, or a Dict or Tuple of these"
        )
    own = replace(
        leaf,
        name=name + leaf.name.removeprefix(OBSERVATION),
        path=path,
        field=replace(leaf.field, shape=(limit.length, *leaf.field.shape)),
    )
    return _padded(own, "sequence", name, _raise_limit(limit), limit.cut)


def _graph(space: gym.spaces.Graph, name: str, path: tuple[str | int, ...], limit: LengthLimit) -> list[Leaf]:
    found = []
    for part, inner in (("nodes", space.node_space), ("edges", space.edge_space)):
        if inner is None:
            continue
        (leaf,) = _walk(inner, (), limit)  # Gymnasium has a Box or a Discrete there
        field = replace(leaf.field, shape=(limit.length, *leaf.field.shape))
        found.append(replace(leaf, name=f"{name}/{part}", path=path, field=field))
    found.append(Leaf(f"{name}/edge_links", path, Field((limit.length, 2), "int32")))
    return [_padded(leaf, "graph", name, _raise_limit(limit), limit.cut) for leaf in found]


def _padded(leaf: Leaf, kind: Any, of: str, bound: str, cut: bool) -> Leaf:
    padded, field = Padded(kind, of), replace(leaf.field, ragged=True)
    writer = PaddedField(leaf.name, padded, field, leaf.start, leaf.categories, cut, bound)
    return replace(leaf, field=field, padded=padded, writer=writer)


def _raise_limit(limit: LengthLimit) -> str:
    return f": raise --max-sequence-length, which is {limit.length}, or add --cut-long-sequences"


def flatten_observation(leaves: tuple[Leaf, ...], observations: Any) -> Arrays:
    """Name the arrays of a batch of observations (Gymnasium's vector form), ``[B, ...]`` each.

    Copies only where the stored dtype differs, a discrete space does not start at 0, or lengths vary.

    Raises:
        SpecError: a text, sequence or graph is too long, or a value does not fit its dtype.
    """
    flat: Arrays = {}
    for leaf in leaves:
        value = leaf.of(observations)
        if leaf.writer is not None:
            rows = {name: np.zeros((len(value), *field.shape), field.dtype) for name, field in leaf.fields.items()}
            for row, one in enumerate(value):
                leaf.writer.write(one, rows, row)
            flat |= rows
            continue
        flat[leaf.name] = leaf.kept(value)
    return flat


def one_of(leaf: Leaf, value: Any, rows: Mapping[str, Array], row: int) -> int:
    """Write a leaf of one observation, ``value``, into a row; returns how much was cut off.

    Raises:
        SpecError: as ``flatten_observation``.
    """
    if leaf.writer is not None:
        return leaf.writer.write(value, rows, row)
    rows[leaf.name][row] = leaf.kept(value)
    return 0
