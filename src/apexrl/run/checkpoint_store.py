"""Copies of a run's checkpoints in an object store.

    URL/NAME/generation-0002/0f3c…-best.safetensors        objects, named by what they hold; none is ever changed
    URL/NAME/generation-0002/manifest-00000007.json        what belongs together, with sizes and SHA-256

A manifest is written when all that it names is there, and holds a checksum of its own. So an upload that was cut short
is never taken for a checkpoint, also where a store writes in place. Each generation of the run has a folder: one that
was replaced, and writes on, changes nothing of its successor's. The newest copy is that of the highest generation with
a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from apexrl.errors import LinkError, SnapshotError
from apexrl.run.atomic_files import open_plain, replace_text, replacing
from apexrl.run.checkpoint import BEST, numbers_of
from apexrl.run.object_store import ObjectStore
from apexrl.run.ownership import GENERATIONS_FILE, Generations

MOST_LOG_BYTES: Final = 4 << 20
"""Of ``metrics.jsonl``, which grows all the time: a longer one is copied at the end of the run alone."""

_FORMAT: Final = "apexrl-store-1"
_KEPT_MANIFESTS: Final = 2
_MOST_MANIFEST: Final = 1 << 20
_CONFIG, _HOSTS, _LOG, _SUMMARY = "config.toml", "hosts.json", "metrics.jsonl", "summary.json"
_BESIDE: Final = (_CONFIG, _HOSTS, "env_spec.json", "env_change.json", _LOG, _SUMMARY)
_NAME: Final = re.compile(
    "|".join(map(re.escape, _BESIDE))
    + r"|checkpoints/(best\.safetensors|replay|generation-\d+-update-\d+\.safetensors)"
)
_FOLDER: Final = re.compile(r"generation-(\d{4,9})")
_MANIFEST: Final = re.compile(r"manifest-(\d{8,12})\.json")
_OBJECT: Final = re.compile(r"[0-9a-f]{32}-[\w.-]{1,100}", re.ASCII)
_NONE: Final = (0, 0)

Number = tuple[int, int]
"""(generation, updates) of a checkpoint; (0, 0): none."""


class Stored(msgspec.Struct, frozen=True):
    """One file of a run: the object with its bytes."""

    object: str
    nbytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What belongs together. ``progress``: counters of the run, as its summary has them."""

    format: str
    files: dict[str, Stored]
    progress: dict[str, float | None]

    @property
    def newest(self) -> Number:
        return max((numbers_of(Path(name)) or _NONE for name in self.files), default=_NONE)


class Place(NamedTuple):
    """Where a manifest lies."""

    generation: int
    number: int

    @property
    def folder(self) -> str:
        return f"generation-{self.generation:04d}"

    @property
    def name(self) -> str:
        return f"{self.folder}/manifest-{self.number:08d}.json"


@dataclass(frozen=True)
class Restored:
    """What ``restore`` brought: the newest checkpoint's number, and why some files were not used."""

    newest: Number
    skipped: tuple[str, ...]


def generations(store: ObjectStore) -> list[int]:
    """Of the runs that have written there, in order. Raises LinkError."""
    found = (_FOLDER.fullmatch(name) for name in store.names())
    return sorted(int(match[1]) for match in found if match)


def manifests(store: ObjectStore) -> Iterator[tuple[Place, Manifest]]:
    """Those that can be read, newest first; those without a checkpoint after all that have one. Raises LinkError."""
    bare: list[tuple[Place, Manifest]] = []
    for generation in reversed(generations(store)):
        for number in reversed(_numbers(store, generation)):
            place = Place(generation, number)
            manifest = _read(store, place)
            if manifest is not None and manifest.newest > _NONE:
                yield place, manifest
            elif manifest is not None:
                bare.append((place, manifest))
    yield from bare


