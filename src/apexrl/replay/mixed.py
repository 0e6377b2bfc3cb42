"""Batches that several replays give together, each its fixed share: live experience and a dataset, say."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ConfigError, WaitTimeout
from apexrl.replay.batch import Allocator, ArraySet, Batch, BatchPool, Updated, outputs_into
from apexrl.replay.batch_keys import BatchKeys, SourceKeys, check_batch
from apexrl.replay.core import Normalize, ReplayCore
from apexrl.replay.deadline import deadline_after
from apexrl.replay.layout import Layout
from apexrl.replay.priorities import checked
from apexrl.replay.replay import Replay
from apexrl.replay.served.batch_server import BatchServer
from apexrl.replay.served.batch_sources import ShardedSource
from apexrl.spec import length_of

Counts = Literal["exact", "expected"]


class Source(Protocol):
    """What a ``MixedReplay`` draws from: a ``Replay``, or a sharded one that was made with ``layout=``."""

    @property
    def capacity(self) -> int: ...
    def __len__(self) -> int: ...
    def sample(
        self, batch_size: int, beta: float = ..., *, normalize: Normalize = ..., timeout: float = ...
    ) -> Batch: ...
    def update_priorities(self, keys: Any, priorities: Any) -> Updated: ...
    def stats(self) -> dict[str, Any]: ...


class MixedBatch(Batch):
    """A ``Batch`` whose rows come from several replays: those of the first replay first, and so on.

    Attributes:
        sources: int64 ``[B]``, the place of the row's replay in ``MixedReplay.names``.
    """

    __slots__ = ("sources",)

    def __init__(
        self,
        data: dict[str, NDArray[Any]],
        keys: NDArray[np.uint64],
        probabilities: NDArray[np.float64],
        weights: NDArray[np.float32],
        sources: NDArray[np.int64],
    ) -> None:
        super().__init__(data, keys, probabilities, weights)
        self.sources = sources


class _Plan(NamedTuple):
    """A batch under way."""

    counts: list[int]  # rows of each replay
    arrays: ArraySet
    parts: list[SourceKeys]  # of the replays that gave theirs


class MixedReplay:
    """``sample`` and ``update_priorities`` as on one replay, over several with fixed shares. One thread at a time.

        mixed = MixedReplay({"live": replay, "dataset": dataset}, {"live": 0.5, "dataset": 0.5})
        batch = mixed.sample(256)  # 128 rows of each; batch.sources says which
        mixed.update_priorities(batch.keys, priorities)  # each goes to the replay that its item came from

    Within its share each replay draws by its own sampler, limiter and seed; probabilities are those within the replay.
    Importance weights correct each replay's own draw, not the shares, and are normalised over the whole batch. A batch
    has the fields that all replays sample; others are not gathered.

    Args:
        replays: by name, of one kind and with equal fields where their names are equal.
        shares: name -> its part of every batch; together 1.
        counts: ``"exact"``: the shares of every batch, rounded so that over any number of batches no replay is a whole
            row per other replay away from its share. ``"expected"``: each row's replay is drawn by the shares.
        seed: of the draws of ``"expected"``.

    Raises:
        ConfigError: shares, kinds or fields do not fit.
    """

    def __init__(
        self,
        replays: Mapping[str, Source],
        shares: Mapping[str, float],
        *,
        counts: Counts = "exact",
        seed: int = 0,
    ) -> None:
        if not replays:
            raise ConfigError("a mixed replay needs at least one replay")
        if counts not in ("exact", "expected"):
            raise ConfigError(f"counts={counts!r} must be 'exact' or 'expected'")
        self.names = tuple(replays)
        self.replays = dict(replays)
        self._counts = counts
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self.layout = _common_layout({name: _layout_of(name, one) for name, one in replays.items()})
        self._pool = BatchPool(None, self.layout)
        self._keys = BatchKeys()
        self._plan: _Plan | None = None
        self._outstanding: deque[list[int]] = deque()  # counts of batches that are in use
        self._last: list[int] = []  # … of the last one that was not drawn as `outstanding`
        self.set_shares(shares)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MixedReplay, counts=self._counts, seed=self._seed), (self.replays, self.shares)

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """Mix batches in other parts from the next one on. ConfigError: they are not of these replays, or not 1."""
        if set(shares) != set(self.names):
            raise ConfigError(f"shares= names {sorted(shares)}, but the replays are {sorted(self.names)}")
        values = np.array([float(shares[name]) for name in self.names])
        if not np.isfinite(values).all() or (values < 0).any() or abs(values.sum() - 1.0) > 1e-6:
            raise ConfigError(f"shares={dict(shares)} must be at least 0 and 1 together")
        self.shares = dict(zip(self.names, values.tolist(), strict=True))
        self._parts = values / values.sum()
        self._owed = np.zeros(len(values))  # rows, in addition to what a batch brings

    def sample(
        self,
        batch_size: int,
        beta: float = 0.4,
        *,
        normalize: Normalize = "batch",
        timeout: float = 10.0,
        outstanding: bool = False,
        n_step: int | None = None,
        gamma: float | None = None,
    ) -> MixedBatch:
        """Draw ``batch_size`` items; arguments as for ``Replay.sample``.

        Raises:
            ConfigError: an argument is out of range; ``normalize="buffer"``, as several replays have no least priority
                in common.
            WaitTimeout: one of the replays, which is named, has no items for ``timeout`` seconds. What others gave
                already is part of the next batch of this size.
        """
        arrays, counts = self._next(batch_size, beta, normalize, timeout, n_step, gamma)
        if outstanding:
            self._outstanding.append(counts)
        else:
            self._done(self._last)
            self._last = counts
        try:
            return MixedBatch(arrays.named.copy(), *arrays.fixed, np.repeat(np.arange(len(counts)), counts))
        finally:
            self._pool.put(batch_size, arrays)

    def fill(self, arrays: ArraySet, batch_size: int, beta: float, normalize: Normalize, timeout: float) -> None:
        """Like ``sample``, into arrays for ``batch_size`` items of this ``layout``."""
        drawn, _ = self._next(batch_size, beta, normalize, timeout, None, None)
        for to, values in zip(arrays.columns, drawn.columns, strict=True):
            np.copyto(to, values)
        self._pool.put(batch_size, drawn)

    def done(self, items: int) -> None:
        """Mark the oldest ``outstanding`` batches as used, until so many items are."""
        while items > 0 and self._outstanding:
            counts = self._outstanding.popleft()
            items -= sum(counts)
            self._done(counts)

    def update_priorities(self, keys: Any, priorities: Any) -> Updated:
        """Write new raw magnitudes |δ| to the replays that the items came from.

        Keys are those of batches of this object, at most 1024 batches old; others are stale.

        Raises:
            PriorityError: a value is NaN, infinite or negative (the row is named); nothing was written.
        """
        keys, values = checked(keys, priorities)
        applied = 0
        for one in self._keys.by_source(keys):
            applied += self.replays[self.names[one.source]].update_priorities(one.keys, values[one.rows]).applied
        return Updated(applied, len(keys) - applied)

    def check_batch(self, batch_size: int, beta: float, normalize: Normalize) -> None:
        """ConfigError: there are no such batches."""
        check_batch(batch_size, beta, normalize, "mixed")

    @property
    def capacity(self) -> int:
        """Items of all replays together."""
        return sum(one.capacity for one in self.replays.values())

    def __len__(self) -> int:
        """Items in all replays together."""
        return sum(len(one) for one in self.replays.values())

    def stats(self) -> dict[str, Any]:
        """Of all replays together, as in ``Replay.stats``: size, capacity, inserted, sampled; and ``replays``, the
        whole ``stats`` of each by its name."""
        each = {name: one.stats() for name, one in self.replays.items()}
        names = ("size", "capacity", "inserted", "sampled")
        return {**{name: sum(one[name] for one in each.values()) for name in names}, "replays": each}

    @property
    def allocator(self) -> Allocator:
        """As of ``Replay``: makes the arrays of batches."""
        return self._pool.allocate

    @allocator.setter
    def allocator(self, allocate: Allocator) -> None:
        self._pool.clear()
        self._pool.allocate = allocate

    def serve(
        self, learners: int, batch_size: int, beta: float = 0.4, prefetch: int = 2, normalize: Normalize = "batch"
    ) -> BatchServer:
        """Sample for several learners of this host; see ``BatchServer``."""
        return BatchServer(self, learners, batch_size, beta, prefetch, normalize)

    def batch_source(self) -> ShardedSource:
        for name, source in self.replays.items():
            core = _core_of(source)
            if core is not None and core.fifo:
                raise ConfigError(
                    f"replay {name!r} is fifo: a mix with it serves no other processes, so sample it here"
                )
        return ShardedSource(self, self.layout)

    def wait(self, timeout: float) -> None:
        """Wait until there may be a batch, at most ``timeout`` seconds."""
        waits = self._plan is not None and _core_of(self.replays[self.names[len(self._plan.parts)]])
        if waits:
            waits.native.wait(timeout)
        else:
            time.sleep(timeout)

    def save(self, path: Any, check: Any = None) -> None:
        """ConfigError: save the replays, each to a file of its own."""
        raise ConfigError(f"a mixed replay cannot be saved to {path}: save the replays that it draws from")

    # --- inside

    def _next(
        self, size: int, beta: float, normalize: Normalize, timeout: float, n_step: int | None, gamma: float | None
    ) -> tuple[ArraySet, list[int]]:
        """A batch's arrays, filled, and how many rows each replay gave."""
        self.check_batch(size, beta, normalize)
        deadline = deadline_after(timeout)
        plan, self._plan = self._plan, None
        if plan is not None and sum(plan.counts) != size:  # the caller changed batch_size
            self._done([len(part.keys) for part in plan.parts])
            plan = None
        if plan is None:
            plan = _Plan(self._share_out(size), self._pool.take(size), [])
        try:
            while len(plan.parts) < len(self.names):
                left = max(0.0, deadline - time.monotonic())
                plan.parts.append(self._draw(plan, len(plan.parts), beta, left, n_step, gamma))
        except WaitTimeout as error:
            self._plan = plan
            raise WaitTimeout(f"replay {self.names[len(plan.parts)]!r}: {error}") from None
        keys, _, weights = plan.arrays.fixed
        keys[:] = self._keys.make(size, plan.parts)
        if normalize == "batch":
            weights /= weights.max()
        return plan.arrays, plan.counts

    def _share_out(self, size: int) -> list[int]:
        """How many of ``size`` rows each replay gives."""
        if self._counts == "expected":
            return [int(n) for n in self._rng.multinomial(size, self._parts)]
        self._owed += self._parts * size
        counts = np.maximum(np.floor(self._owed + 1e-9), 0).astype(np.int64)
        while counts.sum() != size:
            short = counts.sum() < size
            owed = self._owed - counts
            counts[np.argmax(owed) if short else np.argmin(np.where(counts > 0, owed, np.inf))] += 1 if short else -1
        self._owed -= counts
        return [int(n) for n in counts]

    def _draw(
        self, plan: _Plan, place: int, beta: float, timeout: float, n_step: int | None, gamma: float | None
    ) -> SourceKeys:
        """Draw the rows of the replay at ``place`` into their part of the arrays."""
        count, first = plan.counts[place], sum(plan.counts[:place])
        if count == 0:
            return SourceKeys(place, "", np.empty(0, np.uint64))
        source = self.replays[self.names[place]]
        rows = slice(first, first + count)
        named = {name: values[rows] for name, values in plan.arrays.named.items()}
        _, probabilities, weights = (values[rows] for values in plan.arrays.fixed)
        core = _core_of(source)
        if core is None:
            batch = source.sample(count, beta, normalize="none", timeout=timeout)
            for name, values in named.items():
                np.copyto(values, batch.data[name])
            probabilities[:], weights[:] = batch.probabilities, batch.weights
            return SourceKeys(place, "", batch.keys)
        keys = np.empty(count, np.uint64)
        outputs = outputs_into(core.native, core.layout, named, keys, probabilities, weights)
        core.fill(outputs, count, beta, "none", timeout, True, n_step, gamma)
        return SourceKeys(place, "", keys)

    def _done(self, counts: list[int]) -> None:
        for name, count in zip(self.names, counts, strict=False):
            core = _core_of(self.replays[name])
            if core is not None and core.consumes:
                core.native.done(count, False)


