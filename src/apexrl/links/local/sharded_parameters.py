"""Parameters divided among several parameter servers: their memory, and the boards that they publish on.

A slice's vectors (parameters, target, optimizer state) are in shared memory and outlive their server: its successor
continues with them. Other processes read the parameters from boards, as consistent slices; different slices may have
different versions, as in DistBelief (Dean et al. 2012) and Gorila (Nair et al. 2015).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl._native import Segment
from apexrl.errors import SpecError
from apexrl.links.local.parameter_slices import ONLINE, TARGET, Floats, ParameterSlices
from apexrl.shared.segment import attach_board, new_board
from apexrl.spec import Array

_LINE = 64  # bytes of a cache line, on which every vector begins
_FILLED, _BEGUN, _DONE, _ENDED, _VERSION, _LAG = 0, 4, 8, 12, 16, 24  # words in a slice's first line
_ATTEMPTS = 3  # to copy a slice's vectors between two updates
_LOOK_SECONDS = 0.01  # between looks whether all slices are newer


class ShardedParameters:
    """All slices. Picklable to local processes. As a ``protocols.WeightsReader`` it gives whole weights, with the
    version of the slice that is furthest behind.

    Args:
        shards: the division into slices.
        shared: between processes, or between roles that take turns in one; both use the same memory.
    """

    def __init__(self, shards: ParameterSlices, shared: bool = True) -> None:
        def board(groups: tuple[str, ...], shard: int) -> SliceBoard | None:
            sizes = {part.group: part.size for part in shards.parts(shard) if part.group in groups}
            return SliceBoard(sizes) if sizes else None

        self.shards = shards
        count = range(shards.count)
        self._boards: dict[str, list[SliceBoard | None]] = {
            ONLINE: [board(tuple(shards.groups), k) for k in count],
            TARGET: [board(shards.targets, k) for k in count],
        }
        self._offsets: list[tuple[int, dict[str, tuple[int, int]]]] = []  # first line; vector -> offset, values
        end = 0
        for k in count:
            line, end = end, end + _LINE
            vectors: dict[str, tuple[int, int]] = {}
            for part in shards.parts(k):
                for name in shards.names(part.group):
                    size = part.size if shards.sliced(part.group, name) else shards.vectors[f"{part.group}/{name}"]
                    vectors[f"{part.group}/{name}"] = (end, size)
                    end += -(-4 * size // _LINE) * _LINE
            self._offsets.append((line, vectors))
        self._segment = Segment(end)

    def memory(self, shard: int) -> SliceMemory:
        boards = {name: boards[shard] for name, boards in self._boards.items()}
        return SliceMemory(self._segment, *self._offsets[shard], boards)

    def board(self, name: str, shard: int) -> SliceBoard | None:
        """Where slices are published, ``online`` or ``target``; None: the slice has no such vector."""
        return self._boards[name][shard]

    @property
    def version(self) -> int:
        """The version of the slice that is furthest behind; 0 until all were published."""
        return min(board.version for board in self._boards[ONLINE] if board is not None)

    @property
    def spoilt_reads(self) -> int:
        """Reads of slices that a writer overtook three times, so that the old values were kept."""
        return sum(board.spoilt_reads for boards in self._boards.values() for board in boards if board is not None)

    def wait(self, newer_than: int, timeout: float) -> bool:
        """Wait until every slice is newer. False: not within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while self.version <= newer_than:
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(timeout, _LOOK_SECONDS))
        return True

    def latest(self, newer_than: int = 0) -> tuple[int, dict[str, Array]] | None:
        """The newest (version, weights), by the agent's names, as fresh arrays; None unless every slice is newer."""
        if self.version <= newer_than:
            return None
        online = self.empty()
        versions = [0] * self.shards.count
        self.pull(versions, online)
        return (min(versions), self.shards.named(online)) if min(versions) > newer_than else None

    def empty(self, name: str = ONLINE) -> dict[str, Floats]:
        """Group -> a vector to ``pull`` into, for every group or those with a ``target``."""
        groups = self.shards.groups if name == ONLINE else self.shards.targets
        return {group: np.zeros(self.shards.groups[group], np.float32) for group in groups}

    def pull(self, versions: list[int], into: Mapping[str, Floats], name: str = ONLINE) -> bool:
        """Overwrite the slices of ``into`` that have a newer publication. False: none has.

        Args:
            versions: of the slices in ``into``; updated.
            into: group -> vector.
            name: ``online`` or ``target``.
        """
        newer = False
        for k, board in enumerate(self._boards[name]):
            found = None if board is None else board.latest(versions[k])
            if found is None:
                continue
            versions[k], slices = found
            for part in self.shards.parts(k):
                if part.group in slices:
                    into[part.group][part.where] = slices[part.group]
            newer = True
        return newer

    def collect(self, vectors: Mapping[str, Floats]) -> None:
        """Fill ``vectors``, named as the agent's, from all slices. Each slice is copied between two of its updates,
        unless an update came during each of three attempts."""
        for k in range(self.shards.count):
            memory = self.memory(k)
            copies = memory.copied()
            for part in self.shards.parts(k):
                for name in self.shards.names(part.group):
                    full = f"{part.group}/{name}"
                    where = part.where if self.shards.sliced(part.group, name) else slice(None)
                    vectors[full][where] = copies[full]

    @property
    def gradient_lag(self) -> float:
        """Running mean of the lag of gradients, over all slices, in updates."""
        return sum(self.memory(k).gradient_lag for k in range(self.shards.count)) / self.shards.count

    @property
    def all_ended(self) -> bool:
        """Whether every server has made its last update."""
        return all(self.memory(k).ended for k in range(self.shards.count))


