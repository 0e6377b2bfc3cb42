"""Compressed fields against the same fields as they are: the same seeds draw the same items, so batches are equal."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_replays import kept

from apexrl.errors import ConfigError, FrameError, SpecError
from apexrl.replay import Field, Replay
from apexrl.replay.chunks import ChunkSink, ChunkSource, Receipts
from apexrl.replay.sharded.shard import Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from local_shards import LocalClient

PLAIN = {
    "observation": Field((84, 84), "uint8"),
    "number": Field((), "int64"),
    "floats": Field((40,), "float32"),
    "flag": Field((), "bool"),
}
PACKED = {name: replace(field, compressed=name != "number") for name, field in PLAIN.items()}
KINDS = {
    "rows": {},
    "transition": {"kind": "transition", "stack": 4, "n_step": 3},
    "sequence": {"kind": "sequence", "length": 5, "stride": 2, "burn_in": 2, "stack": 2},
    "unroll": {"kind": "unroll", "length": 4, "burn_in": 1},
}


def frames(numbers, rng, noise=0.2):
    """Images of a few things on a plain ground; some of noise alone, which nothing makes smaller."""
    full = np.zeros((len(numbers), 84, 84), np.uint8)
    for image, number in zip(full, numbers, strict=True):
        if rng.random() < noise:
            image[:] = rng.integers(256, size=image.shape)
            continue
        image[:] = number % 7
        for _ in range(int(rng.integers(1, 60))):
            y, x = rng.integers(80, size=2)
            image[y : y + 4, x : x + 3] = rng.integers(256)
    return full


def values_of(numbers, rng):
    numbers = np.asarray(numbers, np.int64)
    floats = np.where(rng.random((len(numbers), 1)) < 0.5, 0.0, rng.normal(size=(len(numbers), 40)))
    return {
        "observation": frames(numbers, rng),
        "number": numbers,
        "floats": floats.astype(np.float32),
        "flag": numbers % 2 == 0,
    }


def pair_of(kind, capacity, **options):
    options = {**KINDS[kind], "alpha": 1.0, "eps": 0.0, **options}
    if kind != "rows":
        options.setdefault("streams", 2)
    return [kept(Replay(capacity, fields, **options)) for fields in (PLAIN, PACKED)]


def write_both(replays, kind, rng, steps, seen=None):
    """The same to each; ``seen`` gets what each ``priority_fn`` is shown."""

    def priorities(items):
        if seen is not None:
            seen.append({name: np.array(items[name]) for name in ("observation", "number")})
        return np.asarray(items["number"]).reshape(len(items["reward"]), -1)[:, 0] % 7 + 1.0

    writers = [one.writer() if kind == "rows" else one.writer(streams=2, priority_fn=priorities) for one in replays]
    ended = np.zeros(2, bool)
    for t in range(steps):
        n = int(rng.integers(1, 9)) if kind == "rows" else 2
        values = values_of(t * 10 + np.arange(n), rng)
        if kind == "rows":
            for writer in writers:
                writer.extend(values, priorities=values["number"] % 7 + 1.0)
            continue
        terminated = (rng.random(2) < 0.08) & ~ended
        truncated = (rng.random(2) < 0.08) & ~ended & ~terminated
        ended = terminated | truncated
        values |= {"reward": rng.normal(size=2).astype("f4"), "terminated": terminated, "truncated": truncated}
        for writer in writers:
            writer.append(values)
    return writers


def equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31), remover=st.sampled_from(["fifo", "proportional"]))
def test_batches_equal_those_of_plain_fields(kind, seed, remover):
    """While items come and go, several times the capacity."""
    rng = np.random.default_rng(seed)
    plain, packed = pair_of(kind, 60 if remover == "fifo" else 15, remover=remover, seed=seed)
    for _ in range(3):
        write_both([plain, packed], kind, rng, 40)
        for size in (1, 40):
            here, there = plain.sample(size), packed.sample(size)
            equal(here.data, there.data)
            assert here.keys.tolist() == there.keys.tolist()
        packed.update_priorities(there.keys, np.arange(40.0))
        plain.update_priorities(here.keys, np.arange(40.0))
    equal(plain.read(plain.keys()).data, packed.read(packed.keys()).data)
    assert packed.core.native.check() == 0.0
    for one in (plain, packed):
        one.close()


def test_whoever_computes_priorities_sees_values_as_they_were():
    here, there = [], []
    rng = [np.random.default_rng(1) for _ in range(2)]
    plain, packed = pair_of("transition", 200)
    write_both([plain], "transition", rng[0], 60, here)
    write_both([packed], "transition", rng[1], 60, there)
    assert len(here) == len(there) > 0
    for one, other in zip(here, there, strict=True):
        equal(one, other)


def test_a_large_append_is_compressed_in_parts_and_goes_on_where_room_comes():
    rng = np.random.default_rng(2)
    packed = kept(Replay(100, PACKED, alpha=1.0))
    packed.core.own()
    values = values_of(np.arange(500), rng)
    packed.writer().extend(values)
    data = packed.read(packed.keys()).data
    assert 90 < len(packed) <= 100  # the oldest chunk goes whole
    equal(data, {name: value[data["number"]] for name, value in values.items()})


def test_images_take_the_memory_of_their_content(tmp_path):
    rng = np.random.default_rng(3)
    plain, packed = pair_of("rows", 400)
    images = {**values_of(np.arange(400), rng), "observation": frames(np.arange(400), rng, noise=0.0)}
    for i, one in enumerate((plain, packed)):
        one.writer().extend(images)
        one.save(tmp_path / str(i))
    assert packed.stats()["ragged_bytes"] < 0.5 * images["observation"].nbytes
    assert (tmp_path / "1").stat().st_size < 0.5 * (tmp_path / "0").stat().st_size


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_and_a_chain_restore_them(kind, tmp_path):
    rng = np.random.default_rng(5)
    plain, packed = pair_of(kind, 60, seed=4)
    write_both([plain, packed], kind, rng, 80)
    packed.save(tmp_path / "whole")
    chain = packed.snapshots(tmp_path / "chain")
    chain.save()
    loaded = [kept(Replay.load(tmp_path / name)) for name in ("whole", "chain")]
    for size in (3, 40):
        batch = plain.sample(size).data
        for other in (packed, *loaded):
            equal(batch, other.sample(size).data)
    assert loaded[0].core.native.check() == 0.0
    write_both(loaded, kind, rng, 40)
    equal(loaded[0].sample(30).data, loaded[1].sample(30).data)


def host(kind, fields):
    return kept(Replay(2048, fields, sampler="fifo", streams=4, alpha=1.0, eps=0.0, **KINDS[kind]))


def test_chunks_bring_them_to_another_host_compressed():
    rng = np.random.default_rng(8)
    here, there = host("transition", PACKED), host("transition", PACKED)
    plain = host("transition", PLAIN)
    source, sink = ChunkSource(here), ChunkSink(there, Receipts(8), 4)
    assert source.schema != ChunkSource(host("transition", PLAIN)).schema
    sink.open()
    for writer in write_both([here, plain], "transition", rng, 60):
        writer.close()
    sequence = item = sent = 0
    while True:
        heads, body = source.take(1 << 20, 0.0)
        if not len(heads):
            break
        assert sink.commit_frame("host/1", sequence, item, heads, body) == len(heads)
        sequence, item, sent = sequence + len(heads), item + heads.items(), sent + len(body)
    sink.close()
    assert len(there) == len(plain)
    found, count = [], len(plain)
    for one in (plain, there):
        data = one.sample(count).data
        order = np.argsort(data["number"][:, 0] if data["number"].ndim > 1 else data["number"])
        found.append({name: value[order] for name, value in data.items()})
    equal(*found)
    assert sent < 0.8 * 84 * 84 * item


def test_a_chunk_with_a_block_that_is_none_is_refused():
    rng = np.random.default_rng(9)
    here, there = host("transition", PACKED), host("transition", PACKED)
    source, sink = ChunkSource(here), ChunkSink(there, Receipts(8), 4)
    sink.open()
    for writer in write_both([here], "transition", rng, 20):
        writer.close()
    heads, body = source.take(1 << 20, 0.0)
    damaged, first = bytearray(body), heads[0].nbytes
    damaged[first // 4 : first] = b"\xff" * (first - first // 4)
    with pytest.raises(FrameError, match="a compressed value is none of its field"):
        sink.commit_frame("host/1", 0, 0, heads, bytes(damaged))
    assert len(there) == 0
    assert sink.commit_frame("host/1", 0, 0, heads, body) == len(heads)


def test_shards_and_servers_give_them():
    rng = np.random.default_rng(10)
    fields = {"observation": PACKED["observation"], "number": PACKED["number"]}
    images = {"observation": frames(np.arange(300), rng), "number": np.arange(300)}
    replay = kept(Replay(1000, fields, alpha=1.0, writers=1))
    replay.writer().extend(images)
    sharded = ShardedReplay([LocalClient(Shard(replay))], capacity=1000, seed=1)
    data = sharded.sample(64, timeout=5.0).data
    np.testing.assert_array_equal(data["observation"], images["observation"][data["number"]])
    served = kept(Replay(1000, fields, alpha=1.0, writers=1))
    served.writer().extend(images)
    with served.serve(1, 32) as server:
        learner = server.learner(0)
        learner._lease()
        while server.step(0.0):
            pass
        data = learner.sample(timeout=5.0).data
        np.testing.assert_array_equal(data["observation"], images["observation"][data["number"]])


def told(numbers):
    """An image that says its number in every pixel of a row, and noise that follows from it."""
    return np.stack([frames([number], np.random.default_rng(int(number)), noise=0.3)[0] for number in numbers])


def write_for_ever(replay, first, published):
    writer = replay.writer(streams=2)
    no = np.zeros(2, bool)
    for t in range(100_000):
        numbers = np.array([first + 2 * t, first + 2 * t + 1])
        step = {"reward": np.zeros(2, np.float32), "terminated": no, "truncated": no}
        writer.append({"observation": told(numbers), "number": numbers, **step})
        if t % 20 == 19:
            writer.flush()
            published.value = first + 2 * t - 1


def test_killed_writers_lose_only_what_they_had_not_published():
    context = multiprocessing.get_context("fork")
    fields = {"observation": PACKED["observation"], "number": PACKED["number"]}
    replay = kept(Replay(50_000, fields, kind="transition", streams=4, writers=4, alpha=0.0))
    replay.core.own()
    flushed = []
    for generation in range(3):
        count = context.Value("q", -1)
        first = generation * 1_000_000
        writer = context.Process(target=write_for_ever, args=(replay, first, count), daemon=True)
        writer.start()
        deadline = time.monotonic() + 20
        while count.value < first and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(10)
        flushed.append((first, count.value))
    deadline = time.monotonic() + 10
    while replay.stats()["lanes_active"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert replay.stats()["lanes_active"] == 0
    assert replay.core.native.check() == 0.0
    data = replay.read(replay.keys()).data
    np.testing.assert_array_equal(data["observation"], told(data["number"]))
    found = set(data["number"].tolist())
    for first, last in flushed:
        assert last >= first, "a writer published nothing"
        assert not set(range(first, last + 1)) - found


def test_what_cannot_be_compressed_or_changed_is_refused():
    with pytest.raises(SpecError, match="cannot be compressed and ragged or per_item"):
        Field((4,), "uint8", ragged=True, compressed=True)
    with pytest.raises(SpecError, match="cannot be compressed and ragged or per_item"):
        Field((4,), "uint8", per_item=True, compressed=True)
    with pytest.raises(SpecError, match="larger than 0x7E000000 bytes"):
        Field((0x7E000001,), "uint8", compressed=True)
    assert Field((0x7E000000,), "uint8", compressed=True).nbytes < Field((0x7E000001,), "uint8").nbytes
    goals = {"observation/achieved_goal": Field((3,), "float32", compressed=True)}
    with pytest.raises(ConfigError, match="achieved_goal' is compressed"):
        Replay(100, goals, kind="transition", hindsight="future")
    replay = kept(Replay(10, PACKED))
    replay.writer().extend(values_of(np.arange(5), np.random.default_rng(0)))
    with pytest.raises(SpecError, match="'floats' is compressed: it cannot be changed"):
        replay.change(replay.keys(), {"floats": np.zeros((5, 40), np.float32)})
    replay.change(replay.keys(), {"number": np.full(5, 9)})
    assert (replay.sample(3).data["number"] == 9).all()
