from __future__ import annotations

import errno
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from apexrl.errors import SnapshotError, SpecError
from apexrl.run import checkpoint
from apexrl.run.atomic_files import remove_leftovers, replace_text, replacing

ARRAYS: dict[str, Any] = {
    "net.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "adam/step": np.array(7, dtype=np.int64),
    "rng": np.frombuffer(b"\x00\x01\xff", dtype=np.uint8),
    "done": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float64),
    "transposed": np.arange(6.0).reshape(2, 3).T,
}


def same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert set(left) == set(right)
    for name, value in left.items():
        assert right[name].dtype == value.dtype
        assert right[name].shape == value.shape
        np.testing.assert_array_equal(right[name], value)


def test_equal_contents_are_equal_files(tmp_path: Path) -> None:
    metadata = {"updates": 12, "note": 'ü \x01 \x7f ☃ "quoted" \\ \n'}
    written = {checkpoint.save(tmp_path / str(n), ARRAYS, metadata).read_bytes() for n in range(12)}
    assert len(written) == 1  # metadata of four entries would else come in 24 orders
    assert checkpoint.load(tmp_path / "0" / "generation-0000-update-000000012.safetensors").metadata == {
        **metadata,
        "generation": 0,
    }


def test_round_trip(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, ARRAYS, {"updates": 1200, "env_steps": 5, "note": "ü"})
    assert path.name == "generation-0000-update-000001200.safetensors"
    found = checkpoint.load(path)
    same(ARRAYS, found.arrays)
    assert found.metadata == {"updates": 1200, "env_steps": 5, "note": "ü", "generation": 0}
    assert found.kind == "state"
    assert json.loads(path.with_suffix(".json").read_text())["updates"] == 1200


DTYPES = st.sampled_from(
    [np.float32, np.float64, np.int64, np.int32, np.uint8, np.uint64, np.bool_, np.float16, np.int16]
)


@settings(max_examples=30, deadline=None)
@given(
    arrays=st.dictionaries(
        st.text("abc./_é", min_size=1, max_size=8),
        DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, max_side=4))),
        max_size=4,
    )
)
def test_any_arrays_round_trip(arrays: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = checkpoint.save(tmp_path_factory.mktemp("c"), arrays, {"updates": 0})
    same(arrays, checkpoint.load(path).arrays)


def test_old_ones_are_pruned_and_best_stays(tmp_path: Path) -> None:
    checkpoint.save_best(tmp_path, ARRAYS, {"updates": 1, "eval_return": 3.0})
    for updates in (1, 10, 100, 1000):
        checkpoint.save(tmp_path, ARRAYS, {"updates": updates}, keep=2)
    assert [path.name for path in checkpoint.numbered(tmp_path)] == [
        "generation-0000-update-000000100.safetensors",
        "generation-0000-update-000001000.safetensors",
    ]
    assert checkpoint.latest(tmp_path) == checkpoint.numbered(tmp_path)[-1]
    best = checkpoint.best(tmp_path)
    assert best is not None
    assert checkpoint.load(best).kind == "weights"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        f"{stem}.{end}"
        for stem in ("best", "generation-0000-update-000000100", "generation-0000-update-000001000")
        for end in ("json", "safetensors")
    }


def test_numbers_beyond_the_padding_sort_by_value(tmp_path: Path) -> None:
    for updates in (2_000_000_000, 999_999_999):
        checkpoint.save(tmp_path, {}, {"updates": updates})
    assert checkpoint.load(checkpoint.latest(tmp_path) or tmp_path).metadata["updates"] == 2_000_000_000


def test_nothing_there(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None
    assert checkpoint.best(tmp_path) is None
    assert checkpoint.load_latest(tmp_path) is None
    with pytest.raises(SnapshotError, match="there is no checkpoint"):
        checkpoint.load(tmp_path / "update-1.safetensors")


def test_truncated_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, ARRAYS, {"updates": 1})
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    assert header < len(whole) - 4
    for size in {0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, len(whole) - 8, len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(SnapshotError, match="generation-0000-update-000000001"):
            checkpoint.load(path)
    path.write_bytes(whole + b"\x00")
    with pytest.raises(SnapshotError, match="generation-0000-update-000000001"):
        checkpoint.load(path)


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, {"a": np.arange(4, dtype=np.int32), "b": np.ones(3)}, {"updates": 1})
    whole = path.read_bytes()
    original = checkpoint.load(path)
    unnoticed = []
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x01
        path.write_bytes(changed)
        try:
            found = checkpoint.load(path)
        except SnapshotError:
            continue
        if found.metadata != original.metadata or any(
            not np.array_equal(found.arrays[name], original.arrays[name]) for name in original.arrays
        ):
            unnoticed.append(position)
    assert not unnoticed


