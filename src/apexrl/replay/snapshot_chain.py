"""Snapshots of which each holds what changed since the one before: a folder with a full one, and parts that follow it.

    CCCCCC-NNNN.snapshot     chain, and number in it; number 0 is full

Files are those of ``snapshot``, whose heads name the file before. Every file has the priorities of all items; rows of a
slot that did not change since are left out, and lie in an earlier file.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl.errors import ConfigError, SnapshotError
from apexrl.replay.core import ReplayCore
from apexrl.replay.snapshot import Room, blocks, read_head, restored, taken, write

_NAME = re.compile(r"(\d{6})-(\d{4})\.snapshot")
_ENTRY = struct.Struct("<IIQIIII")  # native/snapshot.h, SnapshotEntry
_UNCHANGED = 2**32 - 1  # in place of `ragged`: its rows lie in an earlier file


class SnapshotWriter:
    """Writes a chain of snapshots; see ``Replay.snapshots``."""

    def __init__(self, core: ReplayCore, folder: Path, longest: int) -> None:
        if not isinstance(longest, int | np.integer) or isinstance(longest, bool) or not 0 <= longest <= 9999:
            raise ConfigError(f"longest={longest!r} must be an integer from 0 to 9999")
        self._core = core
        self._folder = folder
        self._longest = int(longest)
        self._last: _native.Snapshot | None = None
        self._chain = self._number = 0
        self._id = ""

    def save(self) -> Path:
        """Write what changed since the last call, or all: the first time, after ``longest`` parts, and when another
        process owned the replay in between. Answers the file. The earlier chain is deleted when a new one has begun.

        Raises:
            SnapshotError: the file cannot be written; what was there before is still a whole snapshot.
            OwnershipError: another living process owns the replay.
        """
        core = self._core
        if not core.native.owned or core.closed:
            core.own()
        core.publish_local()
        snapshot = taken(core, self._last if self._number < self._longest else None)
        chain, number = self._chain, self._number + 1
        if not snapshot.continues:
            chain, number = max((found.chain for found in _files(self._folder)), default=0) + 1, 0
        path = self._folder / f"{chain:06}-{number:04}.snapshot"
        own = secrets.token_hex(8)
        write(core, path, lambda: None, snapshot, {"id": own, "previous": self._id if number else "", "number": number})
        self._last, self._chain, self._number, self._id = snapshot, chain, number, own
        if number == 0:
            for found in _files(self._folder):
                if found.chain < chain:
                    with suppress(OSError):
                        found.path.unlink()
        return path


class _File(NamedTuple):
    chain: int
    number: int
    path: Path


def _files(folder: Path) -> list[_File]:
    if not folder.is_dir():
        return []
    names = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(_File(int(name[1]), int(name[2]), path) for name, path in names if name)


def load_chain(folder: Path, check_memory: bool, room: Room) -> ReplayCore:
    """Create a replay from the newest chain of a folder. SnapshotError: a file is missing, damaged or of another."""
    files = _files(folder)
    if not files:
        raise SnapshotError(f"{folder} holds no snapshots: there is no file like 000001-0000.snapshot")
    files = [one for one in files if one.chain == files[-1].chain]
    for number, one in enumerate(files):
        if one.number != number:
            raise SnapshotError(f"{one.path} cannot be restored: number {number} of its chain is missing in {folder}")
    try:
        return _load(files, check_memory, room)
    except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{folder} holds no complete replay snapshot ({error})") from None
    except RuntimeError as error:
        raise SnapshotError(f"the replay of {folder} cannot be restored: {error}") from None


def _load(files: list[_File], check_memory: bool, room: Room) -> ReplayCore:
    heads = []
    for one in files:
        with one.path.open("rb", buffering=0) as file:
            heads.append(read_head(file, one.path)[0])
        link = heads[-1]["chain"]
        previous = heads[-2]["chain"]["id"] if one.number else ""
        if (link["number"], link["previous"]) != (one.number, previous):
            before = files[one.number - 1].path.name if one.number else "no other file"
            raise SnapshotError(f"{one.path} does not follow {before}: a file of this chain was replaced")

    def restore(core: ReplayCore) -> None:
        counters, options = core.native.counters(), core.options
        aged = bool(options["recency_half_life"] or options["lag_half_life"])
        leaves = counters["leaves_per_slot"] * 8 * (2 if aged else 1)
        _Restore(core.native, int(counters["slot_bytes"]), leaves).run(files)

    return restored(heads[-1], files[-1].path, check_memory, room, restore)


class _Restore:
    """Brings slots from the newest file; of those whose rows are not there, the rows from the file that has them."""

    def __init__(self, native: _native.Replay, slot_bytes: int, leaf_bytes: int) -> None:
        self._native = native
        self._slot_bytes = slot_bytes
        self._leaf_bytes = leaf_bytes
        self._wanted: dict[int, tuple[tuple[int, ...], bytes]] = {}  # slot -> its entry and leaves, without rows

    def run(self, files: list[_File]) -> None:
        for place, one in enumerate(reversed(files)):
            with one.path.open("rb", buffering=0) as file:
                _, size = read_head(file, one.path)
                for part, count in blocks(file, one.path, None, size):
                    found = [
                        entry
                        for head, body in self._entries(part, count)
                        if (entry := self._newest(head, body) if place == 0 else self._earlier(head, body)) is not None
                    ]
                    if found:
                        self._native.restore_block(np.concatenate(found), len(found))
            if not self._wanted:
                return
        raise SnapshotError(f"{files[-1].path} cannot be restored: rows of {len(self._wanted)} chunks are in no file")

    def _entries(self, part: NDArray[np.uint8], count: int) -> Iterator[tuple[tuple[int, ...], NDArray[np.uint8]]]:
        at = 0
        for _ in range(count):
            head = _ENTRY.unpack_from(part.data, at)
            rows = 0 if head[-1] == _UNCHANGED else self._slot_bytes + (head[-1] + 7) // 8 * 8
            end = at + _ENTRY.size + rows + self._leaf_bytes
            if end > len(part):
                raise ValueError("an entry is longer than its block")
            yield head, part[at:end]
            at = end

    def _newest(self, head: tuple[int, ...], body: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        slot = head[0]
        if head[-1] == _UNCHANGED:
            self._wanted[slot] = head, body[_ENTRY.size :].tobytes()
            return None
        self._wanted.pop(slot, None)
        return body

    def _earlier(self, head: tuple[int, ...], body: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """The rows of ``body`` with the newest priorities, if they are wanted."""
        wanted: Any = self._wanted.get(head[0])
        if wanted is None or head[-1] == _UNCHANGED or wanted[0][1:3] != head[1:3]:  # visible, generation
            return None
        del self._wanted[head[0]]
        rows = _ENTRY.size + self._slot_bytes
        newest = np.frombuffer(_ENTRY.pack(*wanted[0][:-1], head[-1]), np.uint8)
        leaves = np.frombuffer(wanted[1], np.uint8)
        return np.concatenate([newest, body[_ENTRY.size : rows], leaves, body[rows + self._leaf_bytes :]])
