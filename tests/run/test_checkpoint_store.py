"""Copies of checkpoints in an object store: whole or not taken, pruned, and of the newest generation."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import numpy as np
import pytest

from apexrl.config import Config
from apexrl.errors import ConfigError, LinkError, SnapshotError
from apexrl.run import checkpoint, checkpoint_store, object_store
from apexrl.run.checkpoint_store import RunCopies, restore
from apexrl.run.folder import RunFolder
from apexrl.run.object_store import ObjectStore
from apexrl.run.ownership import Fence, Generations
from failing_store import FailingStore

PROGRESS = {"env_steps": 100.0, "wall_seconds": 7.0, "best_eval_return": None}


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(f"file://{tmp_path}/store", "r")


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """Where the store keeps them."""
    return tmp_path / "store" / "r"


class Run:
    """A run folder whose learner writes checkpoints."""

    def __init__(self, path: Path, generation: int = 1) -> None:
        path.mkdir(parents=True)
        self.folder = RunFolder(path)
        self.folder.write_config(Config())
        self.folder.hosts_path.write_text('{"run": "r"}')
        self.folder.generations.begin(generation - 1)
        self.generation = generation

    def save(self, updates: int, size: int = 3) -> Path:
        fence = Fence(self.folder.path, "learner-0", self.generation)
        state = {"w": np.full(size, updates, np.float32)}
        return checkpoint.save(self.folder.checkpoints, state, {"updates": updates}, keep=2, fence=fence)

    def best(self) -> None:
        checkpoint.save_best(self.folder.checkpoints, {"w": np.zeros(3, np.float32)}, {"updates": 1})


def value(folder: Path) -> float:
    found = checkpoint.load_latest(folder / "checkpoints")
    assert found is not None
    return float(found.arrays["w"][0])


def test_a_copy_has_all_that_a_resume_needs(store: ObjectStore, tmp_path: Path) -> None:
    run = Run(tmp_path / "here")
    run.best()
    run.save(1)
    (run.folder.checkpoints / "replay").write_bytes(bytes(5_000_000))  # by its path, not through memory
    run.folder.metrics_path.write_text('{"kind": "status"}\n')
    copies = RunCopies(store, run.folder.path, 1)
    assert copies.copy(PROGRESS) > 5_000_000
    assert copies.copy(PROGRESS) == 0  # nothing is written twice
    run.save(2)
    assert 0 < copies.copy(PROGRESS) < 100_000
    there = tmp_path / "there"
    restored = restore(store, there)
    assert restored is not None
    assert (restored.newest, restored.skipped) == ((1, 2), ())
    assert value(there) == 2.0
    for name in ("config.toml", "hosts.json", "metrics.jsonl", "checkpoints/best.safetensors", "checkpoints/replay"):
        assert (there / name).read_bytes() == (run.folder.path / name).read_bytes()
    assert RunFolder.open(there).summary() == {**PROGRESS}
    assert Generations(there).begin(1) == 2
    assert restore(store, there, newer_than=(1, 2)) is None


def test_old_objects_go_and_the_number_of_those_kept_does_not_grow(
    store: ObjectStore, objects: Path, tmp_path: Path
) -> None:
    run = Run(tmp_path / "here")
    copies = RunCopies(store, run.folder.path, 1)
    sizes = []
    for updates in range(1, 9):
        run.save(updates)
        copies.copy(PROGRESS)
        sizes.append(len(list((objects / "generation-0001").iterdir())))
    assert sizes[-3:] == [7, 7, 7]  # two manifests, three checkpoints of theirs, settings and identity
    successor = Run(tmp_path / "next", generation=2)
    successor.save(3)
    RunCopies(store, successor.folder.path, 2).copy(PROGRESS)
    assert [one.name for one in objects.iterdir()] == ["generation-0002"]


def test_what_was_cut_short_is_never_taken(store: ObjectStore, objects: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "here")
    copies = RunCopies(store, run.folder.path, 1)
    for updates in (1, 2):
        run.save(updates)
        copies.copy(PROGRESS)
    manifests = sorted(objects.glob("*/manifest-*"))
    newest = next(objects.glob("*/*update-000000002*"))
    whole = newest.read_bytes()

    newest.write_bytes(whole[:-1])
    restored = restore(store, tmp_path / "a")
    assert restored is not None
    assert (restored.newest, value(tmp_path / "a")) == ((1, 1), 1.0)
    assert "was cut short or changed" in restored.skipped[0]

    newest.write_bytes(whole)
    manifests[-1].write_bytes(manifests[-1].read_bytes()[:-10])
    assert restore(store, tmp_path / "b") is not None
    assert value(tmp_path / "b") == 1.0
    for path in manifests:
        path.write_text("garbage")
    assert restore(store, tmp_path / "c") is None  # as if there were none
    assert not (tmp_path / "c").exists()


def test_where_no_copy_is_whole_nothing_begins_anew(store: ObjectStore, objects: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "here")
    run.save(1)
    RunCopies(store, run.folder.path, 1).copy(PROGRESS)
    next(objects.glob("*/*update*")).unlink()
    with pytest.raises(SnapshotError, match=r"no copy in .* is whole"):
        restore(store, tmp_path / "there")
    assert not (tmp_path / "there" / "config.toml").exists()


def test_one_that_was_replaced_and_writes_on_changes_nothing(store: ObjectStore, tmp_path: Path) -> None:
    old, new = Run(tmp_path / "old"), Run(tmp_path / "new", generation=2)
    stale = RunCopies(store, old.folder.path, 1)
    old.save(5)
    stale.copy(PROGRESS)
    new.save(1)
    RunCopies(store, new.folder.path, 2).copy(PROGRESS)
    old.save(6)
    stale.copy(PROGRESS)
    restored = restore(store, tmp_path / "there")
    assert restored is not None
    assert restored.newest == (2, 1)
    with pytest.raises(LinkError, match="has copies of generation 2, and this is 1: another run has that name"):
        RunCopies(store, old.folder.path, 1)


def test_a_manifest_names_no_file_outside_of_the_folder(store: ObjectStore, objects: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "here")
    run.save(1)
    RunCopies(store, run.folder.path, 1).copy(PROGRESS)
    (path,) = objects.glob("*/manifest-*")
    values = json.loads(path.read_bytes().partition(b"\n")[2])
    for name, stored in (("../evil", {}), ("config.toml", {"object": "../../../etc/passwd"})):
        wrong = {**values, "files": {**values["files"], name: {**values["files"]["config.toml"], **stored}}}
        body = json.dumps(wrong).encode()
        path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        assert restore(store, tmp_path / "there") is None


def test_a_store_that_refuses_or_hangs_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailingStore.begin()
    store = ObjectStore("failing://user:secret@bucket/prefix", "r", seconds=0.2)
    assert "secret" not in store.shown
    store.check()
    FailingStore.refuse = staticmethod(lambda path: True)
    with pytest.raises(LinkError, match="cannot be written: PermissionError"):
        store.check()
    FailingStore.begin()
    FailingStore.hold.clear()
    began = time.monotonic()
    for _ in range(object_store._MOST_LEFT_BEHIND):
        with pytest.raises(LinkError, match="no answer within"):
            store.write("x", b"x")
    with pytest.raises(LinkError, match="earlier requests have not been answered"):
        store.write("x", b"x")
    assert time.monotonic() - began < 30.0
    FailingStore.hold.set()


@pytest.mark.parametrize(
    ("url", "words"),
    [("runs/here", "no URL of an object store"), ("nope://bucket", r"cannot be used .*nope.*apexrl\[object-store\]")],
)
def test_what_is_no_store_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ObjectStore(url)


def test_logs_that_are_long_are_copied_at_the_end_alone(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "MOST_LOG_BYTES", 10)
    run = Run(tmp_path / "here")
    run.save(1)
    run.folder.metrics_path.write_text('{"kind": "status"}\n')
    copies = RunCopies(store, run.folder.path, 1)
    for last in (False, True):
        copies.copy(PROGRESS, last)
        restore(store, tmp_path / f"{last}")
        assert (tmp_path / f"{last}" / "metrics.jsonl").exists() == last
