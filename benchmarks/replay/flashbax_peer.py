"""flashbax: ``make_prioritised_item_buffer`` on the CPU, every call jitted and its state donated, as its README shows.

JAX runs as it comes: 32-bit (actions become int32), its own threads on all cores. A call ends when its result is there
(``block_until_ready``). Batches are JAX arrays and carry probabilities in place of weights. Priorities cannot come with
an insert, so they are set in the same jitted call, which spares flashbax a second dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.replay.contestants import ALPHA, Shape
from benchmarks.replay.python_peers import TakesRows
from benchmarks.replay.rows import Array, Chunk


class Flashbax(TakesRows):
    """A buffer of finished transitions."""

    title, returns = "flashbax", "jax"

    def __init__(self, shape: Shape) -> None:
        import flashbax
        import jax
        import jax.numpy as jnp

        super().__init__(shape)
        buffer = flashbax.make_prioritised_item_buffer(
            shape.capacity, shape.batch, shape.batch, add_batches=True, priority_exponent=ALPHA, device="cpu"
        )

        def insert(state: Any, chunk: Any, priorities: Any) -> Any:
            where = (state.current_index + jnp.arange(shape.chunk)) % shape.capacity
            return buffer.set_priorities(buffer.add(state, chunk), where, priorities)

        def sample(state: Any, key: Any) -> Any:
            key, now = jax.random.split(key)
            return key, buffer.sample(state, now)

        self._insert = jax.jit(insert, donate_argnums=0)
        self._sample = jax.jit(sample)
        self._update = jax.jit(buffer.set_priorities, donate_argnums=0)
        example = {name: jnp.zeros(size, dtype) for name, (size, dtype) in self._fields().items()}
        self._state: Any = jax.block_until_ready(buffer.init(example))
        self._key = jax.random.key(0)
        self._block = jax.block_until_ready

    def _fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {n: (size, d.replace("int64", "int32")) for n, (size, d) in self.shape.row.fields().items()}

    def chunks(self, rng: np.random.Generator) -> list[Chunk]:
        fields = self._fields()
        return [{name: c.astype(fields[name][1]) for name, c in chunk.items()} for chunk in super().chunks(rng)]

    def insert(self, chunk: Chunk, priorities: Array) -> None:
        self._state = self._block(self._insert(self._state, chunk, priorities))

    def sample(self) -> tuple[Any, Any]:
        self._key, batch = self._block(self._sample(self._state, self._key))
        return batch.indices, batch.experience

    def update(self, keys: Any, magnitudes: Array) -> None:
        self._state = self._block(self._update(self._state, keys, magnitudes))

    def columns(self, batch: Any) -> Mapping[str, Array]:
        return {name: np.asarray(column) for name, column in batch.items()}