class SliceBoard:
    """The newest publication of one slice; groups have fixed sizes. Picklable. One process at a time publishes."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self._native = new_board(4 * sum(sizes.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (SliceBoard._attach, (self.sizes, self._native.state()))

    @staticmethod
    def _attach(sizes: dict[str, int], state: tuple[int, int, bytes, str]) -> SliceBoard:
        board = SliceBoard.__new__(SliceBoard)
        board.sizes = sizes
        board._native = attach_board(state)
        return board

    @property
    def version(self) -> int:
        return self._native.version

    @property
    def spoilt_reads(self) -> int:
        return self._native.spoilt

    def publish(self, slices: Mapping[str, Floats], version: int) -> None:
        if version <= self.version:
            raise SpecError(f"version {version} must be larger than the newest, {self.version}")
        self._native.publish(version, [slices[group] for group in self.sizes])

    def latest(self, newer_than: int = 0) -> tuple[int, dict[str, Floats]] | None:
        if self.version <= newer_than:
            return None
        values = np.empty(sum(self.sizes.values()), np.float32)
        version = self._native.read(newer_than, values.view(np.uint8))
        if not version:
            return None
        ends = np.cumsum(list(self.sizes.values())).tolist()
        return version, {g: values[end - n : end] for (g, n), end in zip(self.sizes.items(), ends, strict=True)}


class SliceMemory:
    """The vectors of one slice. Only its server writes; a concurrent reader may see half of an update.

    Args:
        line: offset of the words.
        vectors: name -> (offset, number of values).
        boards: ``online`` and ``target`` -> board to publish on; None: the slice has no such vector.
    """

    def __init__(
        self,
        segment: Segment,
        line: int,
        vectors: Mapping[str, tuple[int, int]],
        boards: Mapping[str, SliceBoard | None],
    ) -> None:
        self._segment = segment
        self._line = line
        self._boards = boards
        data = segment.array()  # keeps the memory mapped as long as a vector is used

        def at(offset: int, count: int, dtype: Any) -> NDArray[Any]:
            return data[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)

        self.vectors: dict[str, Floats] = {name: at(*where, np.float32) for name, where in vectors.items()}
        """Name -> float32 [part], writable: the shared memory itself."""
        self._version = at(line + _VERSION, 1, np.int64)
        self._lag = at(line + _LAG, 1, np.float64)

    @property
    def version(self) -> int:
        """One more than the number of updates ever made to this slice."""
        return int(self._version[0])

    @version.setter
    def version(self, version: int) -> None:
        self._version[0] = version

    def publish(self, name: str = ONLINE) -> None:
        """Publish the parameters, or the ``target``, with the present version.

        Raises:
            SpecError: this version was already published.
        """
        board = self._boards[name]
        if board is not None:
            board.publish({group: self.vectors[f"{group}/{name}"] for group in board.sizes}, self.version)

    def published_version(self, name: str = ONLINE) -> int:
        """Version of the last publication; 0: none."""
        board = self._boards[name]
        return 0 if board is None else board.version

    def published(self, name: str = ONLINE) -> tuple[int, dict[str, Floats]] | None:
        """(version, group -> slice) of the last publication; None: none."""
        board = self._boards[name]
        return None if board is None else board.latest()

    @property
    def gradient_lag(self) -> float:
        """Running mean of the lag of received gradients, in updates."""
        return float(self._lag[0])

    @gradient_lag.setter
    def gradient_lag(self, updates: float) -> None:
        self._lag[0] = updates

    @property
    def filled(self) -> bool:
        """Whether the vectors hold parameters."""
        return bool(self._load(_FILLED))

    def fill(self) -> None:
        """Mark the vectors as filled."""
        self._segment.store(self._line + _FILLED, 1)

    def begin_update(self) -> None:
        """Until ``end_update``, the vectors are inconsistent."""
        self._segment.store(self._line + _BEGUN, (self._load(_BEGUN) + 1) % 2**32)

    def end_update(self) -> None:
        self._segment.store(self._line + _DONE, self._load(_BEGUN))

    @property
    def torn(self) -> bool:
        """Whether an update is in progress, or was interrupted by the server's death."""
        return self._load(_BEGUN) != self._load(_DONE)

    @property
    def ended(self) -> bool:
        """Whether the server has made its last update."""
        return bool(self._load(_ENDED))

    def end(self, ended: bool = True) -> None:
        self._segment.store(self._line + _ENDED, int(ended))

    def copied(self) -> dict[str, Floats]:
        """Copies of all vectors."""
        for _ in range(_ATTEMPTS):
            before = self._load(_DONE)
            copies = {name: vector.copy() for name, vector in self.vectors.items()}
            if self._load(_BEGUN) == before:
                break
        return copies

    def _load(self, offset: int) -> int:
        return self._segment.load(self._line + offset)
