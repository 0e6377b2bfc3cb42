"""The face that every replay of the benchmark wears, the list of them, and apexrl's own.

Peers are in ``python_peers.py``, ``flashbax_peer.py`` and ``reverb_peer.py``; each says there how it is set up.
This file and those are also read by interpreters that have no apexrl: nothing is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Protocol

import numpy as np

from benchmarks.replay.rows import CYCLE, ROWS, Array, Chunk, Rows, stamped, steps, torn, torn_stacks

ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
STREAMS = 10  # environments that one writer of image stacks steps together


@dataclass(frozen=True)
class Shape:
    """What is asked of a contestant."""

    rows: str
    capacity: int
    batch: int
    chunk: int
    writers: int = 0
    """Writer processes beside the one that samples."""

    @property
    def row(self) -> Rows:
        return ROWS[self.rows]


class Contestant(Protocol):
    """One replay."""

    title: str
    prioritized: bool
    returns: str
    """What batches are made of: NumPy, torch or jax."""
    start: ClassVar[str]
    """How its writer processes are started, ``fork`` or ``spawn``; empty: one process only."""
    bytes_per_transition: float
    """Of stored fields, without the tree."""

    def chunks(self, rng: np.random.Generator) -> list[Any]:
        """What ``insert`` takes, in turn: ``CYCLE`` chunks of ``shape.chunk`` transitions."""
        ...

    def insert(self, chunk: Any, priorities: Array) -> None: ...
    def sample(self) -> tuple[Any, Any]:
        """Keys for ``update``, and ``shape.batch`` transitions in arrays, as a user gets them."""
        ...

    def update(self, keys: Any, magnitudes: Array) -> None: ...
    def columns(self, batch: Any) -> Mapping[str, Array]:
        """The batch in NumPy, under our names (for checks only)."""
        ...

    def torn(self, batch: Mapping[str, Array]) -> int:
        """Rows of ``columns`` that were never inserted."""
        ...

    def ready(self) -> None:
        """Wait until what was inserted can be sampled and nothing is under way."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Entry:
    """A contestant by name."""

    module: str
    maker: str
    packages: tuple[str, ...]
    """Distributions whose versions are printed; the first must be installed."""


ENTRIES = {
    "apexrl": Entry("contestants", "apexrl", ("apexrl",)),
    "cpprb": Entry("python_peers", "Cpprb", ("cpprb",)),
    "cpprb-mp": Entry("python_peers", "CpprbMP", ("cpprb",)),
    "tianshou": Entry("python_peers", "Tianshou", ("tianshou",)),
    "torchrl": Entry("python_peers", "TorchrlPrioritized", ("torchrl", "torch")),
    "flashbax": Entry("flashbax_peer", "Flashbax", ("flashbax", "jax")),
    "reverb": Entry("reverb_peer", "Reverb", ("dm-reverb", "tensorflow")),
    "torchrl-uniform": Entry("python_peers", "TorchrlUniform", ("torchrl", "torch")),
    "sb3-uniform": Entry("python_peers", "Sb3", ("stable-baselines3",)),
    "numpy-uniform": Entry("python_peers", "NumpyUniform", ("numpy",)),
}
MANY = ("apexrl", "cpprb-mp", "reverb")  # into which several processes can insert


def make(name: str, shape: Shape) -> Contestant:
    entry = ENTRIES[name]
    contestant: Contestant = getattr(import_module(f"benchmarks.replay.{entry.module}"), entry.maker)(shape)
    return contestant


def apexrl(shape: Shape) -> Contestant:
    """Rows mode, as peers take them; image stacks in streams mode, where a frame is stored once."""
    return ApexrlStacks(shape) if len(shape.row.observation) > 1 else ApexrlRows(shape)


class ApexrlRows:
    """``Replay(kind="rows")`` with default settings: α 0.6, β 0.4, stratified draws, weights ÷ batch maximum."""

    title, prioritized, returns = "apexrl", True, "NumPy"
    start: ClassVar[str] = "fork"

    def __init__(self, shape: Shape) -> None:
        from apexrl.replay import Field, Replay

        self.shape = shape
        self.replay = Replay(
            shape.capacity,
            {name: Field(*field) for name, field in shape.row.fields().items()},
            alpha=ALPHA,
            eps=EPS,
            writers=shape.writers + 1,
        )
        self._writer = self.replay.writer()
        self.bytes_per_transition: float = self.replay.stats()["bytes_per_item"]

    def chunks(self, rng: np.random.Generator) -> list[Chunk]:
        return stamped(self.shape.row, self.shape.chunk, rng)

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        self._writer.extend(chunk, priorities=priorities)

    def sample(self) -> tuple[Any, Any]:
        batch = self.replay.sample(self.shape.batch, beta=BETA)
        return batch.keys, batch.data

    def update(self, keys: Any, magnitudes: Array) -> None:
        self.replay.update_priorities(keys, magnitudes)

    def columns(self, batch: Any) -> Mapping[str, Array]:
        columns: Mapping[str, Array] = batch
        return columns

    def torn(self, batch: Mapping[str, Array]) -> int:
        return torn(batch)

    def ready(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self.replay.close()


class ApexrlStacks(ApexrlRows):
    """``Replay(kind="transition", stack=4)``: each frame is stored once and stacked when it is sampled.

    A writer steps ``STREAMS`` environments together, so a chunk of 50 transitions is five appends of ten steps.
    Priorities travel as an agent's do: recorded with the step, read by ``priority_fn`` when its window is complete.
    """

    def __init__(self, shape: Shape) -> None:
        from apexrl.replay import Field, Replay

        self.shape = shape
        if shape.chunk % STREAMS:
            raise ValueError(f"chunks of image stacks must be a multiple of {STREAMS} transitions, not {shape.chunk}")
        row = shape.row
        self.replay = Replay(
            shape.capacity,
            {
                "observation": Field(row.observation[1:], row.observation_dtype),
                "action": Field(row.action, row.action_dtype),
                "magnitude": Field((), "float32", sampled=False),
            },
            kind="transition",
            stack=row.observation[0],
            n_step=1,
            alpha=ALPHA,
            eps=EPS,
            writers=shape.writers + 1,
            streams=STREAMS * (shape.writers + 1),
        )
        self._writer = self.replay.writer(streams=STREAMS, priority_fn=lambda items: items["magnitude"])
        self.bytes_per_transition = self.replay.stats()["bytes_per_item"]

    def chunks(self, rng: np.random.Generator) -> list[Any]:
        """Each the steps of several turns, one after the other."""
        turns = [dict(step) for step in steps(self.shape.row, STREAMS)]
        each = self.shape.chunk // STREAMS
        return [[turns[(each * i + j) % CYCLE] for j in range(each)] for i in range(CYCLE)]

    def insert(self, chunk: Any, priorities: Array) -> None:
        for step, magnitudes in zip(chunk, priorities.reshape(-1, STREAMS), strict=True):
            step["magnitude"] = magnitudes
            self._writer.append(step)

    def torn(self, batch: Mapping[str, Array]) -> int:
        return torn_stacks(batch)
