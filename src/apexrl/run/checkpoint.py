"""Checkpoints: named arrays and a little JSON in one self-contained safetensors file, written whole or not at all.

``checkpoints/`` of a run holds the newest ``generation-0002-update-000001200.safetensors`` (all that a resume needs)
and ``best.safetensors`` (the acting weights of the best evaluation). The first number is the generation of the
writer (``ownership``). It counts before that of updates: a successor may have resumed from an older checkpoint and is
newer all the same. The JSON is in the file's header, with a checksum over everything; a ``.json`` beside each file
repeats it for people and is never read back. No pickle, no PyTorch.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from apexrl.errors import SnapshotError, SpecError
from apexrl.run.atomic_files import remove_leftovers, replace_text, replacing
from apexrl.run.ownership import Fence
from apexrl.spec import Array

FORMAT = 1
"""Number of the format that is written. It and the one before are read."""
_FORMATS = "apexrl-checkpoint-"
BEST = "best.safetensors"
_NUMBERED = re.compile(r"generation-(\d+)-update-(\d+)\.safetensors")
_UNNUMBERED = "update-*.safetensors"  # of versions without generations

Kind = Literal["state", "weights"]
"""``state``: an agent's ``state_dict()``; ``weights``: only what acting needs, ``weights()``."""


@dataclass(frozen=True)
class Checkpoint:
    """One loaded checkpoint."""

    path: Path
    kind: Kind
    arrays: dict[str, Array]
    metadata: dict[str, Any]
    skipped: tuple[str, ...] = ()
    """Why newer files were skipped (``load_latest``)."""


def save(
    folder: Path,
    arrays: Mapping[str, Array],
    metadata: Mapping[str, Any],
    keep: int = 3,
    fence: Fence | None = None,
) -> Path:
    """Write the agent's whole state as a numbered checkpoint, and remove all but the ``keep`` newest.

    Newest is the highest generation, and within it the most updates. The file just written stays in any case, and so do
    those of later generations.

    Args:
        folder: made if missing.
        arrays: flat ``state_dict()``.
        metadata: JSON-able; must hold ``updates``, the total of learner updates, which numbers the file.
        keep: numbered checkpoints kept, at least 1; ``best`` is kept besides.
        fence: of the generation that writes; None: generation 0, which is never fenced.

    Raises:
        FencedError: a newer generation writes here: nothing was written, or nothing removed.
        LinkError: another process may have the run's lease: likewise.
    """
    generation = 0 if fence is None else fence.generation
    path = Path(folder) / f"generation-{generation:04d}-update-{int(metadata['updates']):09d}.safetensors"
    about = {**metadata, "generation": generation}
    _write(path, arrays, about, "state", fence)  # complete before older ones are removed
    others = [
        one
        for its_generation, _, one in _with_generations(Path(folder))
        if its_generation <= generation and one != path
    ]
    _check(fence)()
    for old in others[: len(others) + 1 - max(1, keep)]:
        old.unlink(missing_ok=True)
        old.with_suffix(".json").unlink(missing_ok=True)
    _write_beside(path, about, "state", fence)
    return path


def save_best(
    folder: Path, weights: Mapping[str, Array], metadata: Mapping[str, Any], fence: Fence | None = None
) -> Path:
    """Replace the best weights; ``metadata`` should hold ``updates``, ``env_steps`` and ``eval_return``. ``fence`` as
    for ``save``."""
    path = Path(folder) / BEST
    about = {**metadata, "generation": 0 if fence is None else fence.generation}
    _write(path, weights, about, "weights", fence)
    _write_beside(path, about, "weights", fence)
    return path


def save_weights(
    path: Path, weights: Mapping[str, Array], metadata: Mapping[str, Any], fence: Fence | None = None
) -> None:
    """Write acting weights as the file ``path``. ``fence`` as for ``save``."""
    _write(path, weights, {**metadata, "generation": 0 if fence is None else fence.generation}, "weights", fence)


def numbered(folder: Path) -> list[Path]:
    """The numbered checkpoints, oldest first; empty when there are none.

    Raises:
        SnapshotError: all of them are of an earlier version.
    """
    found = _with_generations(Path(folder))
    if not found and (old := sorted(Path(folder).glob(_UNNUMBERED))):
        raise SnapshotError(
            f"{old[-1]} was written by an earlier version of apexrl, which this one cannot resume: use that version, "
            "or train again under another --name"
        )
    return [path for _, _, path in found]


def numbers_of(path: Path) -> tuple[int, int] | None:
    """(generation, updates) in the name of a numbered checkpoint; None: it has another name."""
    match = _NUMBERED.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None


def newest_generation(folder: Path) -> int:
    """The highest generation that has written a numbered checkpoint; 0: none."""
    return max((generation for generation, _, _ in _with_generations(Path(folder))), default=0)


def _with_generations(folder: Path) -> list[tuple[int, int, Path]]:
    """(generation, updates, path) of the numbered checkpoints, sorted."""
    found = ((numbers_of(path), path) for path in folder.glob("generation-*"))
    return sorted((*numbers, path) for numbers, path in found if numbers)


