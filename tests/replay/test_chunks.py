"""Chunks between hosts: what arrives is what was written, once, whoever dies and whatever is dropped."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
from chunk_pair import FIELDS, KINDS, Simulator, everything, fields, pair, sound_chunk
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl._native import ChunkHeads
from apexrl.errors import ConfigError, ExhaustedError, FrameError, WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.chunks import ChunkSink, ChunkSource, Receipts, schema


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_items_arrive_as_they_were_written(kind, data):
    """The twin is a replay of the same steps without a journey; dropped chunks are missing, and nothing else."""
    seed = data.draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    capacity = data.draw(st.sampled_from([600, 4096]))  # with the smaller one, chunks are shorter than the sender's
    here, source, there, receipts, sink = pair(kind, capacity)
    twin = Replay(4096, fields(kind), sampler="fifo", streams=2, **KINDS[kind])
    simulator = Simulator(2, seed, kind)
    writer, twin_writer = here.writer(streams=2), twin.writer(streams=2)
    drop = data.draw(st.sampled_from([0.0, 0.0, 0.3]))
    sequence = item = missing = behind = 0
    for _ in range(data.draw(st.integers(30, 250))):
        steps = simulator.step()
        writer.append(steps)
        twin_writer.append(steps)
        if rng.random() < 0.2:
            heads, body = source.take(int(rng.integers(1, 60_000)), 0.0)
            offset = 0
            for head in heads:
                if rng.random() < drop:
                    behind += head.items
                else:
                    assert sink.commit("host/1", sequence, item, head, body, offset)
                    missing, behind = missing + behind, 0
                sequence, item, offset = sequence + 1, item + head.items, offset + head.nbytes
    heads, body = source.take(2**30, 0.0)
    offset = 0
    for head in heads:
        assert sink.commit("host/1", sequence, item, head, body, offset)
        missing, behind = missing + behind, 0
        sequence, item, offset = sequence + 1, item + head.items, offset + head.nbytes
    sink.close()
    account = receipts.read("host/1")
    assert account.committed + account.missing + behind == item
    assert account.missing == missing
    found, expected = everything(kind, there), everything(kind, twin)
    assert item == len(expected)
    assert len(found) == account.committed
    assert all(expected[number] == value for number, value in found.items())
    if not missing and not behind:
        assert found.keys() == expected.keys()
    for replay in (here, there, twin):
        replay.close()


def test_priorities_travel():
    """What an actor computed is what the learner draws by: eps and alpha are applied once, where it was written."""
    options = {"kind": "transition", "alpha": 0.5, "eps": 0.0}
    one = {"number": Field((), "int64")}
    here = Replay(4096, one, sampler="fifo", streams=1, **options)
    there = Replay(4096, one, streams=2, **options)
    sink, source = ChunkSink(there, Receipts(8), 1), ChunkSource(here)
    sink.open()
    writer = here.writer(streams=1, priority_fn=lambda items: (items["number"] ** 2).astype(np.float32))
    for number in range(65):
        end = np.array([False])
        writer.append({"number": np.array([number]), "reward": np.zeros(1), "terminated": end, "truncated": end})
    heads, body = source.take(2**20, 0.0)
    offset = item = 0
    for sequence, head in enumerate(heads):
        sink.commit("host/1", sequence, item, head, body, offset)
        offset, item = offset + head.nbytes, item + head.items
    batch = there.sample(256, beta=1.0)
    np.testing.assert_allclose(batch.probabilities, batch.data["number"] / np.arange(64).sum())
    assert there.core.native.check() < 1e-9


def test_a_chunk_is_committed_once():
    here, source, there, receipts, sink = pair("transition", 4096)
    simulator, writer = Simulator(2, 1, "transition"), here.writer(streams=2)
    for _ in range(100):
        writer.append(simulator.step())
    (head, *_), body = source.take(1, 0.0)
    assert sink.commit("host/1", 0, 0, head, body)
    assert not sink.commit("host/1", 0, 0, head, body)
    successor = ChunkSink(there, pickle.loads(pickle.dumps(receipts)), 4)
    sink.close()
    successor.open()
    assert not successor.commit("host/1", 0, 0, head, body)
    assert successor.commit("host/2", 0, 0, head, body)  # another generation numbers anew
    assert receipts.read("host/1")[1:] == (head.items, 0, 2 * head.items)
    assert receipts.totals()[1:] == (2 * head.items, 0, 2 * head.items)


def test_what_a_server_remembers_is_not_taken_again():
    here, source, _, receipts, sink = pair("transition", 4096)
    simulator, writer = Simulator(2, 1, "transition"), here.writer(streams=2)
    for _ in range(100):
        writer.append(simulator.step())
    (head, *_), body = source.take(1, 0.0)
    receipts.restore({"host/1": 7})
    assert not sink.commit("host/1", 6, 500, head, body)
    assert sink.commit("host/1", 7, 600, head, body)
    assert receipts.read("host/1")[:3] == (8, head.items, 0)


def test_a_frame_that_is_partly_there_is_committed_from_its_first_new_chunk():
    """Also when only the server remembers the sender: what was committed before these receipts is not missing."""
    here, source, there, receipts, sink = pair("transition", 4096)
    simulator, writer = Simulator(2, 1, "transition"), here.writer(streams=2)
    for _ in range(300):
        writer.append(simulator.step())
    heads, body = source.take(2**20, 0.0)
    assert len(heads) > 4
    receipts.restore({"host/1": 102})
    assert sink.commit_frame("host/1", 100, 5000, heads, body) == len(heads)
    repeated = heads[0].items + heads[1].items
    after = receipts.read("host/1")
    assert after == (100 + len(heads), heads.items() - repeated, 0, repeated)
    assert len(there) == heads.items() - repeated


def test_a_frame_is_committed_up_to_the_chunk_that_lies_or_finds_no_room():
    here, source, there, receipts, sink = pair("transition", 300)
    simulator, writer = Simulator(2, 1, "transition"), here.writer(streams=2)
    for _ in range(300):
        writer.append(simulator.step())
    heads, body = source.take(2**20, 0.0)
    rows = [*heads]
    lying = ChunkHeads([*rows[:2], rows[2]._replace(rows=rows[2].rows + 1), *rows[3:]])
    assert sink.commit_frame("host/1", 0, 0, lying, body) == 2
    with pytest.raises(FrameError, match="chunk 2 of host/1 is refused"):
        sink.commit_frame("host/1", 0, 0, lying, body, 2)
    done = sink.commit_frame("host/1", 0, 0, heads, body, 2)
    assert 2 < done < len(heads)  # full
    there.sample(len(there))
    assert sink.commit_frame("host/1", 0, 0, heads, body, done, timeout=5.0) > done
    assert receipts.read("host/1").missing == receipts.read("host/1").repeated == 0
    with pytest.raises(FrameError, match="cut off"):
        sink.commit_frame("host/2", 0, 0, heads, body[:100])


def test_the_quietest_sender_is_forgotten_and_its_books_are_not():
    receipts = Receipts(2)
    rows = [receipts.account(f"host/{n}") for n in range(3)]
    assert rows[0] == rows[2] != rows[1]
    receipts._table[rows[1], 3] = 10
    receipts.account("host/4")
    receipts.account("host/5")
    assert receipts.totals().committed == 10


def test_counters_belong_to_the_host_whatever_lives_its_senders_have():
    receipts = Receipts(8)
    assert receipts.count("host", [5, 2], first=True) == [5, 2]
    assert receipts.count("host", [7, 1], first=False) == [2, 0]
    assert receipts.count("host", [9, 4], first=True) == [2, 2]  # another generation
    assert receipts.count("late", [9, 4], first=False) == [9, 4]


def test_a_resumed_run_counts_from_where_hosts_are_by_now():
    """The replay that they worked for is gone, and so are its receipts."""
    original = Receipts(8, resumed=True)
    receipts = pickle.loads(pickle.dumps(original))
    assert receipts.count("host", [9000, 70], first=False) == [0, 0]
    assert receipts.count("host", [9010, 71], first=False) == [10, 1]
    assert receipts.count("new", [6, 1], first=True) == [6, 1]
    head, body, *_ = sound_chunk()
    there = Replay(4096, fields("transition"), streams=4, **KINDS["transition"])
    sink = ChunkSink(there, receipts, 4)
    sink.open()
    assert sink.commit("host/1", 40, 5000, head, body)
    assert receipts.read("host/1")[:3] == (41, head.items, 0)


def test_streams_that_ended_do_not_keep_what_is_old():
    """An open chunk is never evicted: those of hosts that left are closed, and their items go in their turn."""
    head, body, *_ = sound_chunk()
    there = Replay(4096, fields("transition"), streams=65, **KINDS["transition"])
    sink = ChunkSink(there, Receipts(100), 64)
    sink.open()
    for generation in range(60):
        sink.commit(f"host/{generation}", 0, 0, head, body)
    assert sink.close_idle(60.0) == 0
    assert sink.close_idle(0.0) == 60
    assert sink.close_idle(0.0) == 0
    sink.commit("host/100", 0, 0, head, body)
    before = there.stats()["evicted"]
    there.sample(1)
    with there.writer(streams=1) as writer:
        end = np.array([False])
        for number in range(9000):
            values = {name: np.zeros((1, *field.shape), field.dtype) for name, field in FIELDS.items()}
            values["number"] += 5_000_000 + number
            writer.append({**values, "reward": np.zeros(1), "terminated": end, "truncated": end})
    assert there.stats()["evicted"] > before
    numbers = there.sample(2000).data["number"]
    assert (numbers < 5_000_000).mean() < 0.1  # but for that of the last, which is open still


def test_chunks_wait_while_the_replay_takes_none():
    here, source, there, receipts, sink = pair("transition", 64)
    simulator, writer = Simulator(2, 1, "transition"), here.writer(streams=2)
    for _ in range(120):
        writer.append(simulator.step())
    heads, body = source.take(2**20, 0.0)
    sequence = item = offset = 0
    with pytest.raises(WaitTimeout):
        for head in heads:
            sink.commit("host/1", sequence, item, head, body, offset)
            sequence, item, offset = sequence + 1, item + head.items, offset + head.nbytes
    taken = receipts.read("host/1").committed
    there.sample(taken)
    head = heads[sequence]
    sink.commit("host/1", sequence, item, head, body, offset, timeout=5.0)  # goes on where it was
    assert receipts.read("host/1")[:3] == (sequence + 1, item + head.items, 0)


def test_more_streams_than_were_said_take_turns():
    """The stream that was quiet for longest begins a new slot when it comes again."""
    here, source, there, _, other = pair("transition", 4096, streams=6)
    other.close()
    sink = ChunkSink(there, Receipts(8), 2)
    sink.open()
    simulator, writer = Simulator(6, 1, "transition"), here.writer(streams=6)
    sequence = item = 0
    for _ in range(10):
        for _ in range(10):
            writer.append(simulator.step())
        heads, body = source.take(2**20, 0.0)
        offset = 0
        for head in heads:
            sink.commit("host/1", sequence, item, head, body, offset)
            sequence, item, offset = sequence + 1, item + head.items, offset + head.nbytes
    sink.close()
    assert len(everything("transition", there)) == item > 500


def take_and_die(here, most, taken):
    taken.put(ChunkSource(here).take(most, 0.0)[0].items())


@pytest.mark.parametrize("owner", ["same", "successor"])
def test_what_waits_for_another_host_can_be_read_saved_and_sampled(owner, tmp_path):
    here, source, *_ = pair("transition", 4096)
    twin = Replay(8192, fields("transition"), sampler="fifo", streams=2, **KINDS["transition"])
    simulator = Simulator(2, 3, "transition")
    with here.writer(streams=2) as writer, twin.writer(streams=2) as twin_writer:
        for number in range(3100):  # slots are used again, with final observations, which are no items, in other places
            steps = simulator.step()
            writer.append(steps)
            twin_writer.append(steps)
            if number < 3000:
                source.take(2**20, 60.0)
    source.take(20_000, 60.0)
    if owner == "successor":
        here.core.native.disown()
        context = multiprocessing.get_context("spawn")
        answer = context.SimpleQueue()
        process = context.Process(target=take_and_die, args=(here, 10_000, answer))
        process.start()
        assert answer.get() > 0
        process.join()
    expected = everything("transition", twin)
    keys = here.keys()
    numbers = here.read(keys).data["number"].tolist()
    assert len(numbers) == len(keys) == len(here) > 50
    assert expected.keys() >= set(numbers)
    here.save(tmp_path / "saved")
    for replay in (Replay.load(tmp_path / "saved"), here):
        found = everything("transition", replay)
        assert list(found) == numbers
        assert all(expected[number] == value for number, value in found.items())
        replay.close()


def test_a_slot_being_written_waits_for_more():
    here, source, *_ = pair("transition", 4096)
    simulator, writer = Simulator(2, 3, "transition"), here.writer(streams=2)
    for _ in range(20):
        writer.append(simulator.step())
    heads, body = source.take(2**20, 60.0)
    assert (len(heads), body) == (0, b"")
    heads, _ = source.take(2**20, 0.0)
    assert sum(head.items for head in heads) == here.stats()["sampled"]
    for _ in range(80):
        writer.append(simulator.step())
    heads, _ = source.take(2**20, 60.0)  # the full ones go at once
    assert {head.first + head.positions for head in heads} == {64}


def test_what_does_not_fit_is_said():
    plain = {"number": Field((), "int64")}
    with pytest.raises(ConfigError, match="fifo"):
        ChunkSource(Replay(100, plain, kind="transition"))
    with pytest.raises(ConfigError, match="fifo"):
        ChunkSource(Replay(100, plain, sampler="fifo"))
    replay = Replay(1000, plain, kind="transition", writers=1, streams=2)
    with pytest.raises(ExhaustedError, match="streams"):
        ChunkSink(replay, Receipts(8), 3).open()
    first = ChunkSink(replay, Receipts(8), 1)
    first.open()
    with pytest.raises(ExhaustedError, match="writer lane"):
        ChunkSink(replay, Receipts(8), 1).open()


def test_the_schema_says_what_fits():
    plain = {"number": Field((), "int64")}
    base = schema(plain, kind="transition", capacity=100)
    assert base == schema(plain, kind="transition", capacity=5000, sampler="fifo", writers=3, seed=5)
    assert base == ChunkSource(Replay(100, plain, kind="transition", sampler="fifo")).schema
    others = [
        schema({"number": Field((), "int32")}, kind="transition", capacity=100),
        schema({"numbers": Field((), "int64")}, kind="transition", capacity=100),
        schema(plain, kind="transition", capacity=100, n_step=2),
        schema(plain, kind="transition", capacity=100, alpha=0.5),
        schema(plain, kind="unroll", length=3, capacity=100),
    ]
    assert len({base, *others}) == 6
