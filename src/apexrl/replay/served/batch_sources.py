"""Where a server gets its batches: a replay of this process, or a sharded one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from apexrl import _native
from apexrl.replay.batch import ArraySet, Updated
from apexrl.replay.core import Closable, Normalize, ReplayCore
from apexrl.replay.layout import Layout


class BatchSource(Protocol):
    """What a server needs to sample."""

    layout: Layout
    native: _native.Replay | None
    """Gathers directly into the server's arrays; None: the items are not in this host's memory."""

    def check_batch(self, batch_size: int, beta: float, normalize: Normalize) -> object:
        """ConfigError: there are no such batches."""

    def closes(self, server: Closable) -> None:
        """Close ``server`` together with the replay."""

    def begin(self, out: int) -> None:
        """This process serves from now on. Learners hold ``out`` items of a fifo replay."""

    def fill(self, arrays: ArraySet, size: int, beta: float, normalize: Normalize) -> None:
        """Sample a batch into ``arrays``. WaitTimeout: there is none at the moment."""

    def done(self, items: int, lost: bool) -> None:
        """Learners no longer hold so many items of a fifo replay."""

    def wait(self, timeout: float) -> None:
        """Wait until there may be a batch, at most ``timeout`` seconds."""


class Servable(Protocol):
    """A replay that batches can be served from."""

    @property
    def capacity(self) -> int: ...
    def batch_source(self) -> BatchSource: ...
    def update_priorities(self, keys: Any, priorities: Any) -> Updated: ...
    def save(self, path: str | os.PathLike[str], check: Callable[[], None] = ...) -> None: ...


class LocalSource:
    """Batches of a replay in this host's memory."""

    def __init__(self, core: ReplayCore) -> None:
        self._core = core
        self.layout = core.layout
        self.native: _native.Replay | None = core.native
        self._fifo = core.consumes  # items go when they are sampled
        self.check_batch = core.check_batch

    def closes(self, server: Closable) -> None:
        self._core.servers.add(server)

    def begin(self, out: int) -> None:
        self._core.own()
        # Batches of a fifo replay that outlived an earlier server were counted as lost when it died.
        self._core.native.adopt(out if self._fifo else 0)

    def fill(self, arrays: ArraySet, size: int, beta: float, normalize: Normalize) -> None:
        self._core.fill(arrays.outputs, size, beta, normalize, timeout=0.0, outstanding=True)

    def done(self, items: int, lost: bool) -> None:
        if self._fifo:
            self._core.native.done(items, lost)

    def wait(self, timeout: float) -> None:
        self._core.native.wait(timeout)


class Sharded(Protocol):
    """A replay of several shards."""

    def check_batch(self, batch_size: int, beta: float, normalize: Normalize) -> None: ...
    def fill(self, arrays: ArraySet, batch_size: int, beta: float, normalize: Normalize, timeout: float) -> None: ...
    def wait(self, timeout: float) -> None: ...


class ShardedSource:
    """Batches of a sharded replay, which is not fifo."""

    native: _native.Replay | None = None

    def __init__(self, replay: Sharded, layout: Layout) -> None:
        self._replay = replay
        self.layout = layout
        self.check_batch = replay.check_batch
        self.wait = replay.wait

    def closes(self, server: Closable) -> None: ...  # a sharded replay is not closed

    def begin(self, out: int) -> None: ...  # shards answer any sampler

    def fill(self, arrays: ArraySet, size: int, beta: float, normalize: Normalize) -> None:
        self._replay.fill(arrays, size, beta, normalize, timeout=0.0)

    def done(self, items: int, lost: bool) -> None: ...  # only fifo replays count the items that learners hold