def _core_of(source: Source) -> ReplayCore | None:
    """Of a replay in this host's memory."""
    return source.core if isinstance(source, Replay) else None


def _layout_of(name: str, source: Source) -> Layout:
    layout = source.core.layout if isinstance(source, Replay) else getattr(source, "layout", None)
    if not isinstance(layout, Layout):
        raise ConfigError(f"replay {name!r} does not say the layout of its items: make it with layout=")
    return layout


def _common_layout(layouts: Mapping[str, Layout]) -> Layout:
    """The fields that all have and sample. ConfigError: they are not of one kind, or differ in shape or dtype."""
    (first, layout), *others = layouts.items()
    for name, other in others:
        for what in ("kind", "stack", "steps"):
            if getattr(layout, what) != getattr(other, what):
                raise ConfigError(
                    f"replays {first!r} and {name!r} cannot be mixed: {what} {getattr(layout, what)!r} and "
                    f"{getattr(other, what)!r}"
                )
    fields = {column.name: column for column in layout.columns if column.field.sampled}
    for name, other in others:
        theirs = {column.name: column for column in other.columns if column.field.sampled}
        for field in [field for field in fields if field not in theirs]:
            del fields[field]
        for field, column in fields.items():
            mine, its = column, theirs[field]
            shape, dtype = its.window_shape, its.field.dtype
            if (mine.window_shape, mine.field.dtype, mine.windowed) != (shape, dtype, its.windowed):
                raise ConfigError(
                    f"replays {first!r} and {name!r} cannot be mixed: field {field!r} is {mine.field.dtype} "
                    f"{list(mine.window_shape)} and {dtype} {list(shape)}"
                )
            if mine.field.ragged != its.field.ragged:
                raise ConfigError(
                    f"replays {first!r} and {name!r} cannot be mixed: field {field!r} is ragged in one alone"
                )
    if not fields:
        raise ConfigError(f"replays {', '.join(map(repr, layouts))} have no field in common")
    for field, column in fields.items():
        if column.field.ragged and length_of(field) not in fields:
            raise ConfigError(f"replays cannot be mixed: not all sample {length_of(field)!r}, the lengths of {field!r}")
    goals = [one.hindsight and one.hindsight.shapes(1) for one in layouts.values()]
    if any(one != goals[0] for one in goals):
        raise ConfigError("replays cannot be mixed where only some draw goals in hindsight, or of other shapes")
    kept = {name: column.field for name, column in fields.items()}
    return Layout(kept, layout.kind, layout.stack, layout.steps, layout.hindsight)
