"""Where a server's batches come from (``batch_server``): a replay that it owns, or one that is spread over shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from apexrl import _native
from apexrl.replay.batch import ArraySet
from apexrl.replay.layout import Layout
from apexrl.replay.replay import Replay

if TYPE_CHECKING:
    from apexrl.replay.replay import Normalize
    from apexrl.replay.served.batch_server import BatchServer
    from apexrl.replay.sharded.batch_bundles import Loads
    from apexrl.replay.sharded.sharded_replay import ShardedReplay


class Source(Protocol):
    """What a server asks of a replay."""

    layout: Layout
    native: _native.Replay | None
    """To gather into a server's arrays, where the items are in this host's memory."""
    fifo: bool

    def begin(self, out: int) -> None:
        """This process serves from now on; ``out`` items of a fifo replay are with learners."""
        ...

    def fill(self, arrays: ArraySet, size: int, beta: float, normalize: Normalize) -> None:
        """Sample a batch into ``arrays``. WaitTimeout: it cannot be had just now."""
        ...

    def done(self, items: int, lost: bool) -> None:
        """So many items of a fifo replay are with learners no more."""
        ...

    def wait(self, timeout: float) -> None:
        """… until a batch could be had, at most ``timeout`` seconds."""
        ...


class Owned:
    """A replay in this host's memory (``Source``)."""

    def __init__(self, replay: Replay, server: BatchServer) -> None:
        replay._servers.add(server)  # which ends with it
        self._replay = replay
        self.layout = replay._layout
        self.native: _native.Replay | None = replay._native
        self.fifo = replay._options["sampler"] == "fifo"

    def begin(self, out: int) -> None:
        self._replay._own()
        # Batches of a fifo replay that outlived a predecessor were counted as lost with it.
        self._replay._native.adopt(out if self.fifo else 0)

    def fill(self, arrays: ArraySet, size: int, beta: float, normalize: Normalize) -> None:
        self._replay._fill(arrays.outputs, size, beta, normalize, timeout=0.0, outstanding=True)

    def done(self, items: int, lost: bool) -> None:
        if self.fifo:
            self._replay._native.done(items, lost)

    def wait(self, timeout: float) -> None:
        self._replay._native.wait(timeout)


class Spread:
    """A replay of several shards, which is no queue (``Source``)."""

    fifo = False
    native: _native.Replay | None = None

    def __init__(self, replay: ShardedReplay | Loads) -> None:
        assert replay.layout is not None  # or it would not be served
        self._replay = replay
        self.layout = replay.layout

    def begin(self, out: int) -> None: ...  # shards answer whoever asks

    def fill(self, arrays: ArraySet, size: int, beta: float, normalize: Normalize) -> None:
        self._replay.fill(arrays, size, beta, normalize, timeout=0.0)

    def done(self, items: int, lost: bool) -> None: ...

    def wait(self, timeout: float) -> None:
        self._replay.wait(timeout)


def source_of(replay: Replay | ShardedReplay | Loads, server: BatchServer) -> Source:
    """``replay`` as what ``server`` asks for."""
    return Owned(replay, server) if isinstance(replay, Replay) else Spread(replay)
