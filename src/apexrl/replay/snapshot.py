"""The snapshot file of a replay: a JSON head, then blocks of slots with their priorities and checksums.

    magic 8 | head bytes u64 | head JSON | crc32c u32 | { entries u64 | crc32c u32 | entries … |
    crc32c u32 }… | 0 u64 | crc32c u32 | magic 8

With ragged and compressed fields, entries have lengths of their own, and their bytes u64 stand behind each count.

A load restores each slot to its former position, so keys from before the save stay valid.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl import _native
from apexrl.errors import ConfigError, OwnershipError, SnapshotError
from apexrl.replay.core import ReplayCore
from apexrl.replay.hindsight import OPTIONS as GOAL_OPTIONS
from apexrl.replay.layout import Layout
from apexrl.replay.options import OPTIONS, checked, consumes
from apexrl.run.atomic_files import remove_leftovers, replacing

_MAGIC = b"APEXSNP3"
_END = b"APEXEND3"
_LIMITER = ("min_size", "samples_per_insert", "insert_band", "error_buffer", "diff_offset")
_BLOCK = 8 << 20  # bytes copied at a time; meanwhile the owner serves no other call


class Room(NamedTuple):
    """For whom a loaded replay is to have room, if the saved one had less."""

    writers: int = 1
    streams: int = 1


def save(core: ReplayCore, path: Path, check: Callable[[], None]) -> None:
    """Write the replay that this process owns. The previous file stays until the new one is complete on disk and
    ``check`` returned."""
    write(core, path, check, taken(core))


def taken(core: ReplayCore, since: _native.Snapshot | None = None) -> _native.Snapshot:
    """What is to be copied; with ``since``, rows that an earlier snapshot of this owner has are left out."""
    while (snapshot := core.native.snapshot(since)) is None:
        core.own()
    return snapshot


def write(
    core: ReplayCore,
    path: Path,
    check: Callable[[], None],
    snapshot: _native.Snapshot,
    chain: Mapping[str, Any] | None = None,
    table: Mapping[str, Any] | None = None,
) -> None:
    """Write what was ``taken``; with ``chain``, as a file of a chain of snapshots, which it describes; with ``table``,
    as one of several tables."""
    try:
        _write_file(core, path, check, snapshot, chain, table)
    except OSError as error:
        raise SnapshotError(
            f"cannot write the replay snapshot {path}: {error.strerror}; a snapshot that was there stays"
        ) from error


def _write_file(
    core: ReplayCore,
    path: Path,
    check: Callable[[], None],
    snapshot: _native.Snapshot,
    chain: Mapping[str, Any] | None,
    table: Mapping[str, Any] | None,
) -> None:
    native = core.native
    counters = native.counters()
    head = {
        "layout": core.layout.to_json(core.options),
        "counters": {
            "inserted": snapshot.inserted,
            "sampled": snapshot.sampled,
            "evicted": snapshot.evicted,
            "deleted": snapshot.deleted,
            "max_priority": snapshot.max_priority,
        },
        "limiter": {k: counters[k] for k in _LIMITER},
        "rng": snapshot.rng,
        "batches": snapshot.batches,
        "largest_generation": native.largest_generation(),
        "entry_bytes": native.snapshot_entry_bytes,
        "slots": counters["slots"],
        **({"chain": dict(chain)} if chain else {}),
        **({"table": dict(table)} if table else {}),
    }
    text = json.dumps(head).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    most = max(_BLOCK, native.snapshot_entry_most)
    buffers = [np.empty(most, np.uint8) for _ in range(2)]
    sized = chain is not None or _is_ragged(core.layout)
    with (
        replacing(path, check) as temporary,
        temporary.open("wb", buffering=0) as file,
        ThreadPoolExecutor(1, "snapshot") as disk,  # writes a block while the next one is copied
    ):
        _write(file, _MAGIC + struct.pack("<Q", len(text)) + text + struct.pack("<I", _native.crc32c(text)))
        writing: Future[None] = disk.submit(lambda: None)
        while True:
            buffers.reverse()
            entries, size = native.snapshot_block(snapshot, buffers[0])
            if entries < 0:
                raise OwnershipError(f"this process stopped owning the replay while it saved it to {path}")
            if entries == 0:
                break
            part = buffers[0][:size]
            crc = _native.crc32c(part)
            writing.result()
            count = _counted(entries, size) if sized else _counted(entries)
            writing = disk.submit(_write_block, file, count, part, crc)
        writing.result()
        _write(file, _counted(0) + _END)


def _is_ragged(layout: Layout) -> bool:
    return any(column.field.ragged or column.field.compressed for column in layout.columns)


def _write_block(file: io.FileIO, count: bytes, part: NDArray[np.uint8], crc: int) -> None:
    here = file.tell()
    _write(file, count)
    _write(file, part.data)
    _write(file, struct.pack("<I", crc))
    _native.start_writing(file.fileno(), here, file.tell() - here)


def _counted(*numbers: int) -> bytes:
    count = struct.pack(f"<{len(numbers)}Q", *numbers)
    return count + struct.pack("<I", _native.crc32c(count))


def load(path: Path, check_memory: bool, room: Room) -> ReplayCore:
    """Create a replay from a file that ``save`` wrote."""
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise SnapshotError(f"cannot open the replay snapshot {path}: {error.strerror}") from None
    with file:
        try:
            return _load(file, path, check_memory, room)
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{path} is not a complete replay snapshot ({error})") from None
        except RuntimeError as error:
            raise SnapshotError(f"the replay of {path} cannot be restored: {error}") from None


def read_head(file: io.FileIO, path: Path) -> tuple[dict[str, Any], int]:
    """The head of a snapshot, and the bytes of the file, whose end was read too."""
    magic, length = struct.unpack("<8sQ", _read(file, 16, path))
    if magic != _MAGIC:
        raise SnapshotError(f"{path} is not a replay snapshot of this version of apexrl")
    if length > 1 << 24:
        raise SnapshotError(f"{path} is corrupt: its head claims {length} bytes")
    text = _read(file, length, path)
    if struct.unpack("<I", _read(file, 4, path))[0] != _native.crc32c(text):
        raise SnapshotError(f"{path} is corrupt: the checksum of its head does not match")
    head: dict[str, Any] = json.loads(text)
    # The end is read first, so that a truncated file is refused before memory is filled.
    here, size = file.tell(), path.stat().st_size
    file.seek(max(here, size - 20))
    if _read(file, 20, path) != _counted(0) + _END:
        raise SnapshotError(f"{path} is truncated or corrupt: its end mark is missing")
    file.seek(here)
    return head, size


def _load(file: io.FileIO, path: Path, check_memory: bool, room: Room) -> ReplayCore:
    head, size = read_head(file, path)
    if "chain" in head:
        raise SnapshotError(f"{path} is one file of a chain of snapshots: load its folder")
    entry_bytes = int(head["entry_bytes"])

    def restore(core: ReplayCore) -> None:
        for part, entries in blocks(file, path, None if _is_ragged(core.layout) else entry_bytes, size):
            core.native.restore_block(part, entries)

    return restored(head, path, check_memory, room, restore)


def restored(
    head: Mapping[str, Any], path: Path, check_memory: bool, room: Room, restore: Callable[[ReplayCore], None]
) -> ReplayCore:
    """A new replay as a snapshot's head says, with ``room``, whose slots ``restore`` brings."""
    layout, options = Layout.from_json(head["layout"])
    fields = {column.name: column.field for column in layout.columns}
    earlier = {"recency_half_life": 0.0, "lag_half_life": 0.0, "max_times_sampled": 0} | GOAL_OPTIONS
    options = earlier | options  # files of earlier versions lack them
    arguments = {name: options[name] for name in OPTIONS}
    if layout.kind == "rows" or not options["streams_chosen"]:
        arguments["streams"] = None
    saved = checked(arguments.copy())
    arguments["writers"] = max(saved["writers"], room.writers)
    arguments["streams"] = arguments["streams"] and max(saved["streams"], room.streams)
    try:
        wanted = checked(arguments, saved["chunk"])  # slots stay as large as they are in the file
    except ConfigError as error:
        raise SnapshotError(
            f"the replay of {path} has room for {saved['writers']} writers and {saved['streams']} streams, and cannot "
            f"have it for {room.writers} and {room.streams}: {error}. Take fewer, or move the snapshot away: the "
            "replay begins empty without it"
        ) from None
    core = ReplayCore.create(fields, wanted, "", check_memory)
    native = core.native
    try:
        if native.snapshot_entry_bytes != head["entry_bytes"] or native.counters()["slots"] < head["slots"]:
            raise SnapshotError(f"{path} was written with another memory layout; load it with the apexrl that wrote it")
        restore(core)
        native.finish_restore(int(head["largest_generation"]))
        kept: dict[str, Any] = head["counters"]
        native.restore_counters(
            kept["inserted"], kept["sampled"], kept["evicted"], kept.get("deleted", 0), kept["max_priority"]
        )
        core.own()
        if not consumes(core.options):
            _balance(core)
        native.restore_draws(head["batches"], head["rng"])
        limiter = [head["limiter"][k] for k in _LIMITER]
        native.set_limiter(*limiter[:3])
        native.restore_limiter(*limiter[3:])
    except BaseException:
        native.shut()
        native.disown()
        raise
    return core


