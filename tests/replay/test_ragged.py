"""Ragged fields against fields of fixed size that hold the same values filled up with zeros.

The same seeds draw the same items, so batches must be equal to the last byte.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_replays import kept

from apexrl.errors import SnapshotError, SpecError
from apexrl.replay import Field, Replay
from apexrl.replay.chunks import ChunkSink, ChunkSource, Receipts
from apexrl.replay.sharded.shard import Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient

TEXT, NODES = 300, 9  # the most elements of each ragged field
FIXED = {
    "observation/text": Field((TEXT,), "uint8"),
    "observation/text/length": Field((), "int32"),
    "number": Field((), "int64"),
    "nodes": Field((NODES, 3), "float64"),
    "nodes/length": Field((), "int32"),
}
RAGGED = {
    "observation/text": Field((TEXT,), "uint8", ragged=True),
    "number": FIXED["number"],
    "nodes": Field((NODES, 3), "float64", ragged=True),
}
KINDS = {
    "rows": {},
    "transition": {"kind": "transition", "stack": 2, "n_step": 3},
    "sequence": {"kind": "sequence", "length": 5, "stride": 2, "burn_in": 2},
    "unroll": {"kind": "unroll", "length": 4, "burn_in": 1},
}


def values_of(rng, numbers, long=0.2):
    """Rows with these numbers. What lies beyond a length is no part of a value: it is never read."""
    n = len(numbers)
    lengths = {
        "observation/text": np.where(rng.random(n) < long, TEXT, rng.integers(0, TEXT // 4, n)).astype(np.int32),
        "nodes": rng.integers(0, NODES + 1, n).astype(np.int32),
    }
    values = {"number": np.asarray(numbers, np.int64)}
    for name, own in lengths.items():
        field = FIXED[name]
        full = rng.integers(1, 200, (n, *field.shape)).astype(field.dtype)
        full[np.arange(field.shape[0]) >= own[:, None]] = 0
        values |= {name: full, f"{name}/length": own}
    return values


def with_garbage(values):
    """The same values, with something else beyond their lengths."""
    garbled = dict(values)
    for name in ("observation/text", "nodes"):
        full = values[name].copy()
        full[np.arange(full.shape[1]) >= values[f"{name}/length"][:, None]] = 77
        garbled[name] = full
    return garbled


def ends_of(rng, ended):
    terminated = (rng.random(len(ended)) < 0.08) & ~ended
    return terminated, (rng.random(len(ended)) < 0.08) & ~ended & ~terminated


def equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def write_both(replays, kind, rng, steps, priorities=True):
    """The same to each replay, of three streams or in blocks of rows."""
    streams = 3
    fn = (
        (lambda items: np.asarray(items["number"]).reshape(len(items["number"]), -1)[:, 0] % 7 + 1.0)
        if priorities
        else None
    )
    writers = [
        replay.writer() if kind == "rows" else replay.writer(streams=streams, priority_fn=fn) for replay in replays
    ]
    ended = np.zeros(streams, bool)
    for t in range(steps):
        n = int(rng.integers(1, 9)) if kind == "rows" else streams
        numbers = t * 10 + np.arange(n)
        values = values_of(rng, numbers)
        if kind != "rows":
            terminated, truncated = ends_of(rng, ended)
            ended = terminated | truncated
            values |= {"reward": rng.normal(size=n).astype("f4"), "terminated": terminated, "truncated": truncated}
        for k, writer in enumerate(writers):
            given = with_garbage(values) if k else values
            if kind == "rows":
                writer.extend(given, priorities=numbers % 7 + 1.0 if priorities else None)
            else:
                writer.append(given)
    return writers


def pair_of(kind, capacity=200, **options):
    options = {**KINDS[kind], "alpha": 1.0, "eps": 0.0, **options}
    if kind != "rows":
        options.setdefault("streams", 3)
    return [kept(Replay(capacity, fields, **options)) for fields in (FIXED, RAGGED)]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31), remover=st.sampled_from(["fifo", "proportional"]), decay=st.booleans())
def test_batches_equal_those_of_fixed_fields(kind, seed, remover, decay):
    """While items come and go, several times the capacity."""
    rng = np.random.default_rng(seed)
    options = {"remover": remover, "seed": seed, "recency_half_life": 0.5 * decay}
    fixed, ragged = pair_of(kind, 100 if remover == "fifo" else 20, **options)
    for _ in range(4):
        write_both([fixed, ragged], kind, rng, 60)
        for size in (1, 70):
            here, there = fixed.sample(size), ragged.sample(size)
            equal(here.data, there.data)
            assert here.keys.tolist() == there.keys.tolist()
        ragged.update_priorities(there.keys, np.arange(70.0))
        fixed.update_priorities(here.keys, np.arange(70.0))
    assert ragged.core.native.check() == 0.0  # every block belongs to a slot that holds items
    for replay in (fixed, ragged):
        replay.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fifo_replay_gives_each_item_once_and_its_blocks_back(kind):
    rng = np.random.default_rng(3)
    fixed, ragged = pair_of(kind, 400, sampler="fifo")
    touched = 0
    for _ in range(5):
        writers = write_both([fixed, ragged], kind, rng, 30, priorities=False)
        for writer in writers:
            writer.close()
        while n := min(len(fixed), 16):
            equal(fixed.sample(n).data, ragged.sample(n).data)
        assert len(ragged) == 0
        assert ragged.core.native.check() == 0.0
        touched = touched or ragged.stats()["ragged_bytes"]
    assert 0 < ragged.stats()["ragged_bytes"] <= 1.5 * touched


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_restores_them(kind, tmp_path):
    rng = np.random.default_rng(5)
    replays = pair_of(kind, 100, seed=4)
    write_both(replays, kind, rng, 120)
    loaded = []
    for i, replay in enumerate(replays):
        replay.save(tmp_path / str(i))
        loaded.append(kept(Replay.load(tmp_path / str(i))))
    for size in (3, 60):
        batches = [replay.sample(size).data for replay in (*replays, *loaded)]
        for other in batches[1:]:
            equal(batches[0], other)
    assert loaded[1].core.native.check() == 0.0
    sizes = [(tmp_path / str(i)).stat().st_size for i in range(2)]
    assert sizes[1] < 0.6 * sizes[0]  # the values are about a third as long as they may be
    write_both(loaded, kind, rng, 120)
    equal(loaded[0].sample(50).data, loaded[1].sample(50).data)


@pytest.mark.parametrize("kind", ["rows", "transition"])
def test_a_chain_of_snapshots_restores_them(kind, tmp_path):
    """Also a chunk whose newest items were deleted after its rows had been written."""
    (_, replay) = replays = pair_of(kind, 100)
    rng = np.random.default_rng(6)
    write_both(replays, kind, rng, 60)
    chain = replay.snapshots(tmp_path / "chain")
    chain.save()
    keys = replay.keys()
    assert replay.delete(keys[3::4]).applied == len(keys[3::4])
    replay.delete(replay.keys()[-5:])
    chain.save()
    loaded = kept(Replay.load(tmp_path / "chain"))
    assert loaded.keys().tolist() == replay.keys().tolist()
    equal(loaded.read(loaded.keys()).data, replay.read(replay.keys()).data)


def test_a_damaged_snapshot_is_refused(tmp_path):
    (_, ragged) = replays = pair_of("transition", 100)
    write_both(replays, "transition", np.random.default_rng(5), 120)
    ragged.save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    rng = np.random.default_rng(0)
    for at in [*rng.integers(len(whole), size=40).tolist(), len(whole) - 9]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(SnapshotError):
            Replay.load(tmp_path / "damaged")
    for size in (len(whole) // 2, len(whole) - 1):
        (tmp_path / "damaged").write_bytes(whole[:size])
        with pytest.raises(SnapshotError):
            Replay.load(tmp_path / "damaged")


@pytest.mark.parametrize("most_bytes", [1, 20_000])
@pytest.mark.parametrize("kind", ["transition", "sequence", "unroll"])
def test_chunks_bring_them_to_another_host(kind, most_bytes):
    rng = np.random.default_rng(8)
    here = pair_of(kind, 4096, sampler="fifo")
    there = [
        kept(Replay(4096, fields, sampler="fifo", streams=4, alpha=1.0, eps=0.0, **KINDS[kind]))
        for fields in (FIXED, RAGGED)
    ]
    sinks = [ChunkSink(replay, Receipts(8), 4) for replay in there]
    sources = [ChunkSource(replay) for replay in here]
    for sink in sinks:
        sink.open()
    sequence, item, sent = [0, 0], [0, 0], [0, 0]
    for _ in range(4):
        for writer in write_both(here, kind, rng, 40):
            writer.close()
        for k in range(2):
            while True:
                heads, body = sources[k].take(most_bytes, 0.0)
                if not len(heads):
                    break
                assert sinks[k].commit_frame("host/1", sequence[k], item[k], heads, body) == len(heads)
                sequence[k], item[k], sent[k] = sequence[k] + len(heads), item[k] + heads.items(), sent[k] + len(body)
    for sink in sinks:
        sink.close()
    assert sent[1] < 0.6 * sent[0] or most_bytes == 1
    found = []
    for replay in there:
        assert replay.core.native.check() == 0.0
        items = {}
        while len(replay):
            data = replay.sample(1).data
            items[tuple(data["number"].ravel())] = data
        found.append(items)
    assert found[0].keys() == found[1].keys()
    for key, data in found[0].items():
        equal(data, found[1][key])


def test_lists_of_arrays_are_filled_up_and_measured():
    replay = kept(Replay(100, RAGGED))
    rows = [np.frombuffer(text.encode(), np.uint8) for text in ("go to the red ball", "", "x" * TEXT)]
    nodes = [np.ones((n, 3)) for n in (2, 0, NODES)]
    with replay.writer() as writer:
        writer.extend({"observation/text": rows, "number": [0, 1, 2], "nodes": nodes})
    data = replay.sample(64).data
    assert set(data) == {"observation/text", "observation/text/length", "number", "nodes", "nodes/length"}
    for text, length, number, graph, size in zip(
        data["observation/text"],
        data["observation/text/length"],
        data["number"],
        data["nodes"],
        data["nodes/length"],
        strict=True,
    ):
        assert bytes(text[:length]) == bytes(rows[number])
        assert not text[length:].any()
        assert graph.sum() == 3 * size == nodes[number].size


@pytest.mark.parametrize("length", [-1, TEXT + 1])
def test_a_length_out_of_range_is_refused_before_anything_is_stored(length):
    replay = kept(Replay(100, {"observation": Field((TEXT,), "uint8", ragged=True)}, kind="transition"))
    writer = replay.writer()
    step = {"reward": [0.0], "terminated": [False], "truncated": [False]}
    values = {"observation": np.zeros((1, TEXT), np.uint8), "observation/length": np.array([length], np.int32)}
    with pytest.raises(SpecError, match=rf"length' of row 0 is {length}.*0 to {TEXT}"):
        writer.append({**values, **step})
    with pytest.raises(SpecError, match="length 301, more than its 300"):
        writer.append({"observation": [np.zeros(301, np.uint8)], **step})
    assert len(replay) == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (lambda: {"text": Field((), "uint8", ragged=True)}, "first dimension"),
        (lambda: {"text": Field((5,), "uint8", ragged=True, per_item=True)}, "per_item"),
        (lambda: {"text": Field((5,), "uint8", ragged=True), "text/length": Field((), "int64")}, "int32"),
        (
            lambda: {"text": Field((5,), "uint8", ragged=True), "text/length": Field((), "int32", windowed=True)},
            "exactly where",
        ),
    ],
)
def test_fields_that_cannot_be_ragged_are_refused(fields, why):
    with pytest.raises(SpecError, match=why):
        Replay(100, fields(), kind="transition")


# --- values that tell whether they are whole: number n is as long as n says, and says n in every byte


def told(numbers):
    numbers = np.asarray(numbers)
    lengths = (numbers * 37 % (TEXT + 1)).astype(np.int32)
    text = np.repeat((numbers % 251 + 1).astype(np.uint8)[:, None], TEXT, 1)
    return {"observation/text": text, "observation/text/length": lengths, "number": numbers.astype(np.int64)}


def assert_told(data):
    numbers = data["number"].ravel()
    expected = told(numbers)
    text = data["observation/text"].reshape(len(numbers), TEXT)
    np.testing.assert_array_equal(data["observation/text/length"].ravel(), expected["observation/text/length"])
    beyond = np.arange(TEXT) >= expected["observation/text/length"][:, None]
    np.testing.assert_array_equal(text, np.where(beyond, 0, expected["observation/text"]))


TOLD = {"observation/text": RAGGED["observation/text"], "number": RAGGED["number"]}


def write_for_ever(replay, first, published):
    """Two streams of numbered steps; the number up to which all is flushed."""
    writer = replay.writer(streams=2)
    no = np.zeros(2, bool)
    for t in range(100_000):
        writer.append(
            {**told([first + 2 * t, first + 2 * t + 1]), "reward": [0.0, 0.0], "terminated": no, "truncated": no}
        )
        if t % 20 == 19:
            writer.flush()
            published.value = first + 2 * t - 1  # the last step waits for what follows it


def test_killed_writers_lose_only_what_they_had_not_published():
    """Three generations of two writers; what each had flushed is there, whole, and every block has an owner."""
    context = multiprocessing.get_context("fork")
    replay = kept(Replay(200_000, TOLD, kind="transition", streams=8, writers=4, alpha=0.0))
    replay.core.own()
    flushed = []
    for generation in range(3):
        counts = [context.Value("q", -1) for _ in range(2)]
        firsts = [(2 * generation + w) * 1_000_000 for w in range(2)]
        writers = [
            context.Process(target=write_for_ever, args=(replay, first, count), daemon=True)
            for first, count in zip(firsts, counts, strict=True)
        ]
        for writer in writers:
            writer.start()
        deadline = time.monotonic() + 20
        while min(count.value for count in counts) < 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join(10)
        flushed += [(first, count.value) for first, count in zip(firsts, counts, strict=True)]
    deadline = time.monotonic() + 10
    while replay.stats()["lanes_active"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert replay.stats()["lanes_active"] == 0
    assert replay.core.native.check() == 0.0
    data = replay.read(replay.keys()).data
    assert_told(data)
    found = set(data["number"].tolist())
    assert len(found) == len(replay)
    for first, last in flushed:
        assert last >= first, "a writer published nothing"
        missing = set(range(first, last + 1)) - found
        assert not missing
    # what the dead left is used again
    with replay.writer(streams=2) as writer:
        for t in range(100):
            no = np.zeros(2, bool)
            values = told([9_000_000 + 2 * t, 9_000_001 + 2 * t])
            writer.append({**values, "reward": [0.0, 0.0], "terminated": no, "truncated": no})
    assert_told(replay.sample(256).data)


def test_served_and_sharded_batches_have_them():
    shards = []
    for first in (0, 1000):
        replay = kept(Replay(1000, TOLD, alpha=1.0, writers=1))
        replay.writer().extend(told(np.arange(first, first + 500)))
        shards.append(LocalClient(Shard(replay)))
    sharded = ShardedReplay(shards, capacity=2000, seed=1)
    batch = sharded.sample(64, timeout=5.0)
    assert_told(batch.data)
    assert {bool(number >= 1000) for number in batch.data["number"]} == {False, True}
    replay = kept(Replay(1000, TOLD, alpha=1.0, writers=1))
    replay.writer().extend(told(np.arange(500)))
    with replay.serve(1, 32) as server:
        learner = server.learner(0)
        learner._lease()
        while server.step(0.0):
            pass
        assert_told(learner.sample(timeout=5.0).data)


@pytest.mark.parametrize("sampler", ["lifo", "max_heap", "min_heap"])
def test_items_that_go_when_they_are_sampled_are_whole(sampler):
    replay = kept(Replay(500, TOLD, sampler=sampler, max_times_sampled=1, writers=1))
    with replay.writer() as writer:
        for first in range(0, 2000, 100):
            numbers = np.arange(first, first + 100)
            writer.extend(told(numbers), priorities=numbers + 1.0)
            assert_told(replay.sample(100).data)
    assert len(replay) == 0
    assert replay.core.native.check() == 0.0
