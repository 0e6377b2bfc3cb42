"""Save and load: priorities, keys, counters and draws go on exactly; damaged files are refused."""

from __future__ import annotations

import numpy as np
import pytest

from apexrl.errors import SnapshotError
from apexrl.replay import Field, Replay

FIELDS = {"number": Field((), "int64"), "image": Field((10, 10), "uint8")}


def rows(first, count):
    number = np.arange(first, first + count)
    return {"number": number, "image": np.broadcast_to((number % 256)[:, None, None], (count, 10, 10)).astype("u1")}


def filled(**options):
    replay = Replay(500, FIELDS, alpha=0.7, seed=4, **options)
    writer = replay.writer()
    for first in range(0, 1200, 40):
        writer.extend(rows(first, 40), priorities=np.random.default_rng(first).uniform(0.1, 9, 40))
    replay.update_priorities(replay.sample(64).keys, np.linspace(0.1, 20, 64))
    return replay


def test_a_loaded_replay_goes_on_exactly(tmp_path):
    path = tmp_path / "replay.snapshot"
    with filled() as replay:
        keys = replay.sample(32).keys.copy()
        replay.save(path)
        with Replay.load(path) as loaded:
            assert len(loaded) == len(replay)
            for name in ("inserted", "sampled", "evicted", "max_priority", "capacity"):
                assert loaded.stats()[name] == replay.stats()[name]
            for _ in range(5):
                a, b = replay.sample(64), loaded.sample(64)
                np.testing.assert_array_equal(a.keys, b.keys)
                np.testing.assert_array_equal(a.probabilities, b.probabilities)
                np.testing.assert_array_equal(a.data["number"], b.data["number"])
                np.testing.assert_array_equal(b.data["image"][:, 3, 3], b.data["number"] % 256)
                assert replay.update_priorities(a.keys, np.ones(64)) == loaded.update_priorities(b.keys, np.ones(64))
            assert loaded.update_priorities(keys, np.ones(32)).stale == 0
            old = replay.sample(400).keys.copy()
            loaded.writer().extend(rows(1200, 600))  # all that was saved is gone now
            assert loaded.update_priorities(old, np.full(400, 99.0)).applied == 0
            assert loaded.sample(400).data["number"].min() >= 1200
            assert loaded._check() == 0.0


def test_streams_are_saved_with_their_open_chunks(tmp_path):
    fields = {"observation": Field((), "float32"), "action": Field((), "int64")}
    with Replay(4000, fields, kind="transition", n_step=2, stack=2) as replay:
        writer = replay.writer(streams=1)
        for t in range(100):
            writer.append(
                {
                    "observation": np.array([t], "f4"), "action": np.array([t]), "reward": np.ones(1, "f4"),
                    "terminated": np.array([False]), "truncated": np.array([t % 30 == 29]),
                }
            )  # fmt: skip
        size = len(replay)
        replay.save(tmp_path / "s")
        with Replay.load(tmp_path / "s") as loaded:
            assert len(loaded) == size > 64
            batch = loaded.sample(300)
            np.testing.assert_array_equal(batch.data["observation"][:, 1], batch.data["action"])


def test_damaged_files_are_refused_and_the_old_one_kept(tmp_path):
    path = tmp_path / "replay.snapshot"
    with filled() as replay:
        replay.save(path)
        whole = path.read_bytes()
        replay.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["replay.snapshot"]
    rng = np.random.default_rng(0)
    for length in [0, 5, 16, 60, 400, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(SnapshotError, match=r"replay\.snapshot"):
            Replay.load(path)
    for _ in range(60):
        at = int(rng.integers(0, len(whole)))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        with pytest.raises(SnapshotError, match=r"replay\.snapshot"):
            Replay.load(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(SnapshotError):
        Replay.load(path)
    with pytest.raises(SnapshotError, match="cannot open"):
        Replay.load(tmp_path / "absent")
