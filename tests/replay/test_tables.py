"""Replays under names: each holds what a replay of its own would."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_replays import kept
from three_tables import FIELDS, KINDS, PLAIN, ids, numbered, thirds, three

from apexrl.errors import ApexrlError, ClosedError, ConfigError, PriorityError, SpecError, WaitTimeout
from apexrl.replay import Field, MixedReplay, Replay, Tables

SPAWN = multiprocessing.get_context("spawn")


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


def test_an_episode_may_go_to_no_table():
    tables = Tables({name: kept(Replay(400, FIELDS, streams=2, **PLAIN, **KINDS[name])) for name in ("all", "some")})
    wanted = dict.fromkeys(tables.names, lambda values: values["id"] >= 10)
    writer = tables.writer(streams=2, rules=wanted)

    def append(first, ends=False):
        ends_of_both = [ends, ends]
        step = {"id": [first, first + 1], "reward": [0.0, 0.0], "terminated": ends_of_both, "truncated": [False, False]}
        writer.append(step)

    for number in (0, 12):  # the rules are asked of an episode's first step alone
        append(number)
        append(10)
        append(20, ends=True)
        append(30)  # the final observations
        assert tables["all"].stats()["inserted"] == (6 if number else 0)


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