def restore(store: ObjectStore, folder: Path, newer_than: Number | None = None) -> Restored | None:
    """Bring the newest whole copy into a run folder; files that are there are not fetched again.

    Args:
        newer_than: only if its newest checkpoint is newer than this one.

    Returns:
        None: there is no copy, or none that is newer.

    Raises:
        LinkError: the store does not answer.
        SnapshotError: there are copies, but none is whole.
        OSError: the folder cannot be written.
    """
    skipped: list[str] = []
    for place, manifest in manifests(store):
        if newer_than is not None and manifest.newest <= newer_than:
            return None
        try:
            found = _fetch(store, place, manifest, folder, skipped)
        except (SnapshotError, FileNotFoundError) as error:
            skipped.append(str(error))
            continue
        _fence_off(folder, max(generations(store)))
        if not (folder / _SUMMARY).exists():
            replace_text(folder / _SUMMARY, json.dumps(manifest.progress, indent=2) + "\n")
        return Restored(found, tuple(skipped))
    if skipped:
        raise SnapshotError(f"no copy in {store.shown} is whole:\n  " + "\n  ".join(skipped))
    return None


class RunCopies:
    """Writes copies of one generation of a run. For one thread.

    Args:
        generation: of the run, from ``Generations``.

    Raises:
        LinkError: the store does not answer, or has the copies of another run under that name.
    """

    def __init__(self, store: ObjectStore, folder: Path, generation: int) -> None:
        self._store, self._folder = store, folder
        self._place = Place(generation, 0)
        self._stored: dict[tuple[str, int, int], Stored] = {}  # (name, mtime, size) of a file -> its object
        self._manifests: list[tuple[Place, Manifest]] = []
        if any(one >= generation for one in generations(store)):
            raise LinkError(
                f"{store.shown} has copies of generation {max(generations(store))}, and this is {generation}: another "
                "run has that name, or went on elsewhere. Go on with that (apexrl resume URL), or choose another name"
            )

    def stamp(self) -> dict[str, tuple[int, int]]:
        """Every file whose change makes a new copy worth while -> its time of change and size."""
        return {name: _stamp(path) for name, path in self._files() if name not in (_LOG, _SUMMARY) and path.exists()}

    def copy(self, progress: Mapping[str, float | None], last: bool = False) -> int:
        """Copy what is new, and name all of it in a manifest; then remove what nobody needs.

        Args:
            last: the log is copied however long it is.

        Returns:
            Bytes of the objects that were written.

        Raises:
            LinkError, OSError: nothing of this is taken for a copy; call again.
        """
        files: dict[str, Stored] = {}
        written = 0
        for name, path in self._files():
            try:
                if name == _LOG and not last and path.stat().st_size > MOST_LOG_BYTES:
                    continue
                files[name], nbytes = self._put(name, path)
                written += nbytes
            except FileNotFoundError:
                continue  # an older checkpoint, which has just given way to a newer one
        manifest = Manifest(_FORMAT, files, dict(progress))
        self._place = Place(self._place.generation, self._place.number + 1)
        body = msgspec.json.encode(manifest)
        self._store.write(self._place.name, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        self._manifests = [*self._manifests, (self._place, manifest)][-_KEPT_MANIFESTS:]
        with suppress(LinkError):  # tried again with the next copy
            self._prune()
        return written

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Those of the run that are there, by their names; the newest checkpoint last, as older ones give way to it."""
        for name in _BESIDE:
            if (self._folder / name).is_file():
                yield name, self._folder / name
        checkpoints = self._folder / "checkpoints"
        for path in (checkpoints / BEST, checkpoints / "replay", *sorted(checkpoints.glob("generation-*.safetensors"))):
            if path.is_file() and _NAME.fullmatch(name := f"checkpoints/{path.name}"):
                yield name, path

    def _put(self, name: str, path: Path) -> tuple[Stored, int]:
        with open_plain(path) as file:  # the file as it is now, whatever takes its place meanwhile
            status = os.fstat(file.fileno())
            key = name, status.st_mtime_ns, status.st_size
            if key in self._stored:
                return self._stored[key], 0
            data = file.read(status.st_size) if status.st_size <= MOST_LOG_BYTES or name == _LOG else None
            if data is None:
                digest = _sha256(file)
            else:
                digest = hashlib.sha256(data).hexdigest()
            nbytes = status.st_size if data is None else len(data)
            stored = Stored(f"{digest[:32]}-{path.name}", nbytes, digest)
            where = f"{self._place.folder}/{stored.object}"
            if data is None:
                own = f"/proc/self/fd/{file.fileno()}"
                self._store.put(where, own if Path(own).exists() else str(path), nbytes)
            else:
                self._store.write(where, data)
        self._stored = {kept: one for kept, one in self._stored.items() if kept[0] != name}
        self._stored[key] = stored
        return stored, nbytes

    def _prune(self) -> None:
        """Remove what the newest manifests do not name, and the folders of earlier generations."""
        named = {one.object for _, manifest in self._manifests for one in manifest.files.values()}
        named |= {place.name.rpartition("/")[2] for place, _ in self._manifests}
        folder = self._place.folder
        for name in self._store.names(folder):
            if name not in named and (_OBJECT.fullmatch(name) or _MANIFEST.fullmatch(name)):
                self._store.delete(f"{folder}/{name}")
        if self._manifests[-1][1].newest > _NONE:
            for generation in generations(self._store):
                if generation < self._place.generation:
                    self._store.delete(Place(generation, 0).folder, folder=True)


def _numbers(store: ObjectStore, generation: int) -> list[int]:
    found = (_MANIFEST.fullmatch(name) for name in store.names(Place(generation, 0).folder))
    return sorted(int(match[1]) for match in found if match)


def _read(store: ObjectStore, place: Place) -> Manifest | None:
    """A manifest; None: it was cut short, or is none."""
    try:
        checksum, _, body = store.read(place.name, _MOST_MANIFEST).partition(b"\n")
        manifest = msgspec.json.decode(body, type=Manifest)
    except (FileNotFoundError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    sound = checksum == hashlib.sha256(body).hexdigest().encode() and manifest.format == _FORMAT
    named = all(_NAME.fullmatch(name) and _OBJECT.fullmatch(one.object) for name, one in manifest.files.items())
    return manifest if sound and named and _CONFIG in manifest.files else None


def _fetch(store: ObjectStore, place: Place, manifest: Manifest, folder: Path, skipped: list[str]) -> Number:
    """The number of the newest checkpoint that is whole. Raises SnapshotError: there is none, or no settings."""

    def fetch(name: str) -> None:
        stored = manifest.files[name]
        _fetch_one(store, f"{place.folder}/{stored.object}", stored, folder / name)

    newest = _NONE
    for name in manifest.files.keys() - {_CONFIG}:
        try:
            fetch(name)
        except (SnapshotError, FileNotFoundError) as error:
            if name == _HOSTS:
                raise
            skipped.append(str(error))
            continue
        newest = max(newest, numbers_of(Path(name)) or _NONE)
    if newest == _NONE and manifest.newest > _NONE:
        raise SnapshotError(f"no checkpoint of {store.shown}/{place.name} is whole")
    fetch(_CONFIG)  # it makes the folder a run's
    return newest


def _fetch_one(store: ObjectStore, name: str, stored: Stored, path: Path) -> None:
    if _same(path, stored):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        store.get(name, temporary, stored.nbytes)
        if not _same(temporary, stored):
            raise SnapshotError(f"{store.shown}/{name} is not what was written there: it was cut short or changed")


def _same(path: Path, stored: Stored) -> bool:
    try:
        with open_plain(path) as file:
            whole = os.fstat(file.fileno()).st_size == stored.nbytes
            return whole and _sha256(file) == stored.sha256
    except (OSError, SnapshotError):
        return False


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _fence_off(folder: Path, least: int) -> None:
    """Let the next generation of the run be higher than any that has written into the store."""
    known = Generations(folder)
    if known.newest("") < least:
        replace_text(folder / GENERATIONS_FILE, json.dumps({"run": least}) + "\n")
