"""One process's access to a replay: the native handle, its layout and options, and ownership."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from apexrl import _native
from apexrl._native import SampleStatus, WriteStatus
from apexrl.errors import ClosedError, ConfigError, OwnershipError, WaitTimeout
from apexrl.replay.deadline import deadline_after
from apexrl.replay.hindsight import hindsight_of
from apexrl.replay.layout import Layout
from apexrl.replay.options import OPTIONS, checked, consumes, gives_once, native_sizes
from apexrl.shared.available_memory import memory_limits, require_memory
from apexrl.shared.segment import process_name
from apexrl.spec import Field

if TYPE_CHECKING:
    from apexrl.replay.writer import Writer

_SIGNAL_SECONDS = 0.1  # longest native wait, so that Python can handle signals
_YIELD_SECONDS = 5.0  # how long to wait for a provisional owner to release the replay
_OK, _YIELDED = SampleStatus.ok, WriteStatus.yielded  # globals, for the fast paths
_NUMBERS = float, int, np.number
_NORMALIZE = {mode.name: mode for mode in _native.Normalize}

Normalize = Literal["batch", "buffer", "none"]
Handle = tuple[tuple[int, int, bytes, str], int]
"""Names a replay to other processes of this host: the segment's state, and the token of the process that created it."""

LAG_FIELD = "version"
"""The field with the version of the weights that chose a step's action, which ``lag_half_life`` reads."""

# The writers of all handles that this process has of a replay, by the uuid of its memory.
_WRITERS: weakref.WeakValueDictionary[bytes, weakref.WeakSet[Writer]] = weakref.WeakValueDictionary()


class Closable(Protocol):
    def close(self) -> None: ...


