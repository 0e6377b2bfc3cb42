"""Peers that live in apexrl's interpreter: cpprb, Tianshou, TorchRL, Stable-Baselines3, and NumPy as the floor.

All with α 0.6, β 0.4 and their own defaults otherwise, threads included. Finished transitions go in 50 at a time, both
observations stored; a batch is dense arrays. Who cannot take priorities with the insert sets them right after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from benchmarks.replay.contestants import ALPHA, BETA, EPS, Shape
from benchmarks.replay.rows import Array, Chunk, stamped, torn


class TakesRows:
    """What all of them share: finished transitions in, under our names."""

    title: str
    prioritized, returns = True, "NumPy"
    start: ClassVar[str] = ""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.bytes_per_transition = float(shape.row.nbytes)

    def chunks(self, rng: np.random.Generator) -> list[Chunk]:
        return stamped(self.shape.row, self.shape.chunk, rng)

    def update(self, keys: Any, magnitudes: Array) -> None:
        """Uniform contestants have no priorities, and are not asked."""

    def columns(self, batch: Any) -> Mapping[str, Array]:
        columns: Mapping[str, Array] = batch
        return columns

    def torn(self, batch: Mapping[str, Array]) -> int:
        return torn(batch)

    def ready(self) -> None:
        """``insert`` returns when the rows are there."""

    def close(self) -> None:
        """Nothing to let go of."""


class Cpprb(TakesRows):
    """``PrioritizedReplayBuffer``, uncompressed: ``next_of`` and ``stack_compress`` save memory and cost time."""

    title = "cpprb"
    kind = "PrioritizedReplayBuffer"

    def __init__(self, shape: Shape) -> None:
        import cpprb

        super().__init__(shape)
        fields = {name: {"shape": size or 1, "dtype": np.dtype(d)} for name, (size, d) in shape.row.fields().items()}
        self._buffer = getattr(cpprb, self.kind)(shape.capacity, fields, alpha=ALPHA, eps=EPS)

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        self._buffer.add(**chunk, priorities=priorities)

    def sample(self) -> tuple[Any, Any]:
        batch = self._buffer.sample(self.shape.batch, BETA)
        return batch["indexes"], batch

    def update(self, keys: Any, magnitudes: Array) -> None:
        self._buffer.update_priorities(keys, magnitudes)


class CpprbMP(Cpprb):
    """``MPPrioritizedReplayBuffer`` with its default backend; explorers inherit it by a fork, as its documents show."""

    title = "cpprb MP"
    kind = "MPPrioritizedReplayBuffer"
    start: ClassVar[str] = "fork"


class Tianshou(TakesRows):
    """``PrioritizedVectorReplayBuffer`` of as many sub-buffers as a chunk has rows: one ``add`` takes the chunk."""

    title = "Tianshou"

    def __init__(self, shape: Shape) -> None:
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer

        super().__init__(shape)
        self._batch = Batch
        self._buffer: Any = PrioritizedVectorReplayBuffer(shape.capacity, shape.chunk, alpha=ALPHA, beta=BETA)
        self._all = np.arange(shape.chunk)
        self._no = np.zeros(shape.chunk, np.bool_)

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        batch = self._batch(
            obs=chunk["observation"],
            act=chunk["action"],
            rew=chunk["reward"],
            terminated=self._no,
            truncated=self._no,
            obs_next=chunk["next_observation"],
        )
        where, *_ = self._buffer.add(batch, buffer_ids=self._all)
        self._buffer.update_weight(where, priorities)

    def sample(self) -> tuple[Any, Any]:
        batch, indices = self._buffer.sample(self.shape.batch)
        return indices, batch

    def update(self, keys: Any, magnitudes: Array) -> None:
        self._buffer.update_weight(keys, magnitudes)

    def columns(self, batch: Any) -> Mapping[str, Array]:
        return {
            "observation": batch.obs,
            "action": batch.act,
            "reward": batch.rew,
            "next_observation": batch.obs_next,
        }


class TorchrlUniform(TakesRows):
    """``TensorDictReplayBuffer`` on ``LazyTensorStorage``, uniform."""

    title = "TorchRL uniform"
    prioritized, returns = False, "torch"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        self._torch, self._dict = torch, TensorDict
        self._buffer: Any = TensorDictReplayBuffer(
            storage=LazyTensorStorage(shape.capacity), batch_size=shape.batch, **self.options(shape)
        )

    def options(self, shape: Shape) -> dict[str, Any]:
        return {}

    def chunks(self, rng: np.random.Generator) -> list[Any]:
        size = [self.shape.chunk]
        return [
            self._dict({name: self._torch.from_numpy(column) for name, column in chunk.items()}, batch_size=size)
            for chunk in super().chunks(rng)
        ]

    def insert(self, chunk: Any, priorities: Array) -> None:
        self._buffer.extend(chunk)

    def sample(self) -> tuple[Any, Any]:
        batch = self._buffer.sample()
        return batch["index"], batch

    def update(self, keys: Any, magnitudes: Array) -> None:
        self._buffer.update_priority(keys, self._torch.from_numpy(magnitudes))

    def columns(self, batch: Any) -> Mapping[str, Array]:
        return {name: batch[name].numpy() for name in self.shape.row.fields()}


class TorchrlPrioritized(TorchrlUniform):
    """The same with ``PrioritizedSampler``, whose C++ extension must fit the installed torch."""

    title = "TorchRL"
    prioritized = True

    def options(self, shape: Shape) -> dict[str, Any]:
        from torchrl.data import PrioritizedSampler

        return {"sampler": PrioritizedSampler(shape.capacity, alpha=ALPHA, beta=BETA, eps=EPS)}

    def insert(self, chunk: Any, priorities: Array) -> None:
        where = self._buffer.extend(chunk)
        self._buffer.update_priority(where, self._torch.from_numpy(priorities))


class Sb3(TakesRows):
    """Stable-Baselines3's ``ReplayBuffer``, uniform: the chunk is one step of 50 environments."""

    title = "SB3 uniform"
    prioritized, returns = False, "torch"

    def __init__(self, shape: Shape) -> None:
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer

        super().__init__(shape)
        row = shape.row
        low, high = (0, 255) if row.observation_dtype == "uint8" else (-np.inf, np.inf)
        observation = spaces.Box(low, high, row.observation, np.dtype(row.observation_dtype).type)
        action = spaces.Box(-np.inf, np.inf, row.action, np.float32) if row.action else spaces.Discrete(256)
        self._buffer: Any = ReplayBuffer(shape.capacity, observation, action, device="cpu", n_envs=shape.chunk)
        self._infos: list[dict[str, Any]] = [{} for _ in range(shape.chunk)]

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        self._buffer.add(
            chunk["observation"],
            chunk["next_observation"],
            chunk["action"],
            chunk["reward"],
            chunk["done"],
            self._infos,
        )

    def sample(self) -> tuple[Any, Any]:
        return None, self._buffer.sample(self.shape.batch)

    def columns(self, batch: Any) -> Mapping[str, Array]:
        return {
            "observation": batch.observations.numpy(),
            "action": batch.actions.numpy(),
            "reward": batch.rewards.numpy(),
            "next_observation": batch.next_observations.numpy(),
        }


class NumpyUniform(TakesRows):
    """The floor: preallocated columns, uniform draws, ``np.take`` into arrays that every batch shares."""

    title = "NumPy uniform"
    prioritized = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        fields = shape.row.fields().items()
        self._columns = {name: np.zeros((shape.capacity, *size), dtype) for name, (size, dtype) in fields}
        self._batch = {name: np.empty((shape.batch, *size), dtype) for name, (size, dtype) in fields}
        self._rng = np.random.default_rng(0)
        self._next = self._size = 0

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        start, capacity = self._next, self.shape.capacity
        rows = min(self.shape.chunk, capacity - start)
        for name, column in self._columns.items():
            column[start : start + rows] = chunk[name][:rows]
        self._next = (start + rows) % capacity
        self._size = min(capacity, self._size + rows)

    def sample(self) -> tuple[Any, Any]:
        rows = self._rng.integers(self._size, size=self.shape.batch)
        for name, column in self._columns.items():
            np.take(column, rows, axis=0, out=self._batch[name], mode="clip")  # "raise" would copy twice
        return None, self._batch
