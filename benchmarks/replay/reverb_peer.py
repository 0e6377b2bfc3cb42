"""Reverb: a ``Table`` of single transitions, its gRPC server in the sampler's process, writers as clients.

``Prioritized(0.6)`` sampler, FIFO remover, ``MinSize`` limiter (no coupling). A chunk is 50 ``append`` and
``create_item`` calls and one ``flush``; batches come from ``TrajectoryDataset`` (as its documents ask for training),
``batch(512)``, in-flight samples at twice the batch, which is the low end of the advice. The dataset prefetches, so a
batch may be older than the last update. It needs an older NumPy and TensorFlow, so an interpreter of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from benchmarks.replay.contestants import ALPHA, Shape
from benchmarks.replay.python_peers import TakesRows
from benchmarks.replay.rows import Array, Chunk

TABLE = "transitions"


class Reverb(TakesRows):
    """Server and sampler; a pickled copy is a client that inserts."""

    title = "Reverb"
    start: ClassVar[str] = "spawn"

    def __init__(self, shape: Shape) -> None:
        import reverb
        import tensorflow as tf

        super().__init__(shape)
        signature = {
            name: tf.TensorSpec((1, *size), tf.dtypes.as_dtype(dtype))
            for name, (size, dtype) in shape.row.fields().items()
        }
        table = reverb.Table(
            TABLE,
            sampler=reverb.selectors.Prioritized(ALPHA),
            remover=reverb.selectors.Fifo(),
            max_size=shape.capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        self._server = reverb.Server([table])
        self._batches: Any = None
        self._connect(f"localhost:{self._server.port}")

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self.shape, "address": self._address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__(state["shape"])
        self._connect(state["address"])

    def _connect(self, address: str) -> None:
        import reverb

        self._address = address
        self._client = reverb.Client(address)
        self._writer: Any = self._client.trajectory_writer(num_keep_alive_refs=1)

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        writer = self._writer
        for row, priority in enumerate(priorities.tolist()):
            writer.append({name: column[row] for name, column in chunk.items()})
            writer.create_item(TABLE, priority, {name: writer.history[name][-1:] for name in chunk})
        writer.flush()

    def sample(self) -> tuple[Any, Any]:
        if self._batches is None:
            import reverb

            dataset = reverb.TrajectoryDataset.from_table_signature(
                self._address, TABLE, max_in_flight_samples_per_worker=2 * self.shape.batch
            )
            self._batches = dataset.batch(self.shape.batch, drop_remainder=True).as_numpy_iterator()
        batch = next(self._batches)
        return batch.info.key, batch.data

    def update(self, keys: Any, magnitudes: Array) -> None:
        updates = dict(zip(keys.tolist(), magnitudes.tolist(), strict=True))
        self._client.mutate_priorities(TABLE, updates)

    def columns(self, batch: Any) -> Mapping[str, Array]:
        return {name: column[:, 0] for name, column in batch.items()}

    def close(self) -> None:
        self._batches = None
        self._server.stop()
