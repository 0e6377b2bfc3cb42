"""Save and load: priorities, keys, counters and draws go on exactly; damaged files are refused."""

from __future__ import annotations

import multiprocessing
import time

import numpy as np
import pytest

from apexrl.errors import OwnershipError, SnapshotError
from apexrl.replay import Field, Replay, snapshot
from apexrl.replay.snapshot import taken, write

SPAWN = multiprocessing.get_context("spawn")
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
            assert loaded.core.native.check() == 0.0


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


STEPS = {"observation": Field((2,), "float32"), "state": Field((3,), "float32", per_item=True)}


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "fifo"},
        {"sampler": "uniform", "draws": "independent"},
        {"remover": "proportional", "alpha": 0.6},
        {"trim_every": 7},
        {"sampler": "lifo", "max_times_sampled": 1},
        {"sampler": "max_heap", "remover": "min_heap"},
        {"fields": STEPS, "kind": "sequence", "length": 5, "stride": 2, "burn_in": 3},
        {"fields": STEPS, "kind": "unroll", "length": 4, "sampler": "fifo", "streams": 2},
        {"fields": STEPS, "kind": "transition", "stack": 2, "n_step": 2, "remover": "proportional"},
    ],
    ids=str,
)
def test_every_kind_goes_on_exactly(tmp_path, options):
    if options.get("kind") == "transition":
        options = {**options, "fields": {"observation": STEPS["observation"]}}

    def play(replay, writer, turns, seed):
        """The same calls on whatever replay (without a writer: draws and updates only); answers all that was drawn."""
        rng, drawn, t = np.random.default_rng(seed), [], 0
        for _ in range(turns):
            if writer is None:
                pass
            elif "kind" in options:
                for _ in range(30):
                    t += 1
                    at = np.arange(2)[:, None] * 1000 + t
                    step = {"observation": np.repeat(at, 2, 1).astype("f4"), "state": np.repeat(at, 3, 1).astype("f4")}
                    flags = {"reward": rng.random(2), "terminated": rng.random(2) < 0.1, "truncated": [False, False]}
                    writer.append(
                        {**{name: step[name] for name in replay.core.layout.names() if name in step}, **flags}
                    )
            else:
                writer.extend(rows(int(rng.integers(0, 9999)), 25), priorities=rng.random(25) + 0.01)
            if len(replay) >= 10:
                batch = replay.sample(10, normalize="buffer")
                drawn.append({**batch.data, "probabilities": batch.probabilities, "weights": batch.weights})
                replay.update_priorities(batch.keys, rng.random(10) + 0.01)
                drawn.append({"size": np.int64(len(replay))})
        return drawn

    path = tmp_path / "snapshot"
    with Replay(400, **{"fields": FIELDS, "seed": 4, "writers": 1, **options}) as replay:
        streams = {"streams": 2} if "kind" in options else {}
        with replay.writer(**streams) as writer:
            play(replay, writer, 16, 1)
        replay.save(path)
        with Replay.load(path) as loaded:
            assert loaded.stats()["sampled"] == replay.stats()["sampled"]
            for name in ("inserted", "evicted", "size", "max_priority"):
                assert loaded.stats()[name] == replay.stats()[name], name
            first, second = play(replay, None, 20, 2), play(loaded, None, 20, 2)
            assert len(first) == len(second) > 8
            if options.get("sampler") == "fifo" and streams:  # the order of each stream is kept, not that between them
                for stream in range(2):
                    ours, theirs = (
                        [
                            at
                            for d in all_drawn
                            for at in d.get("observation", np.empty((0, 1, 1)))[:, 0, 0]
                            if at // 1000 == stream
                        ]
                        for all_drawn in (first, second)
                    )
                    assert len(ours) > 20
                    assert all(a == b for a, b in zip(ours, theirs, strict=False))
                first = second = []
            for a, b in zip(first, second, strict=True):
                for name in a:
                    np.testing.assert_array_equal(a[name], b[name], err_msg=name)
            with loaded.writer(**streams) as writer:  # where new items go in memory may differ from now on
                assert len(play(loaded, writer, 20, 3)) > 20
            assert loaded.core.native.check() == 0.0


def write_for_ever(replay, seed):
    writer, rng = replay.writer(), np.random.default_rng(seed)
    while True:
        writer.extend(rows(int(rng.integers(0, 1 << 40)), 17), timeout=60)


