"""Replays under names: each holds what a replay of its own would, after appends, kills and snapshots."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_replays import kept

from apexrl.errors import (
    ApexrlError,
    ClosedError,
    ConfigError,
    OwnershipError,
    PriorityError,
    SnapshotError,
    SpecError,
    WaitTimeout,
)
from apexrl.replay import Field, MixedReplay, Replay, Tables

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"id": Field((), "int64")}
PLAIN = {"alpha": 1.0, "eps": 0.0, "writers": 2}
KINDS = {
    "all": {"n_step": 2, "kind": "transition"},
    "windows": {"kind": "sequence", "length": 4, "stride": 2, "burn_in": 1},
    "some": {"kind": "unroll", "length": 3, "sampler": "uniform"},
}


def three(**options):
    """Tables of rows: one takes all, one those that 3 divides, one has a field more and removes by priority."""
    more = {**FIELDS, "word": Field((4,), "uint8", ragged=True)}
    each = {
        "all": Replay(100, FIELDS, seed=1, **PLAIN, **options),
        "thirds": Replay(60, FIELDS, seed=2, sampler="lifo", **PLAIN, **options),
        "words": Replay(50, more, seed=3, remover="min_heap", **PLAIN, **options),
    }
    return Tables({name: kept(replay) for name, replay in each.items()})


def thirds(values):
    return values["id"] % 3 == 0


def numbered(first, count):
    ids = np.arange(first, first + count)
    return {"id": ids, "word": [np.full(n % 5, n % 256, "u1") for n in ids]}


def ids(tables, name):
    return sorted(tables[name].read(tables[name].keys()).data["id"].tolist())


def assert_same(tables, twins):
    for name in tables.names:
        one, twin = tables[name], twins[name]
        assert len(one) == len(twin)
        pairs = [(one.read(one.keys()), twin.read(twin.keys()))]
        if len(one) >= 8:
            pairs.append((one.sample(8), twin.sample(8)))
        for a, b in pairs:
            np.testing.assert_array_equal(a.keys, b.keys)
            np.testing.assert_array_equal(a.probabilities, b.probabilities)
            for field in b.data:
                np.testing.assert_array_equal(a.data[field], b.data[field], err_msg=f"{name} {field}")
        assert one.core.native.check() == 0.0


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_rows_are_those_of_replays_of_their_own(data, tmp_path_factory):
    tables, twins = three(), three()
    with tables, twins:
        writer, number = tables.writer(rules={"thirds": thirds}), 0
        plain = {name: twins[name].writer() for name in twins.names}
        for _ in range(data.draw(st.integers(1, 12))):
            count = data.draw(st.integers(1, 30))
            to = data.draw(st.sampled_from([None, "all", ("words", "thirds"), ("all", "words")]))
            priorities = np.random.default_rng(number).random(count) if data.draw(st.booleans()) else None
            values = numbered(number, count)
            writer.extend(values, to, priorities)
            for name in tables.names if to is None else (to,) if isinstance(to, str) else to:
                rows = np.arange(count)
                if to is None and name == "thirds":
                    rows = np.flatnonzero((number + rows) % 3 == 0)
                if len(rows):
                    mine = {"id": values["id"][rows]}
                    mine |= {"word": [values["word"][row] for row in rows]} if name == "words" else {}
                    plain[name].extend(mine, None if priorities is None else priorities[rows])
            number += count
        assert_same(tables, twins)
        assert len(tables) == tables.stats()["size"] == sum(len(twins[name]) for name in twins.names)
        folder = tmp_path_factory.mktemp("tables")
        for _ in range(2):
            tables.save(folder)
        assert len(list(folder.iterdir())) == 4  # the files of the first are gone
        with Tables.load(folder) as loaded:
            assert loaded.names == tables.names
            assert_same(loaded, tables)


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_steps_are_those_of_replays_of_their_own(data):
    fields = {"observation": Field((), "float32"), "episode": Field((), "int64")}
    made = [
        {name: kept(Replay(400, fields, streams=3, seed=5, **PLAIN, **KINDS[name])) for name in KINDS} for _ in "ab"
    ]
    tables, twins = Tables(made[0]), made[1]
    writer = tables.writer(streams=3, rules={"some": lambda values: values["episode"] % 2 == 1})
    plain = {name: twins[name].writer(streams=3) for name in twins}
    left = [0] * 3  # steps of each stream's episode that are to come; 0: the final observation is next
    episode, goes, begins, number = [0] * 3, [set(KINDS)] * 3, [True] * 3, 0
    for t in range(data.draw(st.integers(5, 60))):
        which = sorted(data.draw(st.sets(st.integers(0, 2), min_size=1)))
        fresh = all(begins[b] for b in which)
        to = data.draw(st.sampled_from([None, ["all"], ["windows", "some"]])) if fresh else None
        ended = []
        for b in which:
            final = not begins[b] and left[b] == 0
            if begins[b]:
                left[b], number = data.draw(st.integers(1, 7)), number + 1
                episode[b] = number
                goes[b] = set(to) if to else {"all", "windows"} | ({"some"} if number % 2 else set())
            left[b] -= not final
            begins[b] = final
            ended.append(left[b] == 0 and not final)
        step = {
            "observation": np.array([t * 10 + b for b in which], "f4"),
            "episode": np.array([episode[b] for b in which]),
            "reward": np.ones(len(which), "f4"),
            "terminated": np.array(ended),
            "truncated": np.zeros(len(which), bool),
        }
        writer.append(step, to, streams=which)
        for name in KINDS:
            rows = [row for row, b in enumerate(which) if name in goes[b]]
            if rows:
                mine = {field: array[rows] for field, array in step.items()}
                plain[name].append(mine, streams=[which[row] for row in rows])
    for name in KINDS:
        len(twins[name])  # publishes, as `len` of a table does
    assert_same(tables, twins)
    for replay in (*made[0].values(), *made[1].values()):
        replay.close()


def test_an_episode_keeps_its_tables():
    tables = Tables({name: kept(Replay(400, FIELDS, streams=2, **PLAIN, **KINDS[name])) for name in ("all", "some")})
    writer = tables.writer(streams=2)
    step = {"id": [0, 1], "reward": [0.0, 0.0], "terminated": [False, False], "truncated": [False, False]}
    writer.append(step, "all")
    with pytest.raises(SpecError, match=r"tables= of stream 0 .* are 'all'"):
        writer.append(step, ("all", "some"))
    writer.append({**step, "terminated": [False, True]}, "all")
    with pytest.raises(SpecError, match="stream 0"):
        writer.append(step, "some")  # the final observation of stream 1 would be missing
    writer.append(step)
    with pytest.raises(SpecError, match="stream 0"):
        writer.append(step, "some")
    writer.append({name: value[1:] for name, value in step.items()}, "some", streams=[1])
    assert tables["all"].stats()["inserted"] == len(tables["all"]) == 2 + 1  # stream 0: two of three; stream 1: both
    with pytest.raises(SpecError, match="reward"):
        writer.append({**step, "reward": [0.0, np.nan]})


def test_bad_input_is_refused_and_nothing_is_stored():
    tables = three()
    writer, rows = tables.writer(rules={"thirds": thirds}), numbered(0, 6)
    for call, error, words in (
        (lambda: tables["third"], ConfigError, "no table 'third': did you mean 'thirds'. The tables are 'all', "),
        (lambda: tables[3], ConfigError, "no table 3: The tables are"),
        (lambda: writer.extend(rows, "al"), ConfigError, "no table 'al': did you mean 'all'"),
        (lambda: writer.extend(rows, ()), SpecError, "names no table"),
        (lambda: writer.extend({"id": rows["id"]}), SpecError, "table 'words': missing field 'word'"),
        (lambda: writer.extend({**rows, "x": 1}), SpecError, "unknown field 'x'"),
        (lambda: writer.extend({**rows, "word": rows["word"][:5]}), SpecError, "table 'words': field 'word' has 5"),
        (lambda: writer.extend(rows, priorities=[1, 1, 1, 1, -1, 1]), PriorityError, "row 4 is -1"),
        (lambda: writer.extend(3), SpecError, "expected a mapping"),
        (lambda: writer.append(rows), ApexrlError, "use extend"),
        (lambda: tables.writer("best"), ConfigError, "no table 'best'"),
        (lambda: tables.writer(()), ConfigError, "at least one"),
        (lambda: tables.writer("all", rules={"thirds": thirds}), ConfigError, "'thirds' is not one of this writer's"),
        (lambda: tables.writer(rules={"all": 3}), ConfigError, "rule of table 'all' must be a function"),
        (lambda: tables.writer(rules={"all": lambda v: v["id"]}).extend(rows), SpecError, "'all' answered int64"),
        (lambda: Tables({}), ConfigError, "at least one replay"),
        (lambda: Tables({"a/b": tables["all"]}), ConfigError, "table name 'a/b'"),
        (lambda: Tables({"a": tables["all"], "b": tables["all"]}), ConfigError, "'a' and 'b' are one replay"),
        (lambda: Tables({"a": 3}), ConfigError, "'a' must be a Replay"),
        (lambda: list(tables), TypeError, "not iterable"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert len(tables) == 0
    for other, words in (
        ({"id": Field((), "int32")}, r"field 'id' is int64 \[\] and int32 \[\]"),
        ({"id": Field((2,), "int64")}, r"field 'id' is int64 \[\] and int64 \[2\]"),
    ):
        mixed = Tables({"a": tables["all"], "b": kept(Replay(100, other))})
        with pytest.raises(ConfigError, match="'a' and 'b' have no writer in common: " + words):
            mixed.writer()
        mixed.writer("a").extend({"id": np.arange(3)})
    steps = Tables({"a": tables["all"], "b": kept(Replay(100, FIELDS, kind="transition"))})
    with pytest.raises(ConfigError, match=r"'a' .kind='rows'. and 'b' .kind='transition'. have no writer in common"):
        steps.writer()


def test_a_wait_leaves_a_call_that_can_be_repeated():
    queue = kept(Replay(10, FIELDS, sampler="fifo", writers=1))
    tables = Tables({"first": kept(Replay(100, FIELDS, **PLAIN)), "queue": queue, "last": kept(Replay(100, FIELDS))})
    writer, rows = tables.writer(), {"id": np.arange(8)}
    writer.extend(rows)
    rows = {"id": np.arange(8, 16)}
    for _ in range(3):
        with pytest.raises(WaitTimeout, match=r"table 'queue': .*; it is in 'first'(, 'queue')?: repeat the same call"):
            writer.extend(rows, timeout=0.0)
        rows = {"id": np.arange(8, 16)}  # the same values in another array
    with pytest.raises(ApexrlError, match="not yet in 'queue', 'last': repeat it first"):
        writer.extend({"id": np.arange(8, 17)}, timeout=0.0)
    got = queue.sample(8).data["id"].tolist()
    writer.extend(rows)
    writer.extend({"id": np.array([99])}, ("first", "last"))
    assert got == list(range(8))
    for name in ("first", "last"):
        assert ids(tables, name) == [*range(16), 99]
    assert queue.stats()["inserted"] == 16


def test_an_error_of_a_priority_fn_leaves_the_steps_in_every_table():
    failures = [ValueError("no network"), WaitTimeout("no weights"), None]

    def fails(items):
        if not failures:
            return np.ones(len(items["id"]))
        error = failures.pop(0)
        if error is None:
            return np.ones(77)  # not one for each
        raise error

    options = {**PLAIN, "streams": 1, **KINDS["windows"]}
    tables = Tables({name: kept(Replay(400, FIELDS, **options)) for name in "abc"})
    writer = tables.writer(priority_fns={"b": fails})
    step, raised = {"reward": [0.0], "terminated": [False], "truncated": [False]}, []
    for t in range(20):
        try:
            writer.append({"id": [t], **step})
        except (ValueError, WaitTimeout) as error:
            raised.append(type(error))
    assert raised == [ValueError, WaitTimeout, SpecError]
    a, b, c = (tables[name].read(tables[name].keys()).data["id"] for name in "abc")
    assert len(a) > 5
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)


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


def append_from_a_copy(writer, handle):
    writer.extend(numbered(500, 3))
    with Tables.attach(handle) as tables:
        tables.writer("thirds").extend({"id": np.arange(600, 602)})


def test_copies_in_other_processes_and_mixes():
    tables = three()
    again = pickle.loads(pickle.dumps(tables))
    writer = tables.writer(rules={"thirds": thirds})
    process = SPAWN.Process(target=append_from_a_copy, args=(writer, tables.handle))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert ids(again, "all") == [500, 501, 502]
    assert ids(tables, "thirds") == [501, 600, 601]
    assert "all" in tables
    mixed = MixedReplay({name: tables[name] for name in ("all", "words")}, {"all": 0.5, "words": 0.5})
    assert set(mixed.sample(8).data["id"]) <= {500, 501, 502}
    writer.close()
    with pytest.raises(ClosedError):
        writer.extend(numbered(0, 1))
    tables.close()
    with pytest.raises(ClosedError):
        again["words"].sample(1)
    with pytest.raises(ConfigError, match="was closed"):
        Tables({"all": tables["all"]})