def latest(folder: Path) -> Path | None:
    """The newest numbered checkpoint, or None."""
    paths = numbered(folder)
    return paths[-1] if paths else None


def best(folder: Path) -> Path | None:
    """The best weights, or None before the first evaluation."""
    path = Path(folder) / BEST
    return path if path.exists() else None


def load_latest(folder: Path) -> Checkpoint | None:
    """The newest readable numbered checkpoint; unreadable newer ones are named in ``skipped``. None: there are none.

    Raises:
        SnapshotError: there are checkpoints, but none can be read.
    """
    skipped: list[str] = []
    for path in reversed(numbered(folder)):
        try:
            found = load(path)
        except SnapshotError as error:
            skipped.append(str(error))
            continue
        return Checkpoint(found.path, found.kind, found.arrays, found.metadata, tuple(skipped))
    if skipped:
        raise SnapshotError("no checkpoint of this run can be read:\n  " + "\n  ".join(skipped))
    return None


def load(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        SnapshotError: the file is missing, truncated, corrupt or was written by something else.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise SnapshotError(f"there is no checkpoint at {path}: look in the folder beside it for another one")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays: dict[str, Array] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise _unreadable(path, f"it is truncated or corrupt ({error})") from error
    if "format" not in header:
        raise _unreadable(path, "it was not written by apexrl")
    _check_format(path, header["format"])
    text, kind = header.get("metadata", ""), header.get("kind", "")
    if header.get("checksum") != _checksum(arrays, kind, text):
        raise _unreadable(path, "its checksum does not match: bytes were changed")
    return Checkpoint(path, "weights" if kind == "weights" else "state", arrays, json.loads(text))


def _check_format(path: Path, name: str) -> None:
    """Refuse a file of another format than this release or the one before wrote."""
    number = name.removeprefix(_FORMATS)
    if not name.startswith(_FORMATS) or not number.isdecimal() or len(number) > 6:
        raise _unreadable(path, "it was not written by apexrl")
    if int(number) > FORMAT:
        raise _unreadable(path, f"its format is {number}, of a newer apexrl; this one reads up to {FORMAT}")
    if int(number) < FORMAT - 1:
        raise _unreadable(
            path,
            f"its format is {number}, and this apexrl reads {FORMAT - 1} and {FORMAT}: resume it once with each "
            "release in between",
        )


def _unreadable(path: Path, why: str) -> SnapshotError:
    return SnapshotError(f"cannot read checkpoint {path}: {why}. Use another checkpoint of that folder, or train again")


def _write(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, Any], kind: Kind, fence: Fence | None
) -> None:
    """The safetensors format, written by hand: its own writer hides what the disk said, and sorts nothing."""
    kinds = {name: stored_dtype(name, value) for name, value in arrays.items()}
    solid = {name: np.ascontiguousarray(value).reshape(np.shape(value)) for name, value in arrays.items()}
    text = json.dumps(dict(metadata), sort_keys=True)
    about = {"checksum": _checksum(solid, kind, text), "format": f"{_FORMATS}{FORMAT}", "kind": kind, "metadata": text}
    header: dict[str, Any] = {"__metadata__": about}
    order = sorted(solid, key=lambda name: (-solid[name].itemsize, name))  # so every array lies aligned
    end = 0
    for name in order:
        value, begin = solid[name], end
        end += value.nbytes
        header[name] = {"dtype": kinds[name], "shape": value.shape, "data_offsets": (begin, end)}
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head = head.ljust(-(-len(head) // 8) * 8)
    check = _check(fence)
    check()
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    with replacing(path, check) as temporary, temporary.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in order:
            if solid[name].size:
                file.write(solid[name].reshape(-1).view(np.uint8).data)


def _check(fence: Fence | None) -> Callable[[], None]:
    return (lambda: None) if fence is None else fence.check


def _write_beside(path: Path, metadata: Mapping[str, Any], kind: Kind, fence: Fence | None) -> None:
    replace_text(path.with_suffix(".json"), json.dumps({"kind": kind, **metadata}, indent=2) + "\n", _check(fence))


def stored_dtype(name: str, value: Array) -> str:
    """The dtype of an array, as safetensors calls it.

    Raises:
        SpecError: it can have none in a checkpoint.
    """
    letter = {"b": "BOOL", "i": "I", "u": "U", "f": "F", "c": "C"}.get(value.dtype.kind)
    if letter is None or not value.dtype.isnative or value.dtype.itemsize > 8:
        raise SpecError(
            f"array {name!r} of the agent has dtype {value.dtype}: a checkpoint holds numbers and booleans only"
        )
    return letter if letter == "BOOL" else f"{letter}{8 * value.dtype.itemsize}"


def _checksum(arrays: Mapping[str, Array], kind: str, text: str) -> str:
    """CRC-32 over metadata and every array's name, dtype, shape and bytes."""
    crc = zlib.crc32(f"{kind}\n{text}".encode())
    for name in sorted(arrays):
        value = arrays[name]
        crc = zlib.crc32(f"{name}|{value.dtype.str}|{value.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, crc) if value.size else crc
    return f"{crc:08x}"