def test_saving_goes_on_beside_writers(tmp_path):
    path = tmp_path / "snapshot"
    with Replay(20_000, FIELDS, writers=3) as replay:
        processes = [SPAWN.Process(target=write_for_ever, args=(replay, k), daemon=True) for k in range(2)]
        for process in processes:
            process.start()
        try:
            replay.sample(8, timeout=30)
            for _ in range(8):
                before = replay.stats()["inserted"]
                replay.save(path)
                with Replay.load(path) as loaded:
                    data = loaded.sample(512).data
                    np.testing.assert_array_equal(
                        data["image"], np.broadcast_to((data["number"] % 256)[:, None, None], (512, 10, 10))
                    )
                    assert before <= loaded.stats()["inserted"]
                    assert 0 < len(loaded) <= 20_000
                    assert loaded.core.native.check() == 0.0
            assert replay.stats()["inserted"] > before  # nobody waited for the file
        finally:
            for process in processes:
                process.kill()
                process.join()


def save_for_ever(replay, path, pipe):
    replay.sample(8)
    pipe.send(None)
    while True:
        replay.save(path)


def test_a_save_that_is_killed_leaves_the_one_before(tmp_path):
    path = tmp_path / "snapshot"
    with Replay(50_000, FIELDS) as replay:
        replay.writer().extend(rows(0, 40_000))
        for delay in (0.0, 0.02, 0.05):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=save_for_ever, args=(replay, path, theirs), daemon=True)
            process.start()
            assert ours.poll(120)
            while not path.exists():
                time.sleep(0.001)
            time.sleep(delay)
            process.kill()
            process.join()
            with Replay.load(path) as loaded:
                assert len(loaded) == 40_000
        replay.save(path)
        assert [p.name for p in tmp_path.iterdir()] == ["snapshot"]  # what the killed ones had begun is gone


def test_a_disk_that_fails_keeps_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "snapshot"
    with filled() as replay:
        replay.save(path)
        whole = path.read_bytes()

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(snapshot, "_write_block", full)
        with pytest.raises(SnapshotError, match=f"cannot write the replay snapshot {path}: No space left"):
            replay.save(path)
        assert path.read_bytes() == whole
        assert [p.name for p in tmp_path.iterdir()] == ["snapshot"]
        assert len(replay.sample(8)) == 8


def test_zeroed_counts_are_no_end(tmp_path):
    """A hole in the file over a block's count must not pass for its end."""
    path = tmp_path / "snapshot"
    with Replay(200_000, FIELDS) as replay:
        for first in range(0, 200_000, 20_000):
            replay.writer().extend(rows(first, 20_000))
        replay.save(path)
        entry_bytes = replay.core.native.snapshot_entry_bytes
    whole = path.read_bytes()
    at = 16 + int.from_bytes(whole[8:16], "little") + 4
    blocks = 0
    while entries := int.from_bytes(whole[at : at + 8], "little"):
        for width in (8, 12):
            path.write_bytes(whole[:at] + bytes(width) + whole[at + width :])
            with pytest.raises(SnapshotError, match="corrupt"):
                Replay.load(path)
        at += 12 + entries * entry_bytes + 4
        blocks += 1
    assert blocks > 2


def sample_when_told(replay, pipe):
    pipe.recv()
    try:
        pipe.send(len(replay.sample(16, timeout=20)))
    except OwnershipError:
        pipe.send(0)


def test_who_saves_keeps_the_replay(tmp_path):
    """A maker that owned it only to make room is its owner from the save on."""
    with Replay(40_000, {"row": Field((500,), "float32")}, writers=1) as replay:
        writer = replay.writer()
        for _ in range(10):
            writer.extend({"row": np.zeros((5000, 500), "f4")})
        assert replay.stats()["provisional"]
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=sample_when_told, args=(replay, theirs), daemon=True)
        process.start()
        ours.send(None)
        while not ours.poll(0.0):
            replay.save(tmp_path / "s")
        taken = ours.recv()
        process.join(20)
        with Replay.load(tmp_path / "s") as loaded:
            assert len(loaded) > 30_000
        assert taken in (0, 16)


