"""Tables after kills, in forks, and from snapshots that were interrupted, damaged or mixed up."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time

import numpy as np
import pytest
from open_replays import kept
from three_tables import FIELDS, KINDS, PLAIN, ids, numbered, thirds, three

from apexrl.errors import ApexrlError, OwnershipError, SnapshotError, SpecError
from apexrl.replay import Replay, Tables, snapshot
from apexrl.replay import tables as replay_tables

SPAWN = multiprocessing.get_context("spawn")


def append_then_die(tables, place, pipe):
    writer = tables.writer()
    for call in range(10):
        writer.extend(numbered(call * 5, 5))
    if place is not None:
        writer._writers[place].extend = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    writer.extend(numbered(50, 5))
    pipe.send(len(tables))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_between_two_tables_leaves_the_append_in_those_before():
    places = (0, 1, 2, None)
    made = [three() for _ in places]
    pipes = [SPAWN.Pipe() for _ in places]
    processes = [
        SPAWN.Process(target=append_then_die, args=(tables, place, pipe[1]), daemon=True)
        for tables, place, pipe in zip(made, places, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    for tables, place, process in zip(made, places, processes, strict=True):
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        had = [len(tables[name]) for name in tables.names]
        full = 3 if place is None else place
        assert [ids(tables, name)[-1] for name in tables.names] == [54] * full + [49] * (3 - full)
        assert had[:2] == [55 if full > 0 else 50, 55 if full > 1 else 50]
        tables.writer().extend(numbered(100, 5))
        assert [len(tables[name]) for name in tables.names] == [had[0] + 5, had[1] + 5, 50]


STEP = {"reward": [0.0], "terminated": [False], "truncated": [False]}


def step_tables():
    return Tables({name: kept(Replay(5000, FIELDS, streams=4, **PLAIN, **KINDS[name])) for name in ("all", "windows")})


def append_steps_and_report(tables, pipe):
    writer = tables.writer()
    for t in range(10**6):
        writer.append({"id": [t], **STEP})
        if t % 100 == 99:
            writer.flush()
            pipe.send(t)


def test_a_killed_writer_of_steps_loses_what_it_had_not_published():
    tables = step_tables()
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=append_steps_and_report, args=(tables, theirs), daemon=True)
    process.start()
    for _ in range(5):
        assert ours.poll(60)
        flushed = ours.recv()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    for name, behind in (("all", 2), ("windows", 5)):
        left = ids(tables, name) if name == "all" else sorted(windows_of(tables[name]))
        assert left == list(range(0, left[-1] + 1, 1 if name == "all" else 2))
        assert left[-1] >= flushed - behind
    before = len(tables)
    writer = tables.writer()
    for t in range(20):
        writer.append({"id": [-t], **STEP})
    assert len(tables) == before + 18 + 8


def windows_of(replay):
    """The first step of each window, behind its burn-in."""
    return replay.read(replay.keys()).data["id"][:, 1].tolist()


def test_a_fork_has_the_tables_and_streams_of_its_own():
    tables = step_tables()
    writer = tables.writer()
    writer.append({"id": [0], **STEP}, "all")  # an episode that only the parent has
    child = os.fork()
    if child == 0:
        try:
            for t in range(100, 110):
                writer.append({"id": [t], **STEP}, "windows")
            writer.flush()
        finally:
            os._exit(len(tables["windows"]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert sorted(windows_of(tables["windows"])) == [100, 102, 104]
    with pytest.raises(SpecError, match="stream 0"):
        writer.append({"id": [1], **STEP}, "windows")
    for t in range(1, 5):
        writer.append({"id": [t], **STEP})
    assert ids(tables, "all") == [0, 1, 2]


def append_save_and_report(tables, folder, pipe):
    writer = tables.writer(rules={"thirds": thirds})
    for call in range(10**6):
        writer.extend(numbered(call * 4, 4))
        tables.save(folder)
        pipe.send(call)


def test_a_kill_while_saving_leaves_a_whole_snapshot(tmp_path):
    tables = three()
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=append_save_and_report, args=(tables, tmp_path, theirs), daemon=True)
    process.start()
    for _ in range(8):
        assert ours.poll(60)
        last = ours.recv()
    with pytest.raises(OwnershipError, match="table 'all'"):
        tables.save(tmp_path)
    time.sleep(np.random.default_rng().random() * 0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while ours.poll():
        try:
            last = ours.recv()
        except EOFError:
            break
    with Tables.load(tmp_path) as loaded:
        newest = ids(loaded, "all")
        assert len(newest) >= min(100, (last + 1) * 4) - 8
        assert newest[-1] >= (last + 1) * 4 - 1  # what was answered is there
        assert ids(loaded, "thirds")[-1] == max(one for one in newest if one % 3 == 0)
        assert len(loaded["words"]) == min(50, newest[-1] + 1)
    assert ids(tables, "all")[-1] >= newest[-1]  # and the tables themselves go on
    tables.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_snapshots_with_a_missing_or_swapped_table_are_refused(tmp_path):
    whole, other, folder = tmp_path / "whole", tmp_path / "other", tmp_path / "broken"
    tables = Tables({"a": kept(Replay(50, FIELDS)), "b": kept(Replay(50, FIELDS))})
    tables.writer().extend({"id": np.arange(20)})
    tables.save(whole)
    tables.save(other)

    def files(where):
        return json.loads((where / "tables.json").read_text())["tables"]

    def relist(change):
        path = folder / "tables.json"
        listed = json.loads(path.read_text())
        change(listed)
        path.write_text(json.dumps(listed))

    def swap():
        one, two = (folder / file for file in files(folder).values())
        content = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(content)

    def cut(path):
        path.write_bytes(path.read_bytes()[:-30])

    for broken, words in (
        (lambda: (folder / files(folder)["b"]).unlink(), "table 'b' .* is missing: no file b-"),
        (lambda: cut(folder / files(folder)["b"]), "table 'b': .* end mark"),
        (swap, "is table 'b', and not table 'a': the files were swapped"),
        (lambda: shutil.copy(other / files(other)["b"], folder / files(folder)["b"]), "'b' of another snapshot"),
        (lambda: tables["a"].save(folder / files(folder)["a"]), "is no table, and not table 'a'"),
        (lambda: relist(lambda one: one["tables"].pop("b")), "table 'b' .* is missing in .*tables.json"),
        (lambda: relist(lambda one: one["tables"].update(b="../x")), "'../x' is no file of table 'b'"),
        (lambda: relist(lambda one: one.update(version=2)), "another version"),
        (lambda: (folder / "tables.json").write_text("[1]"), "not the list of a snapshot"),
        (lambda: (folder / "tables.json").unlink(), "holds no snapshot of tables"),
    ):
        shutil.copytree(whole, folder)
        broken()
        with pytest.raises(SnapshotError, match=words):
            Tables.load(folder)
        shutil.rmtree(folder)

    def refuse():
        raise ApexrlError("fenced")

    with pytest.raises(ApexrlError, match="fenced"):
        tables.save(whole, refuse)
    with Tables.load(whole) as loaded:
        assert ids(loaded, "b") == list(range(20))


def test_a_save_that_fails_leaves_the_files_of_the_one_before(tmp_path):
    tables = three()
    tables.writer().extend(numbered(0, 20))
    tables.save(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    def refuse():
        raise ApexrlError("not now")

    for _ in range(3):
        with pytest.raises(ApexrlError, match="not now"):
            tables.save(tmp_path, refuse)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    written = []

    def fails_at_the_second(core, path, *rest, **more):
        written.append(path)
        if len(written) == 2:
            raise SnapshotError("no space left")
        snapshot.write(core, path, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_tables, "write", fails_at_the_second)
        with pytest.raises(SnapshotError, match="no space left"):
            tables.save(tmp_path)
    assert len(written) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    table = next(name for name in before if name.endswith(".snapshot"))
    shutil.copy(tmp_path / table, tmp_path / table.replace(table[-17:-9], "0" * 8))  # as a killed saver left it
    tables.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == len(before)
    Tables.load(tmp_path).close()
    tables.close()
