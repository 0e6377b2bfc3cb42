"""Replays in a file on a disk that are larger than memory: the same draws, and nothing lost with the owner."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest

from apexrl.replay import Field, Replay, core
from apexrl.shared.available_memory import MemoryLimit

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"observation": Field((20, 20), "uint8"), "action": Field((), "int64")}


@pytest.fixture
def small_memory(monkeypatch):
    """As if a megabyte were available."""
    monkeypatch.setattr(core, "memory_limits", lambda: [MemoryLimit(1 << 20, "a test")])


def on_disk(folder, **options):
    replay = Replay(8000, FIELDS, directory=folder, **options)
    if replay.core.native.segment().in_memory:
        replay.close()
        pytest.skip("temporary files lie in memory here")
    return replay


def append(writer, first, count):
    for t in range(first, first + count):
        values = {"observation": np.full((1, 20, 20), t % 256, "u1"), "action": [t]}
        writer.append({**values, "reward": [1.0], "terminated": [t % 19 == 7], "truncated": [False]})


@pytest.mark.usefixtures("small_memory")
def test_draws_are_those_of_a_replay_in_memory(tmp_path):
    options = {"kind": "transition", "n_step": 2, "stack": 3, "streams": 1, "writers": 1, "seed": 3}
    with on_disk(tmp_path, **options) as disk, Replay(8000, FIELDS, **options) as memory:
        writers = [(replay, replay.writer()) for replay in (disk, memory)]
        for turn in range(5):
            batches = []
            for replay, writer in writers:
                append(writer, 200 * turn, 200)
                batches.append(replay.sample(150))
                replay.update_priorities(batches[-1].keys, np.linspace(0.1, 3.0, 150))
            for name in batches[0].data:
                np.testing.assert_array_equal(batches[0].data[name], batches[1].data[name], err_msg=name)
            np.testing.assert_array_equal(batches[0].keys, batches[1].keys)


def sample_for_ever(replay, pipe):
    replay.core.native.segment().read_by_page()  # what a process does that finds too little memory
    replay.update_priorities(replay.sample(64).keys, np.ones(64))
    pipe.send(len(replay))
    while True:
        replay.sample(64)


def test_a_kill_of_the_owner_costs_no_item(tmp_path):
    with on_disk(tmp_path, writers=2) as replay:
        ids = np.arange(4000)
        image = np.broadcast_to((ids % 256)[:, None, None], (4000, 20, 20)).astype("u1")
        replay.writer().extend({"observation": image, "action": ids})
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=sample_for_ever, args=(replay, theirs), daemon=True)
        process.start()
        assert ours.poll(120)
        assert ours.recv() == 4000
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = replay.read(replay.keys())
        assert found.data["action"].tolist() == ids.tolist()
        np.testing.assert_array_equal(found.data["observation"], image)