def test_letting_go_while_saving_is_an_error(tmp_path, monkeypatch):
    with filled() as replay:
        replay.save(tmp_path / "s")
        whole = (tmp_path / "s").read_bytes()
        plain = snapshot._write

        def write(*arguments):
            replay.release()
            plain(*arguments)

        monkeypatch.setattr(snapshot, "_write", write)
        with pytest.raises(OwnershipError, match="stopped owning the replay while it saved it"):
            replay.save(tmp_path / "s")
        assert (tmp_path / "s").read_bytes() == whole


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"kind": "transition", "capacity": 4000},
        {"kind": "transition", "capacity": 512},  # a new replay for so many streams would have smaller slots
        {"kind": "sequence", "capacity": 600, "length": 5, "stride": 2},
        {"kind": "unroll", "capacity": 40, "length": 5, "sampler": "fifo"},
    ],
)
def test_a_loaded_replay_has_room_for_more_writers(tmp_path, options, chain):
    fields = {"observation": Field((), "float32"), "action": Field((), "int64")}

    def append(writers, steps):
        for t in range(steps):
            for number, writer in enumerate(writers):
                two = {"observation": np.full(2, t, "f4"), "action": np.full(2, number), "reward": np.zeros(2, "f4")}
                writer.append({**two, "terminated": [t % 9 == 8] * 2, "truncated": [False] * 2}, timeout=5.0)

    with Replay(fields=fields, writers=2, streams=4, **options) as replay:
        append([replay.writer(streams=2) for _ in range(2)], 25)
        keys = replay.keys()
        path = tmp_path / "chain" if chain else tmp_path / "file"
        if chain:
            replay.snapshots(path).save()
        else:
            replay.save(path)
        with Replay.load(path) as as_it_was, Replay.load(path, writers=1, streams=1) as no_less:
            assert [one.core.options for one in (as_it_was, no_less)] == [replay.core.options] * 2
        with Replay.load(path, writers=5, streams=10) as loaded:
            np.testing.assert_array_equal(loaded.keys(), keys)
            a, b = replay.sample(16), loaded.sample(16)
            np.testing.assert_array_equal(a.keys, b.keys)
            np.testing.assert_array_equal(a.data["observation"], b.data["observation"])
            while options["kind"] == "unroll" and len(loaded):
                loaded.sample(1)
            writers = [loaded.writer(streams=2) for _ in range(5)]
            append(writers, 15 if options["kind"] == "unroll" else 600)
            if options["kind"] != "unroll":
                assert np.intersect1d(loaded.keys(), keys).size == 0  # all that was saved is gone now
            seen = loaded.sample(min(len(loaded), 500)).data["action"]
            assert set(np.unique(seen)) == set(range(5))
            assert loaded.core.native.check() == 0.0


def test_a_loaded_replay_that_is_too_small_for_more_writers_is_refused(tmp_path):
    fields = {"observation": Field((), "float32"), "action": Field((), "int64")}
    with Replay(100, fields, kind="transition", writers=1, streams=2) as replay:
        replay.save(tmp_path / "file")
    with pytest.raises(
        SnapshotError, match=r"room for 1 writers and 2 streams, and cannot have it for 9 and 900: capa"
    ):
        Replay.load(tmp_path / "file", writers=9, streams=900)


@pytest.mark.parametrize("between", [30, 2000], ids=["items_come", "items_come_and_go"])
@pytest.mark.parametrize("options", [{}, {"remover": "proportional", "alpha": 0.6}], ids=str)
def test_counters_fit_the_items_when_others_write_meanwhile(tmp_path, options, between):
    with Replay(400, FIELDS, writers=1, **options) as replay, replay.writer() as writer:
        writer.extend(rows(0, 420), priorities=np.ones(420))
        assert len(replay.sample(4)) == 4  # from now on this process owns it
        begun = taken(replay.core)
        writer.extend(rows(420, between), priorities=np.ones(between))
        assert len(replay.sample(4)) == 4  # takes them in
        write(replay.core, tmp_path / "snapshot", lambda: None, begun)
        with Replay.load(tmp_path / "snapshot") as loaded:
            stats = loaded.stats()
            assert stats["inserted"] - stats["evicted"] - stats["deleted"] == stats["size"] == len(loaded) > 0
            assert stats["inserted"] >= 420


def write_on(replay, stop):
    writer, first = replay.writer(), 0
    while not stop.is_set():
        writer.extend(rows(first, 20), priorities=np.linspace(0.1, 5.0, 20))
        first += 20
        time.sleep(0.0005)


@pytest.mark.parametrize("options", [{"sampler": "uniform"}, {"alpha": 0.6, "remover": "proportional"}], ids=str)
def test_counters_fit_the_items_when_a_file_holds_more_than_the_capacity(tmp_path, options):
    """What another process inserts between two blocks; the loader removes it."""
    stop = SPAWN.Event()
    with Replay(3000, FIELDS, writers=2, **options) as replay:
        process = SPAWN.Process(target=write_on, args=(replay, stop), daemon=True)
        process.start()
        try:
            assert len(replay.sample(32, timeout=60.0)) == 32
            for _ in range(25):
                replay.save(tmp_path / "snapshot")
                with Replay.load(tmp_path / "snapshot") as loaded:
                    stats = loaded.stats()
                    assert stats["inserted"] - stats["evicted"] - stats["deleted"] == stats["size"]
        finally:
            stop.set()
            process.join()
