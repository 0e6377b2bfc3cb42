"""The replay: made once, held by any number of processes, sampled by one."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from apexrl import _native
from apexrl.errors import ClosedError, ConfigError, OwnershipError, PriorityError, SpecError, WaitTimeout
from apexrl.replay.batch import Allocator, Batch, BatchPool, Updated
from apexrl.replay.layout import Kind, Layout
from apexrl.replay.options import OPTIONS, Draws, Remover, Sampler, checked, checked_streams, native_sizes, stride_of
from apexrl.replay.writer import BAD_PRIORITY, IRREGULAR, YIELDED, PriorityFn, Writer, as_priorities
from apexrl.shared.available_memory import require
from apexrl.shared.segment import process_name
from apexrl.spec import Field

if TYPE_CHECKING:
    from apexrl.replay.served.batch_server import BatchServer

_SLICE = 0.1  # seconds between looks at signals while waiting
_YIELD_SECONDS = 5.0  # for a provisional owner to let go
_TOO_FEW, _LIMITED, _ALL_ZERO, _CLOSED, _YIELDED = 1, 2, 3, 4, 5  # native/limiter.h SampleStatus
_NORMALIZE = {"batch": 0, "buffer": 1, "none": 2}  # native/owner.h Normalize

Normalize = Literal["batch", "buffer", "none"]

# Of each replay, by its memory's uuid: the writers of all handles that this process has of it.
_WRITERS: weakref.WeakValueDictionary[bytes, weakref.WeakSet[Writer]] = weakref.WeakValueDictionary()


def _writers_of(uuid: bytes) -> weakref.WeakSet[Writer]:
    return _WRITERS.setdefault(uuid, weakref.WeakSet())


class Replay:
    """A prioritized replay in shared memory.

    Any process that holds it may append through ``writer()``; the first that samples owns it until it ends. Handles
    may be pickled to other local processes, or inherited by a fork.

    Args:
        capacity: items kept; the oldest chunk goes first. Once full, capacity − chunk < len ≤ capacity.
        fields: name -> Field. Rows mode: a whole transition. Streams mode: one step; ``reward``, ``terminated`` and
            ``truncated`` are built in.
        kind: ``"rows"`` (default): ``writer.extend`` takes finished items. The other kinds are streams:
            ``writer.append`` takes steps, and an item is a window of them.
            ``"transition"``: a step, and what followed n steps later.
            ``"sequence"``: ``length`` steps of one episode, from every ``stride``-th step on, shorter at its end.
            ``"unroll"``: ``length`` steps back to back, across episodes.
        stack: (streams) frames of a windowed field in an item; 1 adds no axis.
        n_step: (transition) rewards summed before the bootstrap observation; fewer where the episode ends.
        gamma: discount per step.
        length: (sequence, unroll) steps of an item.
        stride: (sequence) steps between the starts of items; default ``length``.
        burn_in: (sequence, unroll) steps before an item's own that come with it, to warm a recurrent state.
        sampler: ``"prioritized"``, ``"uniform"``, or ``"fifo"``: every item at most once, oldest first; then writers
            wait while ``capacity`` items do.
        draws: ``"stratified"`` (one from each equal slice of the total: less variance) or ``"independent"``.
        alpha: priority exponent; 0 samples uniformly.
        eps: added to |δ| before the exponent.
        remover: what goes when there are more than ``capacity`` items: ``"fifo"``, the oldest chunk, or
            ``"proportional"``, an item with probability ∝ (|δ| + eps)^remover_alpha.
        remover_alpha: that exponent; −0.4 as in Ape-X DPG (Horgan et al. 2018, appendix D).
        trim_every: remove only with every k-th sampled batch (Ape-X: 100), a soft capacity; at most a quarter more
            than ``capacity`` is kept in between.
        seed: of the draws; one process's appends and draws repeat exactly.
        writers: lanes, the most writers at a time over all processes.
        streams: (streams mode) the most streams of all writers together; default 16 per writer.
        min_size: items before the first sample.
        samples_per_insert: sampled items per inserted one that the limiter keeps to; 0: no coupling.
        insert_band: how far the two may drift apart, as a fraction of ``min_size · samples_per_insert``; at least one
            batch.
        directory: keep the memory in a file there instead of an anonymous one; unlinked when its creator ends.
        check_memory: refuse a replay that could not be filled: by what is available on this machine, by the limits of
            this process's cgroups, and by the room in ``directory``. Slots that were never used take no memory, so
            without this check it would be missed only later, and processes be killed for it.

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
        draws: Draws = "stratified",
        alpha: float = 0.6,
        eps: float = 1e-6,
        remover: Remover = "fifo",
        remover_alpha: float = -0.4,
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
        layout = Layout(fields, kind, options["stack"], options["burn_in"] + options["length"])
        try:
            native = _native.Replay.create(
                fields=layout.native(),
                sizes=native_sizes(options),
                json=layout.to_json(options),
                directory=os.fspath(directory),
            )
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"cannot make this replay: {error}") from None
        if check_memory:
            require(
                native.segment(),
                native.counters()["bytes_when_full"],
                f"this replay of {options['capacity']:,} items",
                "make its capacity smaller (capacity=, --capacity), or go on all the same with check_memory=False "
                "(--no-check-memory)",
            )
        else:
            native.segment().promise(0)
        self._bind(native, layout, options, creator=_native.process_token())

    def _bind(self, native: _native.Replay, layout: Layout, options: dict[str, Any], creator: int) -> None:
        self._native = native
        self._layout = layout
        self._options = options
        self._creator = creator
        self._pool = BatchPool(native, layout)
        self._pool_process = _native.process_token()
        self._writers: weakref.WeakSet[Writer] = weakref.WeakSet()
        self._writers_here = _writers_of(native.segment().uuid)
        self._servers: weakref.WeakSet[BatchServer] = weakref.WeakSet()
        self._closed = False
        self._owner_seen = (0.0, 0, False)  # when, by which process, whether it is another

    @staticmethod
    def _attach(state: tuple[int, int, bytes, str], creator: int) -> Replay:
        try:
            layout, options = Layout.from_json(_native.Replay.describe(state))
            native = _native.Replay.attach(state, layout.native())
        except RuntimeError as error:
            raise ClosedError(str(error)) from None
        replay = Replay.__new__(Replay)
        replay._bind(native, layout, options, creator)
        return replay

    def __reduce__(self) -> tuple[Any, ...]:
        return (Replay._attach, (self._native.state(), self._creator))

    # --- workers

    def writer(self, streams: int | None = None, priority_fn: PriorityFn | None = None) -> Writer:
        """A writer for this process (it leases its lane at first use).

        Args:
            streams: (streams) B, the environments that this writer appends steps of; default 1.
            priority_fn: (streams mode) ``priority_fn(items) -> [N]`` raw |δ| of N complete items, called on many at a
                time; ``items`` maps names as in ``Batch.data``, plus ``next_<field>`` for every field. Default: the
                largest priority so far.
        """
        if self._layout.kind == "rows" and (streams is not None or priority_fn is not None):
            raise ConfigError("streams= and priority_fn= belong to streams mode; extend() takes priorities=")
        if priority_fn is not None and not callable(priority_fn):
            raise ConfigError(f"priority_fn={priority_fn!r} is no function")
        if self._layout.kind != "rows":
            streams = checked_streams(self._options, streams)
        writer = Writer(self, streams, priority_fn)
        self._writers.add(writer)
        self._writers_here.add(writer)
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
    ) -> Batch:
        """Draw ``batch_size`` items as the sampler says.

        The first process that samples owns the replay until it ends.

        Args:
            batch_size: B.
            beta: exponent of the importance weights (N·P)^−β; 1 corrects in full.
            normalize: divide the weights by the batch's largest (``"batch"``), by the largest that any item has
                (``"buffer"``, as in Baselines), or not (``"none"``).
            timeout: seconds to wait for items.
            outstanding: (fifo) the items count as lost if this process ends before ``done``; else, those of the last
                batch alone do, if it is killed.

        Raises:
            OwnershipError: another living process owns it.
            WaitTimeout: too few items, or held back by the limiter, for ``timeout`` seconds.
            ClosedError: the replay was closed.
        """
        if self._pool_process != _native.process_token():  # inherited by fork: those arrays are of the parent's batches
            self._pool, self._pool_process = BatchPool(self._native, self._layout), _native.process_token()
        if not isinstance(batch_size, int | np.integer) or isinstance(batch_size, bool) or batch_size < 1:
            raise ConfigError(f"batch_size={batch_size!r} must be an integer of at least 1")
        arrays = self._pool.take(batch_size)
        try:
            self._fill(arrays.outputs, batch_size, beta, normalize, timeout, outstanding)
            return arrays.batch()
        finally:
            self._pool.put(batch_size, arrays)

    def done(self, items: int) -> None:
        """So many items of ``outstanding`` batches have been used."""
        self._native.done(items, False)

    def _fill(
        self,
        outputs: _native.Outputs,
        batch_size: int,
        beta: float,
        normalize: Normalize,
        timeout: float,
        outstanding: bool = False,
    ) -> None:
        """Sample into arrays that stand ready."""
        native = self._native
        if not native.owned or self._closed:
            self._own()
        how = _NORMALIZE.get(normalize) if isinstance(normalize, str) else None
        if not 0.0 <= beta <= 100.0:
            raise ConfigError(f"beta={beta} must be a number from 0 on (1: full correction)")
        if how is None:
            raise ConfigError(f"normalize={normalize!r} must be one of 'batch', 'buffer', 'none'")
        if self._options["sampler"] == "fifo" and batch_size > self.capacity:
            raise ConfigError(
                f"batch_size={batch_size} is more than the {self.capacity} items that this fifo replay holds"
            )
        self._publish_here()
        status = native.sample(outputs, beta, how, outstanding)
        if not status:
            return
        deadline = time.monotonic() + timeout
        while status:
            if status == _CLOSED:
                raise ClosedError("this replay was closed")
            left = deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"{self._why_no_sample(status, batch_size)} (waited {timeout} s)")
            if status == _YIELDED:
                self._own()
            else:
                native.wait(min(left, _SLICE))
            if self._closed:
                raise ClosedError("this replay was closed")
            status = native.sample(outputs, beta, how, outstanding)

    def update_priorities(self, keys: Any, priorities: Any) -> Updated:
        """Write new raw magnitudes |δ| for sampled items; ``eps`` and ``alpha`` are applied here.

        A key whose item has gone is counted as stale and changes nothing.

        Raises:
            PriorityError: a value is NaN, infinite or negative (the row is named); nothing was written.
            OwnershipError: another living process owns the replay.
        """
        status, first, stale = self._update(keys, priorities)
        if status == IRREGULAR:
            keys = np.ascontiguousarray(keys)
            if keys.ndim != 1 or keys.dtype != np.uint64:
                raise SpecError(f"keys must be the uint64 [B] of a batch, got {keys.dtype} {list(keys.shape)}")
            priorities = as_priorities(priorities, len(keys))
            status, first, stale = self._update(keys, priorities)
        if status == BAD_PRIORITY:
            value = np.asarray(priorities)[first]
            raise PriorityError(
                f"priority of row {first} is {value}: priorities are finite magnitudes |δ| from 0 to 1e150"
            )
        return Updated(first, stale)

    def _update(self, keys: Any, priorities: Any) -> tuple[int, int, int]:
        while True:
            if not self._native.owned or self._closed:
                self._own()
            try:
                answer = self._native.update(keys, priorities)
            except TypeError:
                return IRREGULAR, 0, 0
            if answer[0] != YIELDED:
                return answer

    def set_limiter(
        self,
        *,
        min_size: int | None = None,
        samples_per_insert: float | None = None,
        insert_band: float | None = None,
    ) -> None:
        """Change the limiter while the replay is in use (owner only). What is not given stays."""
        changed = {
            name: value
            for name, value in (
                ("min_size", min_size),
                ("samples_per_insert", samples_per_insert),
                ("insert_band", insert_band),
            )
            if value is not None
        }
        while True:
            if not self._native.owned or self._closed:
                self._own()
            counters = self._native.counters()
            now = {name: counters[name] for name in ("min_size", "samples_per_insert", "insert_band")}
            options = checked({**{name: self._options[name] for name in OPTIONS}, **now, **changed})
            if self._native.set_limiter(options["min_size"], options["samples_per_insert"], options["insert_band"]):
                return

    @property
    def allocator(self) -> Allocator:
        """Makes the arrays of batches: ``(shape, dtype) -> array``. Replace it to gather into pinned memory."""
        return self._pool.allocate

    @allocator.setter
    def allocator(self, allocate: Allocator) -> None:
        self._pool.clear()
        self._pool.allocate = allocate

    def release(self) -> None:
        """Stop owning the replay, so that another process may sample it; no effect where it is not owned."""
        self._native.disown()

    def serve(
        self, learners: int, batch_size: int, beta: float = 0.4, prefetch: int = 2, normalize: Normalize = "batch"
    ) -> BatchServer:
        """Sample for several learners of this host; see ``BatchServer``."""
        from apexrl.replay.served.batch_server import BatchServer

        if normalize not in _NORMALIZE:
            raise ConfigError(f"normalize={normalize!r} must be one of 'batch', 'buffer', 'none'")
        return BatchServer(self, learners, batch_size, beta, prefetch, normalize)

    # --- everybody

    def __len__(self) -> int:
        self._publish_here()
        return int(self._native.size())

    @property
    def capacity(self) -> int:
        return int(self._options["capacity"])

    @property
    def owner_pid(self) -> int:
        """The living process that samples; 0: none; −1: one of another container."""
        return int(self._native.counters()["owner_pid"])

    @property
    def _owned_elsewhere(self) -> bool:
        """Whether another process samples, as of at most a second ago."""
        now, here = time.monotonic(), _native.process_token()
        if now - self._owner_seen[0] > 1.0 or self._owner_seen[1] != here:
            self._owner_seen = (now, here, self._native.owned_elsewhere)
        return self._owner_seen[2]

    def stats(self) -> dict[str, Any]:
        """Counters of the replay's life: size, capacity, inserted, sampled, evicted, the observed samples per insert,
        priority updates applied and stale, steps dropped by closing writers, items lost with owners (fifo), lanes,
        owners so far, bytes of memory."""
        size = len(self)  # first: it takes in what the counters then tell
        counters: dict[str, Any] = dict(self._native.counters())
        inserted = counters["inserted"]
        return {
            "size": size,
            "capacity": self.capacity,
            "observed_samples_per_insert": counters["sampled"] / inserted if inserted else 0.0,
            "bytes_per_item": counters["slot_bytes"] / counters["chunk"] * stride_of(self._options),
            **counters,
        }

    def save(self, path: str | os.PathLike[str], check: Callable[[], None] = lambda: None) -> None:
        """Write items, priorities, keys, limiter counters and RNG to one file, atomically, while workers go on.

        Args:
            check: called when all is written and before it takes the place of ``path``; what it raises prevents that.
        """
        from apexrl.replay.snapshot import save

        if not self._native.owned or self._closed:
            self._own()
        self._publish_here()
        save(self, Path(path), check)

    @staticmethod
    def load(path: str | os.PathLike[str], check_memory: bool = True) -> Replay:
        """A replay as it was saved. SnapshotError when the file is truncated, corrupt or of another version."""
        from apexrl.replay.snapshot import load

        return load(Path(path), check_memory)

    def close(self) -> None:
        """In the process that made the replay: end it for everybody and wake all who wait. Elsewhere: let go of it."""
        if self._closed:
            return
        self._closed = True
        try:
            for writer in list(self._writers):
                writer._closed = True
            if self._creator == _native.process_token():
                self._native.shut()
            for writer in list(self._writers):
                writer.close()
            for server in list(self._servers):
                server.close()
        finally:
            self._native.disown()
            self._pool.clear()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Replay({self._layout.kind}, {len(self)} of {self.capacity} items)"

    # --- inside

    def _own(self) -> None:
        if self._closed or self._native.closed:
            raise ClosedError("this replay was closed")
        holder = self._native.own()
        deadline = time.monotonic() + _YIELD_SECONDS
        while holder and self._native.counters()["provisional"] and time.monotonic() < deadline:
            time.sleep(0.002)  # its maker only makes room: it lets a sampler in
            holder = self._native.own()
        if holder:
            raise OwnershipError(
                f"{process_name(holder)} owns this replay: it samples, and only one process may. Sample there, wait "
                "until it has ended, or serve batches to others with serve()"
            )

    def _publish_here(self) -> None:
        """What was appended in this process, through whatever handle, can be sampled at once in it."""
        for writer in self._all_writers_here():
            writer._publish_for_sampler()

    def _all_writers_here(self) -> list[Writer]:
        while True:
            try:
                return list(self._writers_here)
            except RuntimeError:  # another thread makes one at this moment
                continue

    def _own_if_alone(self) -> bool:
        """The replay is full: its maker makes room by owning it, if nobody does. True when it came to own it now."""
        return (
            self._creator == _native.process_token()
            and not self._closed
            and not self._native.owned
            and self._options["sampler"] != "fifo"
            and self._native.counters()["samples_per_insert"] == 0
            and self._native.own(provisional=True) == 0
        )

    def _why_no_sample(self, status: int, batch_size: int) -> str:
        counters = self._native.counters()
        if status == _TOO_FEW:
            needed = max(1, counters["min_size"], batch_size if self._options["sampler"] == "fifo" else 0)
            return f"the replay holds {len(self)} items, fewer than the {needed} needed to sample"
        if status == _ALL_ZERO:
            return "every priority in the replay is zero: with eps=0 such items are never sampled"
        return (
            f"the limiter waits for inserts: {counters['sampled']} sampled and {counters['inserted']} inserted, "
            f"at {counters['samples_per_insert']} samples per insert"
        )

    def _check(self) -> float:
        """For tests: the worst error of any sum of the tree; 1e300 when the counts disagree."""
        return float(self._native.check())
