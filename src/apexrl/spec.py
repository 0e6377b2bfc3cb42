"""What a step holds: named fields with a shape and a dtype. No Gymnasium and no PyTorch here."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from apexrl import image_shapes
from apexrl.errors import AgentError, SpecError

Array = NDArray[np.generic]
_T = TypeVar("_T")

OBSERVATION = "observation"
LAST_ACTION, LAST_REWARD = "observation/last_action", "observation/last_reward"
"""What ``EnvConfig.last_action_reward`` adds to an observation."""
ACTION_MASK = "observation/action_mask"
"""The part of an observation that says which discrete actions are possible, bool [n], or of several choices side by
side, [sum of nvec]. Agents read it; networks and normalisation do not."""
GLOBAL_STATE = "observation/state"
"""The part of an observation that is the state of the whole environment, alone or with entries below it. With a central
value it is the value's alone."""
TEAM, PRESENT = "observation/agents", "observation/present"
"""The parts of a team's observation (``envs.team``): what each of k agents sees, [k, ...] each, alone or with entries
below it; and who takes part, [k]."""
LENGTH = "/length"
"""Behind the name of a ragged field: the field of its lengths."""

ACHIEVED_GOAL, DESIRED_GOAL = "observation/achieved_goal", "observation/desired_goal"
"""What a goal environment shows besides (gymnasium-robotics' ``GoalEnv``)."""