def test_foreign_files(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "generation-0000-update-000000003.safetensors"
    save_file({"a": np.ones(3)}, path)
    with pytest.raises(SnapshotError, match="not written by apexrl"):
        checkpoint.load(path)
    save_file({"a": np.ones(3)}, path, metadata={"format": "apexrl-checkpoint-99"})
    with pytest.raises(SnapshotError, match="its format is 99, of a newer apexrl"):
        checkpoint.load(path)
    path.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(SnapshotError, match="truncated or corrupt"):
        checkpoint.load(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(SnapshotError):
        checkpoint.load(path)


def test_the_newest_readable_one_is_found(tmp_path: Path) -> None:
    for updates in (1, 2, 3):
        checkpoint.save(tmp_path, ARRAYS, {"updates": updates})
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    newest.write_bytes(newest.read_bytes()[:-3])
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found.metadata["updates"] == 2
    assert len(found.skipped) == 1
    assert newest.name in found.skipped[0]
    for path in checkpoint.numbered(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(SnapshotError, match="no checkpoint of this run can be read"):
        checkpoint.load_latest(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save_best(tmp_path, ARRAYS, {"updates": 1})
    monkeypatch.setattr(os, "replace", _raise)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save_best(tmp_path, {"other": np.ones(2)}, {"updates": 2})
    best = checkpoint.best(tmp_path)
    assert best is not None
    assert checkpoint.load(best).metadata["updates"] == 1
    assert not list(tmp_path.glob(".writing-*"))


def _raise(*_: object) -> None:
    raise OSError("disk full")


def test_files_have_the_mode_that_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = checkpoint.save(tmp_path, ARRAYS, {"updates": 1})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == path.with_suffix(".json").stat().st_mode & 0o777 == 0o640


def test_leftovers_of_dead_processes_go(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with replacing(tmp_path / "best.safetensors") as temporary:
            temporary.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert [path.name.endswith("best.safetensors") for path in tmp_path.iterdir()] == [True]
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_another_container_writes_is_no_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ids mean nothing here: one that is dead here may be that of a writer there."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with monkeypatch.context() as there:
        there.setattr(os, "getpid", lambda: pid)
        writing = replacing(tmp_path / "best.safetensors")
        temporary = writing.__enter__()
    temporary.write_bytes(b"half")
    remove_leftovers(tmp_path)
    assert temporary.read_bytes() == b"half"
    writing.__exit__(None, None, None)
    assert (tmp_path / "best.safetensors").read_bytes() == b"half"


def test_a_disk_that_is_full_says_so_and_keeps_what_there_was(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: nobody needs to be root for it."""
    for updates in (1, 2):
        checkpoint.save(tmp_path, ARRAYS, {"updates": updates}, keep=2)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            checkpoint.save(tmp_path, {"large": np.ones(1 << 20, np.uint8)}, {"updates": 3}, keep=2)
        except OSError as error:
            os._exit(error.errno or 0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EFBIG
    assert [path.stem[16:] for path in checkpoint.numbered(tmp_path)] == ["update-000000001", "update-000000002"]
    assert len(list(tmp_path.iterdir())) == 4  # nothing half-written makes the disk fuller


def test_what_no_checkpoint_can_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'names' of the agent has dtype object"):
        checkpoint.save(tmp_path, {"names": np.array([object()])}, {"updates": 1})


def test_replace_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_text(path, "old")
    replace_text(path, "new ü")
    assert path.read_text(encoding="utf-8") == "new ü"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_checkpoints_of_this_format_and_the_one_before_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint.save(tmp_path, {"w": np.ones(3, np.float32)}, {"updates": 1})
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    assert checkpoint.load(path).metadata["updates"] == 1
    newer = checkpoint.save(tmp_path, {"w": np.ones(3, np.float32)}, {"updates": 2})
    monkeypatch.setattr(checkpoint, "FORMAT", 3)
    assert checkpoint.load(newer).metadata["updates"] == 2
    with pytest.raises(SnapshotError, match="its format is 1, and this apexrl reads 2 and 3: resume it once with each"):
        checkpoint.load(path)
    monkeypatch.setattr(checkpoint, "FORMAT", 1)
    with pytest.raises(SnapshotError, match="its format is 2, of a newer apexrl"):
        checkpoint.load(newer)
