"""What the replays of this benchmark store: three kinds of rows, stamped so that a torn or mixed-up one is seen.

Every part of a row (observation, action, reward, next observation) carries one number below 256, its *stamp*.
``stamped`` makes finished transitions; ``steps`` makes streams of steps, where the next observation is that of the
stream's next step and therefore carries ``successor(stamp)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Chunk = Mapping[str, Array]
CYCLE = 16  # chunks that are prepared, and inserted one after the other for ever


@dataclass(frozen=True)
class Rows:
    """What one transition holds."""

    observation: tuple[int, ...]
    observation_dtype: str
    action: tuple[int, ...]
    action_dtype: str
    capacity: int
    """Default capacity, in transitions."""
    pace: int
    """Default transitions/s of all paced writers together."""

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
    "small": Rows((4,), "float32", (), "int64", 1_000_000, 200_000),
    "medium": Rows((17,), "float32", (6,), "float32", 1_000_000, 200_000),
    "atari": Rows((4, 84, 84), "uint8", (), "int64", 20_000, 4_000),
}


def stamped(rows: Rows, size: int, rng: np.random.Generator) -> list[Chunk]:
    """``CYCLE`` chunks of ``size`` finished transitions with random stamps: name -> ``[size, ...]``."""
    chunks: list[Chunk] = []
    for _ in range(CYCLE):
        stamp = rng.integers(256, size=size)
        chunk = {name: spread_out(stamp, *field) for name, field in rows.fields().items()}
        chunks.append(chunk | {"done": np.zeros(size, np.float32)})
    return chunks


def steps(rows: Rows, streams: int) -> list[Chunk]:
    """``CYCLE`` consecutive steps of each of ``streams`` streams, to be repeated: name -> ``[streams, ...]``.

    ``observation`` is one frame where rows are stacks of frames.
    """
    frame = rows.observation[1:] if len(rows.observation) > 1 else rows.observation
    chunks: list[Chunk] = []
    for turn in range(CYCLE):
        stamp = (CYCLE * np.arange(streams) + turn) % 256
        chunks.append(
            {
                "observation": spread_out(stamp, frame, rows.observation_dtype),
                "action": spread_out(stamp, rows.action, rows.action_dtype),
                "reward": stamp.astype(np.float32),
                "terminated": np.zeros(streams, np.bool_),
                "truncated": np.zeros(streams, np.bool_),
            }
        )
    return chunks


def spread_out(stamp: Array, shape: tuple[int, ...], dtype: str) -> Array:
    """``[N]`` -> ``[N, *shape]``, each row full of its stamp."""
    return np.broadcast_to(stamp.reshape(-1, *[1] * len(shape)), (len(stamp), *shape)).astype(dtype)


def successor(stamp: Array, by: Array) -> Array:
    """The stamp of the same stream's step ``by`` steps later."""
    later: Array = stamp // CYCLE * CYCLE + (stamp + by) % CYCLE
    return later


def stamps(batch: Mapping[str, Array]) -> NDArray[np.int64]:
    """The stamp of each row of a batch, ``[B]``."""
    return np.asarray(batch["reward"]).reshape(-1).astype(np.int64)


def torn(batch: Mapping[str, Array]) -> int:
    """Rows of ``stamped`` transitions whose parts do not carry one number."""
    stamp = stamps(batch)[:, np.newaxis]
    wrong = np.zeros(len(stamp), np.bool_)
    for name in ("observation", "next_observation", "action"):
        wrong |= (np.asarray(batch[name]).reshape(len(stamp), -1) != stamp).any(axis=1)
    return int(wrong.sum())


def torn_stacks(batch: Mapping[str, Array]) -> int:
    """Rows of stacked ``steps`` (``[B, stack, ...]``) that are not consecutive steps of one stream.

    Where a stream began, with turn 0 of the cycle, the frames before it are copies of its first.
    """
    stamp = stamps(batch)[:, np.newaxis]
    depth = batch["observation"].shape[1]
    wrong = np.asarray(batch["action"]).reshape(-1) != stamp[:, 0]
    for name, ahead in (("observation", 0), ("next_observation", 1)):
        frames = np.asarray(batch[name]).reshape(len(stamp), depth, -1)
        found = frames[:, :, 0].astype(np.int64)
        by = np.arange(depth) + ahead + 1 - depth
        first = stamp // CYCLE * CYCLE
        right = (found == successor(stamp, by)) | ((stamp % CYCLE + by < 0) & (found == first))
        wrong |= ~right.all(axis=1) | (frames != frames[:, :, :1]).any(axis=(1, 2))
    return int(wrong.sum())