class ReplayCore:
    """A replay as this process holds it. ``Replay``, writers, snapshots, servers and shards work through it.

    Pickling it to another local process attaches to the same memory there.

    Attributes:
        native: the native replay.
        layout: of its items.
        options: as checked by ``options.checked``.
        creator: token of the process that created the replay; closing it there ends it for everybody.
        closed: this handle was closed.
        writers: made through this handle.
        servers: closed together with this handle.
        capacity, fifo: of the options.
        consumes: an item goes when it is sampled.
        gives_once: a batch has each of its items once.
    """

    def __init__(self, native: _native.Replay, layout: Layout, options: dict[str, Any], creator: int) -> None:
        self.native = native
        self.layout = layout
        self.options = options
        self.creator = creator
        self.closed = False
        self.writers: weakref.WeakSet[Writer] = weakref.WeakSet()
        self.servers: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.capacity: int = options["capacity"]
        self.fifo: bool = options["sampler"] == "fifo"
        self.consumes = consumes(options)
        self.gives_once = gives_once(options)
        self._process_writers = _WRITERS.setdefault(native.segment().uuid, weakref.WeakSet())
        segment = native.segment()
        if not segment.in_memory and native.counters()["bytes_when_full"] > _available_memory():
            segment.read_by_page()
        self._owner_checked = (0.0, 0, False)  # monotonic time, by which process, whether another process owns it

    @staticmethod
    def create(fields: Mapping[str, Field], options: dict[str, Any], directory: str, check_memory: bool) -> ReplayCore:
        """Allocate a new replay. ``options`` must be checked."""
        steps = options["burn_in"] + options["length"]
        layout = Layout(fields, options["kind"], options["stack"], steps, hindsight_of(fields, options))
        sizes = native_sizes(options) | {"version_column": _version_column(layout, options)}
        try:
            native = _native.Replay.create(
                fields=layout.native(), sizes=sizes, json=layout.to_json(options), directory=directory
            )
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"cannot create this replay: {error}") from None
        if check_memory:
            require_memory(
                native.segment(),
                native.counters()["bytes_when_full"],
                f"this replay of {options['capacity']:,} items",
                "make its capacity smaller (capacity=, --capacity), or skip this check with check_memory=False "
                "(--no-check-memory)",
            )
        else:
            native.segment().promise(0)
        return ReplayCore(native, layout, options, _native.process_token())

    @staticmethod
    def attach(handle: Handle) -> ReplayCore:
        """Attach to a replay of another process. ClosedError: it is gone."""
        state, creator = handle
        try:
            layout, options = Layout.from_json(_native.Replay.describe(state))
            native = _native.Replay.attach(state, layout.native())
        except RuntimeError as error:
            raise ClosedError(str(error)) from None
        return ReplayCore(native, layout, options, creator)

    @property
    def handle(self) -> Handle:
        return self.native.state(), self.creator

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReplayCore.attach, (self.handle,))

    def __len__(self) -> int:
        self.publish_local()
        return int(self.native.size())

    def __bool__(self) -> bool:
        return True

    # --- ownership

    def own(self) -> None:
        """Become the owner. OwnershipError: another living process is; ClosedError: the replay was closed."""
        if self.closed or self.native.closed:
            raise ClosedError("this replay was closed")
        holder = self.native.own()
        deadline = time.monotonic() + _YIELD_SECONDS
        while holder and self.native.counters()["provisional"] and time.monotonic() < deadline:
            time.sleep(0.002)  # the creator owns it only to evict items, and yields to a sampler
            holder = self.native.own()
        if holder:
            raise OwnershipError(
                f"{process_name(holder)} owns this replay, and only the owner may sample it. Sample in that process, "
                "wait until it has ended, or let it serve batches with serve()"
            )

    def own_to_evict(self) -> bool:
        """Own a full replay provisionally if this process created it and nobody samples. True: it does so now."""
        return (
            self.creator == _native.process_token()
            and not self.closed
            and not self.native.owned
            and not self.fifo
            and self.native.counters()["samples_per_insert"] == 0
            and self.native.own(provisional=True) == 0
        )

    @property
    def owned_elsewhere(self) -> bool:
        """Whether another process owns the replay. The answer is at most a second old."""
        now, process = time.monotonic(), _native.process_token()
        if now - self._owner_checked[0] > 1.0 or self._owner_checked[1] != process:
            self._owner_checked = (now, process, self.native.owned_elsewhere)
        return self._owner_checked[2]

    # --- writers of this process

    def add_writer(self, writer: Writer) -> None:
        self.writers.add(writer)
        self._process_writers.add(writer)

    def drop_writer(self, writer: Writer) -> None:
        """Ask a writer that was closed for nothing any more."""
        self.writers.discard(writer)
        self._process_writers.discard(writer)

    def publish_local(self) -> None:
        """Publish what was appended in this process through any handle, so that it can be sampled at once."""
        if not self._process_writers:
            return
        while True:
            try:
                writers = list(self._process_writers)
                break
            except RuntimeError:  # another thread added a writer during the iteration
                continue
        for writer in writers:
            writer.publish_for_sampler()

    # --- the owner

    def fill(
        self,
        outputs: _native.Outputs,
        batch_size: int,
        beta: float,
        normalize: Normalize,
        timeout: float,
        outstanding: bool = False,
        n_step: int | None = None,
        gamma: float | None = None,
    ) -> None:
        """Sample into existing arrays. Arguments and errors are those of ``Replay.sample``."""
        if n_step is not None or gamma is not None:
            self._check_horizon(n_step, gamma)
            outputs.set_horizon(n_step, gamma)
            try:
                self.fill(outputs, batch_size, beta, normalize, timeout, outstanding)
            finally:
                outputs.set_horizon(None, None)
            return
        native = self.native
        if not native.owned or self.closed:
            self.own()
        mode = self.check_batch(batch_size, beta, normalize)
        deadline = deadline_after(timeout)
        self.publish_local()
        status = native.sample(outputs, beta, mode, outstanding)
        if status is _OK:
            return
        while status is not _OK:
            if status is SampleStatus.closed:
                raise ClosedError("this replay was closed")
            left = deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"{self._why_no_sample(status, batch_size)} (waited {timeout} s)")
            if status is SampleStatus.yielded:
                self.own()
            else:
                native.wait(min(left, _SIGNAL_SECONDS))
            if self.closed:
                raise ClosedError("this replay was closed")
            status = native.sample(outputs, beta, mode, outstanding)

    def check_batch(self, batch_size: int, beta: float, normalize: Normalize) -> _native.Normalize:
        """ConfigError: this replay has no such batches."""
        mode = _NORMALIZE.get(normalize) if isinstance(normalize, str) else None
        if not (isinstance(beta, _NUMBERS) and 0.0 <= beta <= 100.0):
            raise ConfigError(f"beta={beta!r} must be a number between 0 and 100 (1: full correction)")
        if mode is None:
            raise ConfigError(f"normalize={normalize!r} must be one of 'batch', 'buffer', 'none'")
        if self.gives_once and batch_size > self.capacity:
            raise ConfigError(
                f"batch_size={batch_size} is more than the {self.capacity} items that this "
                f"{self.options['sampler']} replay holds"
            )
        return mode

    def _check_horizon(self, n_step: int | None, gamma: float | None) -> None:
        """ConfigError: this replay has no such transitions."""
        options = self.options
        if options["kind"] != "transition":
            raise ConfigError(f"n_step= and gamma= of a batch belong to kind='transition', not {options['kind']!r}")
        if n_step is not None and not (_is_integer(n_step) and 1 <= n_step <= options["n_step"]):
            raise ConfigError(f"n_step={n_step!r} must be an integer from 1 to {options['n_step']}, the replay's own")
        if gamma is not None and not (isinstance(gamma, _NUMBERS) and 0.0 <= gamma <= 1.0):
            raise ConfigError(f"gamma={gamma!r} must be a number between 0 and 1")

    def update(self, keys: Any, priorities: Any) -> tuple[WriteStatus, int, int]:
        """Write priorities. Answers (status, items written or the bad row, stale keys)."""
        while True:
            if not self.native.owned or self.closed:
                self.own()
            try:
                answer = self.native.update(keys, priorities)
            except TypeError:
                return WriteStatus.irregular, 0, 0
            if answer[0] is not _YIELDED:
                return answer

    def set_limiter(self, **given: float | None) -> None:
        """See ``Replay.set_limiter``."""
        changed = {name: value for name, value in given.items() if value is not None}
        while True:
            if not self.native.owned or self.closed:
                self.own()
            counters = self.native.counters()
            current = {name: self.options[name] for name in OPTIONS} | {name: counters[name] for name in given}
            options = checked(current | changed)
            if self.native.set_limiter(*(options[name] for name in given)):
                return

    def close(self) -> None:
        """See ``Replay.close``."""
        if self.closed:
            return
        self.closed = True
        try:
            for writer in list(self.writers):
                writer.stop_waiting()
            if self.creator == _native.process_token():
                self.native.shut()
            for dependent in [*self.writers, *self.servers]:
                dependent.close()
        finally:
            self.native.disown()

    def _why_no_sample(self, status: SampleStatus, batch_size: int) -> str:
        counters = self.native.counters()
        if status is SampleStatus.too_few:
            needed = max(1, counters["min_size"], batch_size if self.gives_once else 0)
            return f"the replay holds {len(self)} items, fewer than the {needed} needed to sample"
        if status is SampleStatus.all_zero:
            return "every priority in the replay is zero, and items of priority zero are never sampled: use eps > 0"
        return (
            f"the limiter waits for inserts: {counters['sampled']} sampled and {counters['inserted']} inserted, "
            f"at {counters['samples_per_insert']} samples per insert"
        )


def _available_memory() -> float:
    return min((limit.nbytes for limit in memory_limits()), default=math.inf)


def _version_column(layout: Layout, options: dict[str, Any]) -> int:
    """The place of the field that ``lag_half_life`` reads, from 1 on; 0: it is not used."""
    if not options["lag_half_life"]:
        return 0
    for place, column in enumerate(layout.columns, 1):
        field = column.field
        if column.name == LAG_FIELD and (field.shape, field.dtype, field.per_item) == ((), "int64", False):
            return place
    raise ConfigError(f"lag_half_life={options['lag_half_life']:g} needs the field {LAG_FIELD!r}: Field((), 'int64')")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
