"""A replay in one file: a JSON head, then every slot with its priorities, each block with its checksum.

    magic 8 | head length u64 | head JSON | head crc u32 | { slot, generation, order, visible u64×4 | rows | leaves |
    staged | crc u32 }… | count u64 | magic 8

Slots go back to where they were, so keys that were handed out before the save stay good after a load.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apexrl import _native
from apexrl.errors import SnapshotError
from apexrl.replay.layout import Layout

if TYPE_CHECKING:
    from apexrl.replay.replay import Replay

_MAGIC = b"APEXSNP1"
_END = b"APEXEND1"


def save(replay: Replay, path: Path) -> None:
    """Write the owner's replay. The previous file stays until the new one is complete on disk."""
    native = replay._native
    counters = native.counters()
    slots = native.snapshot_slots()
    head = {
        "layout": replay._layout.to_json(replay._options),
        "counters": {k: counters[k] for k in ("inserted", "sampled", "evicted", "max_priority")},
        "limiter": {k: counters[k] for k in ("min_size", "samples_per_insert", "error_buffer")},
        "rng": native.rng_state(),
        "largest_generation": native.largest_generation(),
        "slot_bytes": counters["slot_bytes"],
        "leaves": counters["leaves_per_slot"],
        "slots": counters["slots"],
    }
    text = json.dumps(head).encode()
    rows = np.empty(counters["slot_bytes"], np.uint8)
    leaves = np.empty(counters["leaves_per_slot"], np.float64)
    staged = np.empty_like(leaves)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            file.write(_MAGIC + struct.pack("<Q", len(text)) + text + struct.pack("<I", zlib.crc32(text)))
            count = 0
            for order, (slot, generation, visible) in enumerate(slots):
                if not native.snapshot_slot(slot, generation, visible, rows, leaves, staged):
                    continue  # evicted since
                place = struct.pack("<QQQQ", slot, generation, order, visible)
                crc = zlib.crc32(place)
                file.write(place)
                for part in (rows, leaves, staged):
                    crc = zlib.crc32(part.data, crc)
                    file.write(part.data)
                file.write(struct.pack("<I", crc))
                count += 1
            file.write(struct.pack("<Q", count) + _END)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> Replay:
    """Make a replay from a file that ``save`` wrote."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise SnapshotError(f"cannot open the replay snapshot {path}: {error.strerror}") from None
    with file:
        try:
            return _load(file, path)
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{path} is not a complete replay snapshot ({error})") from None


def _load(file: io.BufferedReader, path: Path) -> Replay:
    from apexrl.replay.replay import Replay

    magic, length = struct.unpack("<8sQ", _read(file, 16, path))
    if magic != _MAGIC:
        raise SnapshotError(f"{path} is not a replay snapshot of this version of apexrl")
    if length > 1 << 24:
        raise SnapshotError(f"{path} is corrupt: its head claims {length} bytes")
    text = _read(file, length, path)
    if struct.unpack("<I", _read(file, 4, path))[0] != zlib.crc32(text):
        raise SnapshotError(f"{path} is corrupt: the checksum of its head does not match")
    head = json.loads(text)
    # Every block is verified before memory is filled: sizes must agree with the file's length.
    slot_bytes, leaf_count = int(head["slot_bytes"]), int(head["leaves"])
    block = 32 + slot_bytes + 16 * leaf_count + 4
    here = file.tell()
    size = path.stat().st_size
    count, rest = divmod(size - here - 16, block)
    if rest or count < 0:
        raise SnapshotError(f"{path} is truncated")
    file.seek(size - 16)
    if struct.unpack("<Q8s", _read(file, 16, path)) != (count, _END):
        raise SnapshotError(f"{path} is truncated or corrupt: it does not end as a snapshot does")
    file.seek(here)

    layout, options = Layout.from_json(head["layout"])
    fields = {column.name: column.field for column in layout.columns}
    arguments = {k: v for k, v in options.items() if k not in ("chunk", "kind", "stack", "streams_chosen")}
    if layout.kind == "rows" or not options["streams_chosen"]:
        arguments["streams"] = None
    replay = Replay(fields=fields, kind=layout.kind, stack=layout.stack, **arguments)
    native: _native.Replay = replay._native
    counters = native.counters()
    if counters["slot_bytes"] != slot_bytes or counters["slots"] != head["slots"]:
        raise SnapshotError(f"{path} was written with another memory layout; load it with the apexrl that wrote it")
    rows = np.empty(slot_bytes, np.uint8)
    leaves, staged = np.empty(leaf_count, np.float64), np.empty(leaf_count, np.float64)
    for _ in range(count):
        place = _read(file, 32, path)
        crc = zlib.crc32(place)
        for part in (rows, leaves, staged):
            if file.readinto(part.data) != part.nbytes:
                raise SnapshotError(f"{path} is truncated")
            crc = zlib.crc32(part.data, crc)
        if struct.unpack("<I", _read(file, 4, path))[0] != crc:
            raise SnapshotError(f"{path} is corrupt: the checksum of a chunk does not match")
        slot, generation, order, visible = struct.unpack("<QQQQ", place)
        native.restore_slot(slot, generation, order, visible, rows, leaves, staged)
    native.finish_restore(int(head["largest_generation"]))
    kept = head["counters"]
    native.restore_counters(kept["inserted"], kept["sampled"], kept["evicted"], kept["max_priority"])
    replay._own()
    native.set_rng_state(head["rng"])
    native.set_limiter(*(head["limiter"][k] for k in ("min_size", "samples_per_insert", "error_buffer")))
    return replay


def _read(file: io.BufferedReader, count: int, path: Path) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise SnapshotError(f"{path} is truncated")
    return data
