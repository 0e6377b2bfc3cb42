"""The replays that ``replay.py`` compares, behind one face, and the rows that they store.

Every row carries one number in its observation, next observation and reward, so that a torn row is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ALPHA, BETA, EPS = 0.6, 0.4, 1e-6


@dataclass(frozen=True)
class Rows:
    """What one transition holds."""

    observation: tuple[int, ...]
    observation_dtype: str
    action: tuple[int, ...]
    action_dtype: str
    capacity: int
    """Default capacity, in transitions."""

    def fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        observation = (self.observation, self.observation_dtype)
        return {
            "observation": observation,
            "action": (self.action, self.action_dtype),
            "reward": ((), "float32"),
            "next_observation": observation,
            "done": ((), "float32"),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of a transition when both observations are stored."""
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self.fields().values())


ROWS = {
    "small": Rows((4,), "float32", (), "int64", 1_000_000),
    "mujoco": Rows((17,), "float32", (6,), "float32", 1_000_000),
    "atari": Rows((4, 84, 84), "uint8", (), "int64", 50_000),
}

Chunk = Mapping[str, Array]


class Contestant(Protocol):
    """One replay. ``insert`` takes what ``chunks`` made."""

    name: str
    bytes_per_transition: float

    def chunks(self, size: int, count: int, rng: np.random.Generator) -> list[Chunk]: ...
    def insert(self, chunk: Chunk, priorities: Array) -> None: ...
    def sample(self, size: int) -> tuple[Any, Mapping[str, Array]]:
        """Keys for ``update``, and the batch."""
        ...

    def update(self, keys: Any, magnitudes: Array) -> None: ...
    def ready(self) -> None:
        """Wait until what was inserted can be sampled."""
        ...

    def close(self) -> None: ...


class Apexrl:
    """apexrl.replay in rows mode: finished transitions in, as the peers take them."""

    name = "apexrl"

    def __init__(self, rows: Rows, capacity: int, writers: int, uniform: bool) -> None:
        from apexrl.replay import Field, Replay

        fields = {name: Field(shape, dtype) for name, (shape, dtype) in rows.fields().items()}
        self._rows = rows
        self.replay = Replay(capacity, fields, alpha=0.0 if uniform else ALPHA, eps=EPS, seed=0, writers=writers + 1)
        self._writer = self.replay.writer()
        self.bytes_per_transition = self.replay.stats()["bytes_per_item"]

    def chunks(self, size: int, count: int, rng: np.random.Generator) -> list[Chunk]:
        return stamped(self._rows, size, count, rng)

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        self._writer.extend(chunk, priorities=priorities)

    def sample(self, size: int) -> tuple[Any, Mapping[str, Array]]:
        batch = self.replay.sample(size, beta=BETA)
        return batch.keys, batch.data

    def update(self, keys: Any, magnitudes: Array) -> None:
        self.replay.update_priorities(keys, magnitudes)

    def ready(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self.replay.close()


class ApexrlStreams(Apexrl):
    """apexrl.replay in streams mode, for image stacks: each frame is stored once and stacked when sampled.

    A chunk of N is one step of N environments.
    """

    name = "apexrl"

    def __init__(self, rows: Rows, capacity: int, chunk: int, uniform: bool) -> None:
        from apexrl.replay import Field, Replay

        self._rows = rows
        self._priorities: Array = np.ones(0)
        self.replay = Replay(
            capacity,
            {
                "observation": Field(rows.observation[1:], rows.observation_dtype),
                "action": Field(rows.action, rows.action_dtype),
            },
            kind="transition",
            stack=rows.observation[0],
            n_step=1,
            alpha=0.0 if uniform else ALPHA,
            eps=EPS,
            seed=0,
            writers=1,
            streams=chunk,
        )
        self._writer = self.replay.writer(
            streams=chunk, priority_fn=lambda items: np.resize(self._priorities, len(items["reward"]))
        )
        self.bytes_per_transition = self.replay.stats()["bytes_per_item"]

    def chunks(self, size: int, count: int, rng: np.random.Generator) -> list[Chunk]:
        no = np.zeros(size, np.bool_)
        return [
            {
                "observation": chunk["observation"][:, -1].copy(),
                "action": chunk["action"],
                "reward": chunk["reward"],
                "terminated": no,
                "truncated": no,
            }
            for chunk in stamped(self._rows, size, count, rng)
        ]

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        self._priorities = priorities
        self._writer.append(chunk)


class Cpprb:
    """cpprb's PrioritizedReplayBuffer, or MPPrioritizedReplayBuffer where several processes insert."""

    name = "cpprb"

    def __init__(self, rows: Rows, capacity: int, processes: bool, uniform: bool) -> None:
        import cpprb

        fields = {name: {"shape": shape or 1, "dtype": np.dtype(d)} for name, (shape, d) in rows.fields().items()}
        self._rows = rows
        self._uniform = uniform
        kind = getattr(cpprb, f"{'MP' if processes else ''}{'' if uniform else 'Prioritized'}ReplayBuffer")
        self.name = f"cpprb.{kind.__name__}"
        self._buffer = kind(capacity, fields) if uniform else kind(capacity, fields, alpha=ALPHA, eps=EPS)
        self.bytes_per_transition = float(rows.nbytes)

    def chunks(self, size: int, count: int, rng: np.random.Generator) -> list[Chunk]:
        return stamped(self._rows, size, count, rng)

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        if self._uniform:
            self._buffer.add(**chunk)
        else:
            self._buffer.add(**chunk, priorities=priorities)

    def sample(self, size: int) -> tuple[Any, Mapping[str, Array]]:
        if self._uniform:
            return None, self._buffer.sample(size)
        batch = self._buffer.sample(size, BETA)
        return batch["indexes"], batch

    def update(self, keys: Any, magnitudes: Array) -> None:
        self._buffer.update_priorities(keys, magnitudes)

    def ready(self) -> None:
        """``add`` returns when the rows are there."""

    def close(self) -> None:
        """Nothing to let go of."""


def stamped(rows: Rows, size: int, count: int, rng: np.random.Generator) -> list[Chunk]:
    """``count`` chunks of ``size`` transitions, each with one number all over it."""
    chunks: list[Chunk] = []
    for _ in range(count):
        stamp = rng.integers(256, size=size)
        chunk = {
            name: np.broadcast_to(stamp.reshape(size, *[1] * len(shape)), (size, *shape)).astype(dtype)
            for name, (shape, dtype) in rows.fields().items()
        }
        chunks.append(chunk | {"done": np.zeros(size, np.float32)})
    return chunks


def torn(batch: Mapping[str, Array]) -> int:
    """Rows of a batch whose parts do not carry one number."""
    rows = len(batch["reward"])
    stamp = batch["reward"].reshape(rows)
    wrong = np.zeros(rows, np.bool_)
    for name in ("observation", "next_observation", "action"):
        wrong |= (batch[name].reshape(rows, -1) != stamp[:, np.newaxis]).any(axis=1)
    return int(wrong.sum())