def _balance(core: ReplayCore) -> None:
    """The counters are of when the copy began, and items came and went while it was made: those that are missing count
    as evicted, those that are too many as inserted."""
    size, now = core.native.size(), core.native.counters()  # this order: the size removes what is above the capacity
    inserted, evicted, deleted = now["inserted"], now["evicted"], now["deleted"]
    if missing := inserted - evicted - deleted - size:
        inserted, evicted = inserted + max(0, -missing), evicted + max(0, missing)
        core.native.restore_counters(inserted, now["sampled"], evicted, deleted, now["max_priority"])


def blocks(file: io.FileIO, path: Path, entry_bytes: int | None, size: int) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Each verified block and its number of entries. Two arrays take turns. ``entry_bytes``: None: they vary."""
    buffers = [np.empty(0, np.uint8) for _ in range(2)]

    def read() -> tuple[NDArray[np.uint8], int]:
        head = _read(file, 12, path)
        entries = struct.unpack("<Q", head[:8])[0]
        numbers = [entries]
        if entry_bytes is None and head != _counted(0):
            head += _read(file, 8, path)
            numbers = [entries, struct.unpack("<Q", head[8:16])[0]]
        if head != _counted(*numbers):
            raise SnapshotError(f"{path} is corrupt: the checksum of a count does not match")
        count = entries * entry_bytes if entry_bytes is not None else numbers[-1]
        if count > size - file.tell():
            raise SnapshotError(f"{path} is truncated or corrupt: a block claims more bytes than there are")
        buffers.reverse()
        if count > len(buffers[0]):
            buffers[0] = np.empty(count, np.uint8)
        part = buffers[0][:count]
        _read_into(file, part, path)
        if entries and struct.unpack("<I", _read(file, 4, path))[0] != _native.crc32c(part):
            raise SnapshotError(f"{path} is corrupt: the checksum of a block does not match")
        return part, entries

    with ThreadPoolExecutor(1, "snapshot") as disk:  # reads a block while the previous one is restored
        part, entries = read()
        while entries:
            following = disk.submit(read)
            yield part, entries
            part, entries = following.result()
    if file.tell() != size - 8:
        raise SnapshotError(f"{path} is corrupt: there is data after its last block")


def _write(file: io.FileIO, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _read(file: io.FileIO, count: int, path: Path) -> bytes:
    data = bytearray(count)
    _read_into(file, np.frombuffer(data, np.uint8), path)
    return bytes(data)


def _read_into(file: io.FileIO, array: NDArray[np.uint8], path: Path) -> None:
    left = array.data
    while left:
        count = file.readinto(left)
        if not count:
            raise SnapshotError(f"{path} is truncated")
        left = left[count:]
