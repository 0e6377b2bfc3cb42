"""Chains of snapshots: each file has what changed, and the chain restores what a full snapshot would."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl.errors import ConfigError, SnapshotError
from apexrl.replay import Field, Replay

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"number": Field((), "int64"), "image": Field((20, 20), "uint8"), "label": Field((), "int64")}


def rows(first, count):
    number = np.arange(first, first + count)
    image = np.broadcast_to((number % 256)[:, None, None], (count, 20, 20)).astype("u1")
    return {"number": number, "image": image, "label": np.zeros(count, "i8")}


def assert_same(loaded, replay, draws=True):
    for name in ("inserted", "sampled", "evicted", "deleted", "max_priority", "size", "capacity"):
        assert loaded.stats()[name] == replay.stats()[name], name
    theirs, ours = loaded.read(loaded.keys()), replay.read(replay.keys())
    pairs = (
        [(theirs, ours), (loaded.sample(16), replay.sample(16))] if draws and len(replay) >= 16 else [(theirs, ours)]
    )
    for a, b in pairs:
        np.testing.assert_array_equal(a.keys, b.keys)
        np.testing.assert_array_equal(a.probabilities, b.probabilities)
        for name in b.data:
            np.testing.assert_array_equal(a.data[name], b.data[name], err_msg=name)
    assert loaded.core.native.check() == 0.0


def step(replay, writer, rng, number):
    """Some of what a loop may do; answers the next number."""
    count = int(rng.integers(0, 60))
    if replay.core.layout.kind == "rows":
        writer.extend(rows(number, count), priorities=rng.random(count))
    else:
        for t in range(number, number + count):
            at = np.array([t])
            values = {"number": at, "image": np.full((1, 20, 20), t % 256, "u1"), "label": at * 0}
            writer.append({**values, "reward": [1.0], "terminated": [t % 17 == 3], "truncated": [False]})
    keys = replay.keys()
    if len(keys) and replay.core.options["sampler"] != "fifo":
        some = keys[rng.random(len(keys)) < 0.1]
        replay.update_priorities(some, rng.random(len(some)))
        some = keys[rng.random(len(keys)) < 0.02]
        replay.change(some, {"label": rng.integers(1, 99, len(some))})
        replay.delete(keys[rng.random(len(keys)) < 0.02])
    if len(replay) >= 10:
        replay.sample(10)
    return number + count


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_chain_restores_what_is_there(data, tmp_path_factory):
    options = data.draw(
        st.sampled_from(
            [
                {},
                {"sampler": "fifo"},
                {"remover": "proportional"},
                {"recency_half_life": 0.2},
                {"sampler": "max_heap", "remover": "min_heap"},
                {"kind": "transition", "n_step": 2, "stack": 2, "streams": 1},
            ]
        )
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    folder = tmp_path_factory.mktemp("chain")
    with Replay(200, FIELDS, seed=4, writers=1, **options) as replay:
        writer, number, files = replay.writer(), 0, []
        written = replay.snapshots(folder, longest=data.draw(st.integers(0, 5)))
        for _ in range(data.draw(st.integers(1, 9))):
            if options.get("sampler") == "fifo" and len(replay) > 120:
                replay.sample(100)
            number = step(replay, writer, rng, number)
            files.append(written.save())
        assert {path.name[:6] for path in folder.iterdir()} == {files[-1].name[:6]}  # earlier chains are gone
        with Replay.load(folder) as loaded:
            assert_same(loaded, replay)


def test_a_part_is_as_small_as_what_changed(tmp_path):
    with Replay(20_000, FIELDS) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 20_000))
        written = replay.snapshots(tmp_path)
        full = written.save().stat().st_size
        replay.update_priorities(replay.keys(), np.arange(20_000.0))
        priorities_alone = written.save().stat().st_size
        assert priorities_alone < full / 30
        writer.extend(rows(20_000, 1000))
        assert written.save().stat().st_size < priorities_alone + full / 15
        with Replay.load(tmp_path) as loaded:
            assert_same(loaded, replay)


def test_ragged_values_come_back(tmp_path):
    fields = {"text": Field((50,), "uint8", ragged=True), "number": Field((), "int64")}
    with Replay(300, fields) as replay:
        writer, written = replay.writer(), replay.snapshots(tmp_path)
        for first in range(0, 500, 50):
            texts = [np.full(n % 50, n % 256, np.uint8) for n in range(first, first + 50)]
            writer.extend({"text": texts, "number": np.arange(first, first + 50)})
            replay.update_priorities(replay.sample(8).keys, np.ones(8))
            written.save()
        with Replay.load(tmp_path) as loaded:
            assert_same(loaded, replay)


def chain_of_four(folder):
    with Replay(2000, FIELDS) as replay:
        writer, written = replay.writer(), replay.snapshots(folder)
        for first in range(0, 400, 100):
            writer.extend(rows(first, 100))
            written.save()


def test_broken_chains_are_refused(tmp_path):
    whole, other = tmp_path / "whole", tmp_path / "other"
    chain_of_four(whole)
    chain_of_four(other)

    def broken(change, words):
        folder = tmp_path / "broken"
        shutil.copytree(whole, folder)
        change(folder)
        with pytest.raises(SnapshotError, match=words):
            Replay.load(folder)
        shutil.rmtree(folder)

    second = "000001-0001.snapshot"
    broken(lambda folder: (folder / second).unlink(), "number 1 of its chain is missing")
    broken(lambda folder: (folder / "000001-0000.snapshot").unlink(), "number 0 of its chain is missing")
    broken(lambda folder: shutil.copy(other / second, folder / second), "does not follow 000001-0000.snapshot")
    broken(lambda folder: os.truncate(folder / second, 5000), "truncated or corrupt")
    broken(lambda folder: [path.unlink() for path in folder.iterdir()], "holds no snapshots")
    rng = np.random.default_rng(0)
    for _ in range(20):

        def damage(folder):
            path = folder / f"000001-000{rng.integers(4)}.snapshot"
            data = bytearray(path.read_bytes())
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
            path.write_bytes(data)

        broken(damage, "snapshot")
    with pytest.raises(SnapshotError, match="one file of a chain of snapshots: load its folder"):
        Replay.load(whole / second)
    with Replay.load(whole) as loaded:
        assert len(loaded) == 400
        with pytest.raises(ConfigError, match="longest=-1"):
            loaded.snapshots(whole, longest=-1)
        later = loaded.snapshots(whole)
        assert later.save().name == "000002-0000.snapshot"  # another process, or another owner, begins anew
        assert later.save().name == "000002-0001.snapshot"
        assert sorted(path.name[:6] for path in whole.iterdir()) == ["000002"] * 2


def save_for_ever(replay, folder, pipe):
    writer, written, first = replay.writer(), replay.snapshots(folder, longest=6), 0
    while True:
        writer.extend(rows(first, 50))
        first += 50
        written.save()
        pipe.send(first)


def test_a_kill_while_saving_leaves_what_was_saved(tmp_path):
    with Replay(5000, FIELDS) as replay:
        for turn in range(2):
            ours, theirs = SPAWN.Pipe()
            folder = tmp_path / str(turn)
            process = SPAWN.Process(target=save_for_ever, args=(replay, folder, theirs), daemon=True)
            process.start()
            for _ in range(9):
                assert ours.poll(120)
                saved = ours.recv()
            time.sleep(0.007 * turn)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            while ours.poll(0.1):
                try:
                    saved = ours.recv()
                except EOFError:
                    break
            there = len(replay)
            with Replay.load(folder) as loaded:
                last = loaded.read(loaded.keys()).data["number"][-1] + 1
                assert last in (saved, saved + 50)  # all that was answered, and at most what came next
                assert len(loaded) == last
                assert last <= there <= last + 50  # some of it written before the save that was cut off
            replay.delete(replay.keys())
            replay.release()
