"""Items that a writer has completed and not yet published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from apexrl import _native
from apexrl.replay.batch import step_arrays
from apexrl.replay.layout import Layout
from apexrl.spec import Array


class PendingItems(Mapping[str, Array]):
    """Items as ``priority_fn`` gets them. A field is gathered when it is read.

    Names are as in ``Batch.data``. With transitions, every declared field ``f`` is also there as ``next_f``: its value
    m ≤ n steps later.
    """

    def __init__(self, native: _native.Writer, layout: Layout, count: int) -> None:
        self._native = native
        self._columns = {column.name: (i, column) for i, column in enumerate(layout.columns)}
        self._count = count
        self._layout = layout
        self._steps: dict[str, Array] = {}

    @property
    def count(self) -> int:
        """N, the number of items."""
        return self._count

    def __getitem__(self, name: str) -> Array:
        if name in self._step_names():
            if not self._steps:
                self._steps = step_arrays(self._layout, self._count)
                self._native.gather_pending_steps(**self._steps)
            return self._steps[name]
        later = name not in self._columns and name.startswith("next_") and not self._layout.steps
        index, column = self._columns[name[5:] if later else name]
        out = np.empty((self._count, *column.window_shape), column.field.dtype)
        self._native.gather_pending(index, later, out)
        return out

    def __iter__(self) -> Iterator[str]:
        for name in self._columns:
            yield name
            if not self._layout.steps:
                yield "next_" + name
        yield from self._step_names()

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _step_names(self) -> tuple[str, ...]:
        return ("reward", "discount", "mask", "first") if self._layout.steps else ("reward", "discount")
