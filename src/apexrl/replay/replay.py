"""The replay: created by one process, filled by any number, sampled by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl._native import WriteStatus
from apexrl.errors import ConfigError
from apexrl.replay import stored_items
from apexrl.replay.batch import Allocator, Batch, BatchPool, Updated
from apexrl.replay.core import Handle, Normalize, ReplayCore
from apexrl.replay.hindsight import Strategy
from apexrl.replay.layout import Kind
from apexrl.replay.options import OPTIONS, Draws, Remover, Sampler, checked, checked_streams, stride_of
from apexrl.replay.priorities import as_keys, as_priorities, bad_priority
from apexrl.replay.served.batch_server import BatchServer
from apexrl.replay.served.batch_sources import LocalSource
from apexrl.replay.snapshot import Room, load, save
from apexrl.replay.snapshot_chain import SnapshotWriter, load_chain
from apexrl.replay.writer import PriorityFn, Writer
from apexrl.spec import ACHIEVED_GOAL, Field

_OK = WriteStatus.ok  # a global, for the fast path


class Replay:
    """A prioritized replay in shared memory.

    Any process that holds it may append through ``writer()``. The first process that samples owns it until that process
    ends or calls ``release()``. Handles can be pickled to other local processes, and survive a fork.

    Args:
        capacity: items kept; the oldest chunk is evicted first. Once full, capacity − chunk < len ≤ capacity.
        fields: name -> Field. Rows mode: a whole transition. Streams mode: one step; ``reward``, ``terminated`` and
            ``truncated`` are built in.
        kind: ``"rows"`` (default): ``writer.extend`` takes finished items. The other kinds are streams:
            ``writer.append`` takes steps, and an item is a window of them.
            ``"transition"``: a step, and the observation n steps later.
            ``"sequence"``: ``length`` steps of one episode, starting every ``stride`` steps, shorter at its end.
            ``"unroll"``: ``length`` steps back to back, across episodes.
        stack: (streams) frames of a windowed field in an item; 1 adds no axis.
        n_step: (transition) rewards summed before the bootstrap observation; fewer where the episode ends.
        gamma: discount per step.
        length: (sequence, unroll) steps of an item.
        stride: (sequence) steps between the starts of items; default ``length``.
        burn_in: (sequence, unroll) steps before an item's own that come with it, to warm a recurrent state.
        sampler: ``"prioritized"``, ``"uniform"``; ``"fifo"``: each item at most once, oldest first; writers wait
            while the replay holds ``capacity`` items; or the first items of an order, each once in a batch: ``"lifo"``
            (the newest), ``"max_heap"`` or ``"min_heap"`` (the largest or smallest priorities).
        max_times_sampled: (lifo, max_heap, min_heap) 1: an item goes when it is sampled; 0: items stay.
        draws: ``"stratified"`` (one from each equal slice of the total: less variance) or ``"independent"``.
        alpha: priority exponent; 0 samples uniformly.
        eps: added to |δ| before the exponent.
        recency_half_life: age at which an item's chance has halved, as a share of ``capacity``; 0: age does not count.
            An item's age is the number of items that were inserted after it (truncated geometric replay: arXiv
            2605.10236).
        lag_half_life: the same in weights versions (learner updates): an item with an older ``version``, a field that
            must be a plain int64, is drawn less often; of a sequence, that of its first step (FreshPER: arXiv
            2604.16918).
        remover: evicted above ``capacity``: ``"fifo"``, the oldest chunk; ``"proportional"``, an item with
            probability ∝ (|δ| + eps)^remover_alpha; ``"uniform"``, any item; ``"lifo"``, the newest; ``"max_heap"`` or
            ``"min_heap"``, that of the largest or smallest priority.
        remover_alpha: exponent of the proportional remover; −0.4 as in Ape-X DPG (Horgan et al. 2018, appendix D).
        hindsight: (transition) goals drawn for items when they are sampled (hindsight experience replay: Andrychowicz
            et al. 2017): ``"future"``, what was achieved at a random later step of the episode, ``"final"``, at its
            last, or ``"episode"``, at a random one. Of the steps that are still stored, each is as likely.
        hindsight_share: of a batch's items; 0.8 stands for four goals in hindsight for every one that was desired.
        hindsight_field: the field that says what was achieved.
        trim_every: evict only with every k-th sampled batch (Ape-X: 100), a soft capacity; between evictions at most a
            quarter more than ``capacity`` is kept.
        seed: of the draws; with appends and draws in one process, results repeat exactly.
        writers: the most writers at a time over all processes.
        streams: (streams mode) the most streams of all writers together; default 16 per writer.
        min_size: items before the first sample.
        samples_per_insert: the limiter's target ratio of sampled to inserted items; 0: no limit.
        insert_band: how far the ratio may drift, as a fraction of ``min_size · samples_per_insert``; at least one
            batch.
        directory: keep the memory in a file there instead of anonymous memory; deleted when its creator ends.
        check_memory: refuse a replay that could not be filled, given this machine's available memory, the limits of
            this process's cgroups and the space in ``directory``. The kernel commits memory only when it is written,
            so without this check a replay that is too large gets processes killed later.

    Raises:
        ConfigError, SpecError: an argument is out of range, a field is not supported, or memory is missing.
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        kind: Kind = "rows",
        stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        length: int = 0,
        stride: int | None = None,
        burn_in: int = 0,
        sampler: Sampler = "prioritized",
        max_times_sampled: int = 0,
        draws: Draws = "stratified",
        alpha: float = 0.6,
        eps: float = 1e-6,
        recency_half_life: float = 0.0,
        lag_half_life: float = 0.0,
        remover: Remover = "fifo",
        remover_alpha: float = -0.4,
        hindsight: Strategy = "none",
        hindsight_share: float = 0.8,
        hindsight_field: str = ACHIEVED_GOAL,
        trim_every: int = 1,
        seed: int = 0,
        writers: int = 8,
        streams: int | None = None,
        min_size: int = 0,
        samples_per_insert: float = 0.0,
        insert_band: float = 0.1,
        directory: str | os.PathLike[str] = "",
        check_memory: bool = True,
    ) -> None:
        arguments = dict(locals())
        options = checked({name: arguments[name] for name in OPTIONS})
        self._bind(ReplayCore.create(fields, options, os.fspath(directory), check_memory))

    def _bind(self, core: ReplayCore) -> None:
        self.core = core
        self._pool = BatchPool(core.native, core.layout)
        self._pool_process = _native.process_token()

    @staticmethod
    def _around(core: ReplayCore) -> Replay:
        replay = Replay.__new__(Replay)
        replay._bind(core)
        return replay

    @staticmethod
    def attach(handle: Handle) -> Replay:
        """The replay of another local process, by its ``handle``. ClosedError: it is gone."""
        return Replay._around(ReplayCore.attach(handle))

    @property
    def handle(self) -> Handle:
        """Names this replay to other local processes. Unlike a pickled replay, it attaches only when asked to."""
        return self.core.handle

    def __reduce__(self) -> tuple[Any, ...]:
        return (Replay._around, (self.core,))

    # --- workers

    def writer(self, streams: int | None = None, priority_fn: PriorityFn | None = None) -> Writer:
        """A writer for this process.

        Args:
            streams: (streams mode) B, the environments whose steps this writer appends; default 1.
            priority_fn: (streams mode) ``priority_fn(items) -> [N]`` raw |δ| of N complete items, called on many at a
                time; ``items`` maps names as in ``Batch.data``, plus ``next_<field>`` for every field. Default: the
                largest priority so far.
        """
        if self.core.layout.kind == "rows" and (streams is not None or priority_fn is not None):
            raise ConfigError("streams= and priority_fn= belong to streams mode; in rows mode pass extend(priorities=)")
        if priority_fn is not None and not callable(priority_fn):
            raise ConfigError(f"priority_fn={priority_fn!r} must be a function")
        if self.core.layout.kind != "rows":
            streams = checked_streams(self.core.options, streams)
        writer = Writer(self.core, streams, priority_fn)
        self.core.add_writer(writer)
        return writer

    # --- the owner

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
    ) -> Batch:
        """Draw ``batch_size`` items as the sampler says.

        The first process that samples owns the replay until it ends.

        Args:
            batch_size: B.
            beta: exponent of the importance weights (N·P)^−β; 1 corrects in full.
            normalize: divide the weights by the batch's largest (``"batch"``), by the largest that any item has
                (``"buffer"``, as in Baselines), or not (``"none"``).
            timeout: seconds to wait for items.
            outstanding: (fifo) count the items as lost if this process ends before it calls ``done``; otherwise only
                the last batch is lost, if the process is killed.
            n_step: (transition) rewards summed in the items of this batch, at most the replay's ``n_step``, which is
                the default.
            gamma: (transition) discount per step in this batch; default: the replay's.

        Raises:
            ConfigError: an argument is out of range, or not for this kind of replay.
            OwnershipError: another living process owns it.
            WaitTimeout: too few items, or held back by the limiter, for ``timeout`` seconds.
            ClosedError: the replay was closed.
        """
        if self._pool_process != _native.process_token():  # after a fork the pool's arrays belong to the parent
            self._pool, self._pool_process = BatchPool(self.core.native, self.core.layout), _native.process_token()
        if not isinstance(batch_size, int | np.integer) or isinstance(batch_size, bool) or batch_size < 1:
            raise ConfigError(f"batch_size={batch_size!r} must be an integer of at least 1")
        arrays = self._pool.take(batch_size)
        try:
            self.core.fill(arrays.outputs, batch_size, beta, normalize, timeout, outstanding, n_step, gamma)
            return arrays.batch()
        finally:
            self._pool.put(batch_size, arrays)

    def done(self, items: int) -> None:
        """Mark so many items of ``outstanding`` batches as used."""
        self.core.native.done(items, False)

    def update_priorities(self, keys: Any, priorities: Any) -> Updated:
        """Write new raw magnitudes |δ| for sampled items; ``eps`` and ``alpha`` are applied here.

        A key whose item was evicted is counted as stale and changes nothing.

        Raises:
            PriorityError: a value is NaN, infinite or negative (the row is named); nothing was written.
            OwnershipError: another living process owns the replay.
        """
        status, first, stale = self.core.update(keys, priorities)
        if status is _OK:
            return Updated(first, stale)
        if status is WriteStatus.irregular:
            keys = as_keys(keys)
            priorities = as_priorities(priorities, len(keys))
            status, first, stale = self.core.update(keys, priorities)
        if status is WriteStatus.bad_priority:
            raise bad_priority(first, priorities)
        return Updated(first, stale)

    def keys(self) -> NDArray[np.uint64]:
        """The keys of all items, chunk by chunk, oldest first (owner only)."""
        return stored_items.keys(self.core)

    def read(self, keys: Any) -> Batch:
        """Items by their keys, those that are still there, in the keys' order; weights are 1 (owner only).

        It is no draw: nothing is counted, and of a fifo replay nothing is used up.
        """
        return stored_items.read(self.core, keys, self._pool.allocate)

    def in_order(self, batch_size: int = 256) -> Iterator[Batch]:
        """What is stored now, chunk by chunk, oldest first, while writers go on (owner only).

        A batch holds at most ``batch_size`` items; what is removed before its turn is left out.
        """
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ConfigError(f"batch_size={batch_size!r} must be an integer of at least 1")
        keys = self.keys()
        batches = (self.read(keys[first : first + batch_size]) for first in range(0, len(keys), batch_size))
        return (batch for batch in batches if len(batch))

    def delete(self, keys: Any) -> Updated:
        """Remove items by their keys (owner only); ``applied`` of the answer counts those that were there.

        Raises:
            ConfigError: of a fifo replay, nothing is deleted: sample what shall go.
        """
        return stored_items.delete(self.core, keys)

    def change(self, keys: Any, values: Mapping[str, Any]) -> Updated:
        """Write new values of stored items (owner only); ``applied`` of the answer counts those that were there.

        Args:
            keys: of the items, ``[N]``; a key that stands there twice gets its last values.
            values: field name -> ``[N, ...]`` of the declared dtype. Rows mode: any field. Transitions: fields that
                are not windowed. Sequences and unrolls: fields that are kept per item.

        Raises:
            SpecError: a name, shape or dtype is wrong, or a field cannot be changed; nothing was written.
        """
        return stored_items.change(self.core, keys, values)

    def set_limiter(
        self,
        *,
        min_size: int | None = None,
        samples_per_insert: float | None = None,
        insert_band: float | None = None,
    ) -> None:
        """Change the limiter while the replay is in use (owner only). What is not given stays."""
        self.core.set_limiter(min_size=min_size, samples_per_insert=samples_per_insert, insert_band=insert_band)

    @property
    def allocator(self) -> Allocator:
        """Makes the arrays of batches: ``(shape, dtype) -> array``. Replace it to gather into pinned memory."""
        return self._pool.allocate

    @allocator.setter
    def allocator(self, allocate: Allocator) -> None:
        self._pool.clear()
        self._pool.allocate = allocate

    def release(self) -> None:
        """Stop owning the replay, so that another process may sample it. No effect where it is not owned."""
        self.core.native.disown()

    def serve(
        self, learners: int, batch_size: int, beta: float = 0.4, prefetch: int = 2, normalize: Normalize = "batch"
    ) -> BatchServer:
        """Sample for several learners of this host; see ``BatchServer``."""
        return BatchServer(self, learners, batch_size, beta, prefetch, normalize)

    def batch_source(self) -> LocalSource:
        return LocalSource(self.core)

    # --- every process

    def __len__(self) -> int:
        return len(self.core)

    @property
    def capacity(self) -> int:
        return self.core.capacity

    @property
    def owner_pid(self) -> int:
        """The living process that samples; 0: none; −1: one of another container."""
        return int(self.core.native.counters()["owner_pid"])

    def stats(self) -> dict[str, Any]:
        """Counters since the replay was created: size, capacity, inserted, sampled, evicted, the observed samples per
        insert, priority updates applied and stale, steps dropped by closing writers, items lost with owners (fifo),
        lanes, owners so far, bytes of memory."""
        size = len(self)  # first: it publishes and absorbs items, which the counters then include
        counters: dict[str, Any] = dict(self.core.native.counters())
        inserted = counters["inserted"]
        return {
            "size": size,
            "capacity": self.capacity,
            "observed_samples_per_insert": counters["sampled"] / inserted if inserted else 0.0,
            "bytes_per_item": counters["slot_bytes"] / counters["chunk"] * stride_of(self.core.options),
            **counters,
        }

    def save(self, path: str | os.PathLike[str], check: Callable[[], None] = lambda: None) -> None:
        """Write items, priorities, keys, limiter counters and RNG to one file, atomically, while workers append.

        Args:
            check: called after everything is written and before the file replaces ``path``; if it raises, the previous
                file stays.
        """
        if not self.core.native.owned or self.core.closed:
            self.core.own()
        self.core.publish_local()
        save(self.core, Path(path), check)

    def snapshots(self, folder: str | os.PathLike[str], longest: int = 20) -> SnapshotWriter:
        """Writes snapshots into ``folder``, each with what changed since the one before; ``load(folder)`` reads them.

        Args:
            longest: parts after a full one, before the next full one begins a new chain.
        """
        return SnapshotWriter(self.core, Path(folder), longest)

    @staticmethod
    def load(path: str | os.PathLike[str], check_memory: bool = True, *, writers: int = 1, streams: int = 1) -> Replay:
        """The replay that ``save`` wrote, or, of a folder, the newest that ``snapshots`` wrote there.

        Args:
            writers, streams: for which it is to have room, if the saved one had less.

        Raises:
            SnapshotError: a file is truncated, corrupt or of another version, or one of a chain is missing; or its
                capacity is too small for so many streams.
        """
        path = Path(path)
        return Replay._around((load_chain if path.is_dir() else load)(path, check_memory, Room(writers, streams)))

    def close(self) -> None:
        """In the process that created the replay: end it and wake every process that waits. Elsewhere: detach.

        Its memory, or its file in ``directory``, is given back when no process holds a replay or a writer of it.
        """
        try:
            self.core.close()
        finally:
            self._pool.clear()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Replay({self.core.layout.kind}, {len(self)} of {self.capacity} items)"
