"""Parameters that several parameter servers own a slice of each: their memory, and the boards that they publish on.

A shard's vectors (parameters, target, optimizer state) lie in shared memory and outlive their server: its successor
goes on from them. Others read the parameters from boards, as consistent slices; those of different shards may be of
different versions, as in DistBelief (Dean et al. 2012) and Gorila (Nair et al. 2015).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl._native import Segment
from apexrl.errors import ClosedError, SpecError
from apexrl.links.local.parameter_slices import ONLINE, TARGET, Floats, Shards
from apexrl.spec import Array

_LINE = 64  # bytes of a cache line, on which every vector begins
_FILLED, _BEGUN, _DONE, _ENDED, _VERSION, _LAG = 0, 4, 8, 12, 16, 24  # in a shard's first line
_ATTEMPTS = 3  # at a copy of a shard's vectors, between two of its updates


class ShardedParameters:
    """All shards. Picklable to local processes. For who reads whole weights it is a ``protocols.WeightsReader``, whose
    version is that of the shard that is furthest behind.

    Args:
        shards: who owns what.
        shared: for processes, or for roles that take turns in one: the same memory serves both.
    """

    def __init__(self, shards: Shards, shared: bool = True) -> None:
        def board(groups: tuple[str, ...], shard: int) -> Board | None:
            sizes = {part.group: part.size for part in shards.parts(shard) if part.group in groups}
            return Board(sizes) if sizes else None

        self.shards = shards
        count = range(shards.count)
        self._boards: dict[str, list[Board | None]] = {
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

    def memory(self, shard: int) -> ShardMemory:
        """What the server of ``shard`` owns."""
        boards = {name: boards[shard] for name, boards in self._boards.items()}
        return ShardMemory(self._segment, *self._offsets[shard], boards)

    @property
    def version(self) -> int:
        """Of the shard that is furthest behind; 0 until all have published."""
        return min(board.version for board in self._boards[ONLINE] if board is not None)

    @property
    def spoilt_reads(self) -> int:
        """Reads of slices that were overtaken three times and kept the old ones."""
        return sum(board.spoilt_reads for boards in self._boards.values() for board in boards if board is not None)

    def latest(self, newer_than: int = 0) -> tuple[int, dict[str, Array]] | None:
        """The newest (version, weights), by the agent's names, as fresh arrays; None when not all of it is newer."""
        if self.version <= newer_than:
            return None
        online = self.empty()
        versions = [0] * self.shards.count
        self.pull(versions, online)
        return (min(versions), self.shards.named(online)) if min(versions) > newer_than else None

    def empty(self, name: str = ONLINE) -> dict[str, Floats]:
        """Group -> a vector to ``pull`` into: of every group, or of those that have a ``target``."""
        groups = self.shards.groups if name == ONLINE else self.shards.targets
        return {group: np.zeros(self.shards.groups[group], np.float32) for group in groups}

    def pull(self, versions: list[int], into: Mapping[str, Floats], name: str = ONLINE) -> bool:
        """Overwrite the slices of ``into`` of which something newer was published. False: none was.

        Args:
            versions: [shards], of the slices that ``into`` holds; brought up to date.
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
        """Fill ``vectors``, named as the agent's, with all that the shards hold. Every slice is as it was between two
        updates of its shard, unless that made one during each of three attempts."""
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
        """Running mean of the lag of gradients, over all shards, in updates."""
        return sum(self.memory(k).gradient_lag for k in range(self.shards.count)) / self.shards.count

    @property
    def all_ended(self) -> bool:
        """Whether every server has made its last update."""
        return all(self.memory(k).ended for k in range(self.shards.count))


class Board:
    """One shard's newest slices, each group's of a fixed size. Picklable; one process at a time publishes."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self._native = _native.Board.create(4 * sum(sizes.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Board._attach, (self.sizes, self._native.state()))

    @staticmethod
    def _attach(sizes: dict[str, int], state: tuple[int, int, bytes, str]) -> Board:
        board = Board.__new__(Board)
        board.sizes = sizes
        try:
            board._native = _native.Board.attach(state)
        except RuntimeError as error:
            raise ClosedError(str(error)) from None
        return board

    @property
    def version(self) -> int:
        return self._native.version

    @property
    def spoilt_reads(self) -> int:
        return self._native.spoilt

    def publish(self, slices: Mapping[str, Floats], version: int) -> None:
        if version <= self.version:
            raise SpecError(f"version {version} is not newer than {self.version}: versions never go back")
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


class ShardMemory:
    """One shard's vectors. Its server alone writes; who reads meanwhile may see an update half made.

    Args:
        line: offset of the words.
        vectors: name -> (offset, values).
        boards: ``online`` and ``target`` -> where they are published; None: there is nothing of that kind.
    """

    def __init__(
        self,
        segment: Segment,
        line: int,
        vectors: Mapping[str, tuple[int, int]],
        boards: Mapping[str, Board | None],
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
        """One more than the updates ever made of this shard."""
        return int(self._version[0])

    @version.setter
    def version(self, version: int) -> None:
        self._version[0] = version

    def publish(self, name: str = ONLINE) -> None:
        """Make the parameters, or those of the ``target``, as they are, the newest, with the present version.

        Raises:
            SpecError: something of this version was published before.
        """
        board = self._boards[name]
        if board is not None:
            board.publish({group: self.vectors[f"{group}/{name}"] for group in board.sizes}, self.version)

    def published_version(self, name: str = ONLINE) -> int:
        """Of what was published last; 0: nothing yet."""
        board = self._boards[name]
        return 0 if board is None else board.version

    def published(self, name: str = ONLINE) -> tuple[int, dict[str, Floats]] | None:
        """(version, group -> slice) of what was published last; None: nothing yet."""
        board = self._boards[name]
        return None if board is None else board.latest()

    @property
    def gradient_lag(self) -> float:
        """Running mean of the lag of the gradients that came, in updates."""
        return float(self._lag[0])

    @gradient_lag.setter
    def gradient_lag(self, updates: float) -> None:
        self._lag[0] = updates

    @property
    def filled(self) -> bool:
        """Whether the vectors hold parameters, and not yet zeros."""
        return bool(self._load(_FILLED))

    def fill(self) -> None:
        """They do now."""
        self._segment.store(self._line + _FILLED, 1)

    def begin_update(self) -> None:
        """From here to ``end_update`` the vectors are neither before nor after an update."""
        self._segment.store(self._line + _BEGUN, (self._load(_BEGUN) + 1) % 2**32)

    def end_update(self) -> None:
        self._segment.store(self._line + _DONE, self._load(_BEGUN))

    @property
    def torn(self) -> bool:
        """Whether an update is in progress, or was when the server died."""
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