@dataclass(frozen=True)
class Field:
    """One named column of a step.

    Args:
        shape: shape of one step's value, ``()`` for a scalar.
        dtype: any fixed-size NumPy dtype name: ``"float32"``, ``"uint8"``, ``"int64"``, ``"bool"`` …
        windowed: in ``kind="transition"``: the field is frame-stacked, and the value n steps later
            comes back as ``next_<name>``. Default: true for ``observation`` and ``observation/…``.
        sampled: whether ``sample`` returns it. A field that only ``priority_fn`` reads
            (recorded Q-values) need not be gathered for the learner.
        per_item: in ``kind="sequence"`` and ``"unroll"``: kept once per item, as it was at the item's first step
            (a recurrent state before that step's observation).
        ragged: the first dimension varies from step to step, up to ``shape[0]``. An int32 field ``<name>/length`` holds
            how long it is (``with_lengths``). A replay keeps that much of it; batches give it filled up with zeros.
        compressed: a replay keeps it as a block of LZ4, and gives it as it was: for images, of which several times as
            many then fit the memory. Writing and sampling take longer.
    """

    shape: tuple[int, ...]
    dtype: str
    windowed: bool | None = None
    sampled: bool = True
    per_item: bool = False
    ragged: bool = False
    compressed: bool = False

    def __post_init__(self) -> None:
        given = (self.shape,) if isinstance(self.shape, int | np.integer) else tuple(self.shape)
        if not all(isinstance(n, int | np.integer) for n in given):
            raise SpecError(f"Field shape {self.shape!r} must be whole numbers")
        shape = tuple(int(n) for n in given)
        if any(n <= 0 for n in shape):
            raise SpecError(f"Field shape {shape} has a non-positive dimension")
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise SpecError(f"Field dtype {self.dtype!r} is no NumPy dtype") from error
        if dtype.kind not in "biuf" or not dtype.isnative or dtype.itemsize > 8:
            raise SpecError(
                f"Field dtype {self.dtype!r} is not supported: use a native bool, integer or float of at most 8 bytes"
            )
        if math.prod(shape) * dtype.itemsize >= 2**32:
            raise SpecError(f"Field shape {shape} is larger than 4 GiB")
        if self.ragged and (not shape or self.per_item):
            raise SpecError(
                f"Field shape {shape}: ragged needs a first dimension, of its longest value, and excludes per_item"
            )
        if self.compressed and (self.ragged or self.per_item):
            raise SpecError("a Field cannot be compressed and ragged or per_item")
        if self.compressed and math.prod(shape) * dtype.itemsize > 0x7E000000:
            raise SpecError(f"Field shape {shape} is larger than 0x7E000000 bytes, of which LZ4 compresses no more")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype.name)

    @property
    def nbytes(self) -> int:
        """Bytes of one step's value; of a ragged one at its longest."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def length_of(name: str) -> str:
    """The field with the lengths of a ragged field."""
    return name + LENGTH


def with_lengths(fields: Mapping[str, Field]) -> dict[str, Field]:
    """``fields`` with the lengths of every ragged one behind it, where they are not declared.

    Raises:
        SpecError: they are declared as something else than an int32 scalar.
    """
    complete: dict[str, Field] = {}
    for name, value in fields.items():
        complete[name] = value
        if not value.ragged:
            continue
        lengths = Field((), "int32", windowed=value.windowed, sampled=value.sampled)
        declared = fields.get(length_of(name), lengths)
        if (declared.shape, declared.dtype, declared.ragged, declared.per_item) != ((), "int32", False, False):
            raise SpecError(
                f"field {length_of(name)!r} holds the lengths of {name!r}: declare it as Field((), 'int32')"
            )
        complete[length_of(name)] = declared
    return complete


def is_observation(name: str) -> bool:
    """Whether a field is (a part of) the observation: ``observation`` or ``observation/<key>``."""
    return name == OBSERVATION or name.startswith(OBSERVATION + "/")


def is_state(name: str) -> bool:
    """Whether a field is (a part of) the state of the whole environment."""
    return name == GLOBAL_STATE or name.startswith(GLOBAL_STATE + "/")


def is_team(name: str) -> bool:
    """Whether a field is (a part of) what each agent of a team sees."""
    return name == TEAM or name.startswith(TEAM + "/")


ENDLESS = 1e30
"""A bound of an action beyond is none: ±3.4e38 often stands for infinity."""


class ActionPart(NamedTuple):
    """One entry of a ``Tuple`` or ``Dict`` of actions."""

    path: tuple[str | int, ...]
    """Keys of dicts and places in tuples, from the outermost inwards."""
    shape: tuple[int, ...]
    """In the environment; ``()`` of a ``Discrete``."""
    dtype: str
    """In the environment."""
    choices: bool
    """Discrete ones, counted by the environment from ``starts``; else numbers of a box."""


@dataclass(frozen=True)
class ActionSpec:
    """What an agent may answer.

    ``n`` > 0: one of n discrete actions (int64 scalar, 0 … n-1); the environment counts them from ``start``.
    ``nvec`` of k numbers: k such choices at once (int64 of shape (k,)), the j-th of nvec[j] actions; the environment
    counts them from ``starts[j]``. Otherwise a box: ``low`` and ``high`` are float32 arrays of ``shape``.
    Both: hybrid actions, float32 of shape (k + d,): k choices as whole numbers, then d numbers in the environment's
    units, of which ``low`` and ``high`` [d] are the bounds. ``parts``: the environment takes them as a ``Tuple`` or
    ``Dict``, see ``in_form``.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    n: int = 0
    low: Array | None = None
    high: Array | None = None
    start: int = 0
    nvec: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    parts: tuple[ActionPart, ...] = ()

    @property
    def discrete(self) -> bool:
        """One choice among n."""
        return self.n > 0

    @property
    def box(self) -> bool:
        """Numbers alone."""
        return not (self.n or self.nvec)

    @property
    def hybrid(self) -> bool:
        """Choices and numbers at once."""
        return bool(self.nvec) and self.low is not None

    @property
    def bounded(self) -> bool:
        """Whether all numbers have bounds: none beyond ``ENDLESS``."""
        if self.low is None or self.high is None:
            return True
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        return bool((low >= -ENDLESS).all() and (high <= ENDLESS).all())

    def check_bounds(self, agent: str, needed: bool = True) -> None:
        """Refuse numbers between whose bounds nothing lies, and those without bounds.

        Args:
            agent: who asks.
            needed: False: there need not be bounds.

        Raises:
            AgentError: there are not all bounds, or one is not below the other.
        """
        if self.low is None or self.high is None:
            return
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        if not (low < high).all():
            raise AgentError(
                f"{agent}: every action needs low < high, but the space is {low.tolist()} … {high.tolist()}"
            )
        if needed and not self.bounded:
            raise AgentError(
                f"{agent} needs finite bounds of every action, within ±{ENDLESS:g}, but the space is {low.tolist()} … "
                f"{high.tolist()}. --agent ppo --topology impala needs none. Or give it bounds, as of -2 … 2: "
                f"gymnasium.wrappers.TransformAction(env, lambda a: a, gymnasium.spaces.Box(-2.0, 2.0, {low.shape}))"
            )

    @property
    def words(self) -> str:
        """What it is, for a message."""
        if self.hybrid:
            return f"{len(self.nvec)} discrete choices and {self.shape[0] - len(self.nvec)} numbers at once"
        if self.box:
            return f"a box of shape {self.shape}"
        return f"{self.n} discrete actions" if self.n else f"{len(self.nvec)} discrete choices at once"

    def as_counted(self, actions: Array) -> Array:
        """An agent's actions [B] or [B, *shape] as the environment counts them."""
        if any(self.starts):
            if not self.hybrid:
                return actions + np.array(self.starts, np.int64)
            numbers = [0] * (self.shape[0] - len(self.starts))
            return actions + np.array([*self.starts, *numbers], np.float32)
        return actions + self.start if self.start else actions

    @property
    def choices(self) -> tuple[int, ...]:
        """Alternatives of every discrete choice: ``nvec``, or n alone; of a box nothing."""
        return self.nvec or ((self.n,) if self.n else ())

    def possible_in(self, masks: Array) -> NDArray[np.bool_]:
        """[R], whether a mask of [R, n] leaves an alternative of every choice."""
        if len(self.choices) == 1:
            return cast("NDArray[np.bool_]", masks.any(axis=1))
        firsts = np.cumsum((0, *self.choices[:-1]))
        return cast("NDArray[np.bool_]", np.logical_or.reduceat(masks, firsts, axis=1).all(axis=1))

    @property
    def nothing_left(self) -> str:
        """What a mask does that is not ``possible_in``, for a message."""
        return "masks every action" if len(self.choices) == 1 else "masks every alternative of a choice"

    def in_form(self, counted: Array) -> Any:
        """Actions as the environment takes them: nested tuples and dicts where it has ``parts``, else the array itself.

        Args:
            counted: of ``as_counted``, [*shape] or [B, *shape]; then each entry is [B, …] too.
        """
        if not self.parts:
            return counted
        before = counted.shape[:-1]
        return _nested(
            [
                (part.path, counted[..., columns].reshape((*before, *part.shape)).astype(part.dtype)[()])
                for part, columns in zip(self.parts, self.columns, strict=True)
            ]
        )

    def of_one(self, counted: Array) -> Any:
        """One environment's action: an ``int`` where it takes one of n, else ``in_form``.

        Args:
            counted: of ``as_counted``, [*shape].
        """
        return int(counted) if self.n else self.in_form(counted)

    @cached_property
    def columns(self) -> tuple[slice, ...]:
        """Where each of ``parts`` stands in ``shape``: choices come first."""
        ends = {True: 0, False: len(self.nvec)}
        found = []
        for part in self.parts:
            begin = ends[part.choices]
            ends[part.choices] += math.prod(part.shape)
            found.append(slice(begin, ends[part.choices]))
        return tuple(found)


def _nested(entries: Sequence[tuple[tuple[str | int, ...], Any]]) -> Any:
    """Values by their paths as the tuples and dicts that these paths go through."""
    path, value = entries[0]
    if not path:
        return value
    inner: dict[str | int, list[tuple[tuple[str | int, ...], Any]]] = {}
    for (key, *rest), one in entries:
        inner.setdefault(key, []).append((tuple(rest), one))
    made = {key: _nested(those) for key, those in inner.items()}
    return made if isinstance(path[0], str) else tuple(made.values())


class Padded(NamedTuple):
    """What a ragged field of an observation is."""

    kind: Literal["text", "sequence", "graph"]
    """``text``: bytes of UTF-8. ``sequence``: one field for each entry of its elements. ``graph``: the fields
    ``<of>/nodes``, ``<of>/edge_links`` and, where edges have features, ``<of>/edges``."""
    of: str
    """Name of the text, sequence or graph that it belongs to."""


@dataclass(frozen=True)
class EnvSpec:
    """What an environment shows and takes, in plain arrays.

    Args:
        observation: field name -> Field; ``observation`` alone, or one ``observation/<key>`` per
            entry of a ``Dict`` or ``Tuple`` space (nested keys and places joined by ``/``). Shapes are of one frame,
            unstacked.
        action: the action space.
        stack: frames that the agent sees at once; with ``stack`` > 1 an agent's observations are
            ``[B, stack, *shape]``, oldest frame first, else ``[B, *shape]``.
        categories: of fields that hold categories: field name -> number of values, which networks encode one-hot or
            by embeddings.
        starts: of discrete observations that the environment does not count from 0: field name -> its first value.
        agents: of an environment of several agents: their names. Its rows are agents, row i the (i mod k)-th of these.
        padded: of ragged fields: field name -> what they are.
    """

    observation: Mapping[str, Field]
    action: ActionSpec
    stack: int = 1
    categories: Mapping[str, int] = field(default_factory=dict)
    starts: Mapping[str, int] = field(default_factory=dict)
    agents: tuple[str, ...] = ()
    padded: Mapping[str, Padded] = field(default_factory=dict)

    @property
    def masked(self) -> bool:
        """Whether observations say which actions are possible (``ACTION_MASK``)."""
        return ACTION_MASK in self.observation

    @property
    def of_team(self) -> bool:
        """Whether it shows what each agent of a team sees (``TEAM``), and who takes part (``PRESENT``)."""
        there = self.observation.get(PRESENT)
        return there is not None and there.shape == (len(self.action.nvec),) and any(map(is_team, self.observation))

    def without_mask(self) -> EnvSpec:
        """What encoders read: all but ``ACTION_MASK``."""
        if not self.masked:
            return self
        return replace(self, observation={name: one for name, one in self.observation.items() if name != ACTION_MASK})

    def without_state(self) -> EnvSpec:
        """All but ``GLOBAL_STATE``."""

        def rest(fields: Mapping[str, _T]) -> dict[str, _T]:
            return {name: one for name, one in fields.items() if not is_state(name)}

        return replace(
            self,
            observation=rest(self.observation),
            categories=rest(self.categories),
            starts=rest(self.starts),
            padded=rest(self.padded),
        )

    def varies(self, name: str) -> bool:
        """Whether a field is of variable length, or the length of one."""
        return name in self.padded or name.removesuffix(LENGTH) in self.padded

    def each_sees(self, name: str) -> Field:
        """A field as one agent sees it: where it is a team's, without the first dimension."""
        field = self.observation[name]
        return replace(field, shape=field.shape[1:]) if self.of_team and is_team(name) else field

    def is_image(self, name: str) -> bool:
        """Whether a field is encoded by convolutions over its numbers: three dimensions, or two of uint8, as one agent
        sees it; not where a side is too short for them, as of tic-tac-toe's board."""
        field = self.each_sees(name)
        known = name in self.padded or name in self.categories
        return not known and image_shapes.is_image(field.shape, field.dtype)


def past_missing(spec: EnvSpec, given: Collection[str]) -> str:
    """What to do, for an error, where an observation of entries ``given`` lacks what a wrapper of ours adds."""
    missing = spec.observation.keys() - set(given)
    advice = ""
    if missing & {LAST_ACTION, LAST_REWARD}:
        advice = ". It was trained with last_action_reward: wrap your environment in apexrl.envs.LastActionReward too"
    if ACTION_MASK in missing:
        advice += ". It was trained with action masks: wrap your environment in apexrl.envs.ActionMasks, too"
    return advice


def split_observation(values: Mapping[str, Array], prefix: str = "") -> dict[str, Array]:
    """The observation fields of a batch or step, without ``prefix`` (``"next_"`` for the later ones)."""
    names = {name[len(prefix) :]: name for name in values if name.startswith(prefix)}
    return {plain: values[name] for plain, name in names.items() if is_observation(plain)}
