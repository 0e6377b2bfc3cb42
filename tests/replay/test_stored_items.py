"""Items by their keys: read in order, deleted and changed, against a dictionary; and deaths in the middle of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl.errors import ConfigError, OwnershipError, SpecError
from apexrl.replay import Field, Replay

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"id": Field((), "int64"), "image": Field((40, 40), "uint8"), "value": Field((3,), "float32")}


def make(capacity=200, **options):
    return Replay(capacity, FIELDS, **{"alpha": 1.0, "eps": 0.0, "writers": 2, **options})


def rows(first, count):
    ids = np.arange(first, first + count)
    image = np.broadcast_to((ids % 256)[:, None, None], (count, 40, 40)).astype("u1")
    return {"id": ids, "image": image, "value": np.zeros((count, 3), "f4")}


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_reads_deletes_and_changes_against_a_dictionary(data):
    options = data.draw(
        st.sampled_from([{}, {"sampler": "uniform"}, {"recency_half_life": 0.1}, {"remover": "proportional"}])
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    twin, written, deleted, gone = {}, 0, 0, np.empty(0, np.uint64)  # id -> its value
    with make(**options) as replay:
        writer = replay.writer()
        for _ in range(data.draw(st.integers(1, 20))):
            count = int(rng.integers(0, 60))
            writer.extend(rows(written, count))
            twin.update((i, 0.0) for i in range(written, written + count))
            written += count
            found = replay.read(replay.keys())
            ids = found.data["id"].tolist()
            assert ids == sorted(ids)
            assert len(ids) == len(replay)
            twin = {i: twin[i] for i in ids}  # the rest was removed
            np.testing.assert_array_equal(found.data["value"], np.array([[twin[i]] * 3 for i in ids]).reshape(-1, 3))
            np.testing.assert_array_equal(found.data["image"][:, 7, 7], np.array(ids, "i8") % 256)
            assert replay.read(gone).data["id"].tolist() == []
            if "recency_half_life" not in options and ids:
                np.testing.assert_allclose(found.probabilities, 1 / len(ids))
            chosen = rng.random(len(ids)) < 0.3
            number = float(rng.integers(1, 1000))
            values = np.full((int(chosen.sum()), 3), number, "f4")
            assert replay.change(found.keys[chosen], {"value": values}) == (chosen.sum(), 0)
            twin.update((i, number) for i in np.array(ids, int)[chosen])
            out = rng.random(len(ids)) < 0.2
            assert replay.delete(found.keys[out]) == (out.sum(), 0)
            assert replay.delete(found.keys[out]) == (0, out.sum())
            assert replay.change(found.keys[out], {"id": np.zeros(out.sum(), "i8")}) == (0, out.sum())
            assert replay.update_priorities(found.keys[out], np.ones(out.sum())).applied == 0
            for i in np.array(ids, int)[out]:
                del twin[i]
            gone, deleted = np.append(gone, found.keys[out]), deleted + int(out.sum())
            stats = replay.stats()
            assert stats["size"] == len(twin)
            assert stats["inserted"] - stats["evicted"] - stats["deleted"] == len(twin)
            assert stats["deleted"] == deleted
            if twin:
                drawn = replay.sample(40).data
                assert set(drawn["id"].tolist()) <= set(twin)
                assert drawn["value"][:, 1].tolist() == [twin[i] for i in drawn["id"]]
            assert replay.core.native.check() == 0.0


def test_deleted_items_make_room():
    with make(64, writers=1) as replay:
        writer = replay.writer()
        for turn in range(300):
            writer.extend(rows(60 * turn, 60))
            keys = replay.keys()
            assert replay.delete(keys) == (60, 0)
            assert len(replay) == 0
        assert replay.stats()["evicted"] == 0


STEPS = {"observation": Field((), "int64"), "action": Field((), "int64"), "noise": Field((2,), "float32")}


def play(replay, steps, stream=0):
    """Steps of one stream: the observation counts, and an episode has ten steps."""
    writer = replay.writer()
    for t in range(steps):
        values = {name: [t] for name in replay.core.layout.names() if name in ("observation", "action")}
        values |= {"noise": [[0.0, 0.0]]} if "noise" in replay.core.layout.names() else {}
        values |= {"state": [[float(t)]]} if "state" in replay.core.layout.names() else {}
        writer.append({**values, "reward": [1.0], "terminated": [False], "truncated": [t % 11 == 9]})
    writer.flush()
    return writer


def test_transitions_are_deleted_and_changed_one_by_one():
    with Replay(400, STEPS, kind="transition", n_step=2, stack=2, alpha=0.0, streams=1) as replay:
        _writer = play(replay, 100)
        before = replay.read(replay.keys())
        at = before.data["observation"][:, 1]
        assert at.tolist() == [t for t in range(98) if t % 11 != 10]
        odd = at % 2 == 1
        assert replay.delete(before.keys[odd]) == (odd.sum(), 0)
        noise = np.stack([at[~odd], -at[~odd]], 1).astype("f4")
        assert replay.change(before.keys[~odd], {"noise": noise, "action": at[~odd] + 1000}).stale == 0
        for batch in (replay.read(replay.keys()), replay.sample(200)):
            at = batch.data["observation"][:, 1]
            assert (at % 2 == 0).all()
            np.testing.assert_array_equal(batch.data["noise"], np.stack([at, -at], 1))
            np.testing.assert_array_equal(batch.data["action"], at + 1000)
            np.testing.assert_array_equal(  # windows still hold the steps of deleted items
                batch.data["next_observation"][:, 1], np.minimum(at + 2, at // 11 * 11 + 10)
            )
        with pytest.raises(SpecError, match="'observation' is windowed"):
            replay.change(replay.keys()[:1], {"observation": np.zeros(1, "i8")})


def test_recurrent_states_of_sequences_are_refreshed():
    fields = {"observation": Field((), "int64"), "state": Field((1,), "float32", per_item=True)}
    with Replay(400, fields, kind="sequence", length=5, stride=5, burn_in=2, alpha=0.0, streams=1) as replay:
        _writer = play(replay, 110)
        batch = replay.sample(60)
        batch.data["state"] += 5000
        assert replay.change(batch.keys, {"state": batch.data["state"]}) == (60, 0)
        fresh = dict(zip(batch.keys.tolist(), batch.data["state"][:, 0].tolist(), strict=True))
        found = replay.read(replay.keys())
        for key, state in zip(found.keys.tolist(), found.data["state"][:, 0].tolist(), strict=True):
            assert state == fresh.get(key, state)
            assert (state >= 5000) == (key in fresh)
        with pytest.raises(SpecError, match="'observation' has values of steps"):
            replay.change(batch.keys, {"observation": np.zeros(60, "i8")})


def test_wrong_calls_are_refused():
    with make() as replay:
        replay.writer().extend(rows(0, 20))
        keys = replay.keys()
        for values, words in (
            ({"weight": np.zeros(20)}, "unknown field 'weight'"),
            ({"value": np.zeros((20, 3))}, "'value' has dtype float64"),
            ({"value": np.zeros((20, 2), "f4")}, r"\[20, 2\], expected"),
            ({"value": np.zeros((19, 3), "f4")}, "19 rows, but there are 20 keys"),
        ):
            with pytest.raises(SpecError, match=words):
                replay.change(keys, values)
        with pytest.raises(SpecError, match="uint64"):
            replay.read([1.5])
        with pytest.raises(ConfigError, match="batch_size=0"):
            replay.in_order(0)
        assert replay.read(np.array([2**64 - 1, 0, 3], np.uint64)).data["id"].tolist() in ([], [0], [3], [0, 3])
    with Replay(50, {"text": Field((9,), "uint8", ragged=True), "id": Field((), "int64")}) as ragged:
        ragged.writer().extend({"text": [[1, 2], [3]], "id": [0, 1]})
        assert ragged.read(ragged.keys()).data["text"][:, :3].tolist() == [[1, 2, 0], [3, 0, 0]]
        assert ragged.delete(ragged.keys()[:1]) == (1, 0)
        for name, value in (("text", np.ones((1, 9), "u1")), ("text/length", np.ones(1, "i4"))):
            with pytest.raises(SpecError, match="is ragged or says"):
                ragged.change(ragged.keys(), {name: value})
    with make(sampler="fifo") as queue:
        queue.writer().extend(rows(0, 20))
        assert queue.sample(5).data["id"].tolist() == list(range(5))
        assert [i for batch in queue.in_order(4) for i in batch.data["id"].tolist()] == list(range(5, 20))
        with pytest.raises(ConfigError, match="gives every item out once"):
            queue.delete(queue.keys())
        assert queue.sample(15).data["id"].tolist() == list(range(5, 20))


def write_for_ever(replay, pipe):
    writer, first = replay.writer(), 0
    pipe.send(None)
    while True:
        writer.extend(rows(first, 10), timeout=60)
        first += 10


def test_reading_in_order_beside_a_writer():
    with make(2000) as replay:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=write_for_ever, args=(replay, theirs), daemon=True)
        process.start()
        assert ours.poll(120)
        try:
            replay.sample(8, timeout=60)
            while len(replay) < 1500:
                time.sleep(0.01)
            most = 0
            for _ in range(10):
                before = replay.stats()["inserted"]
                seen = []
                for batch in replay.in_order(100):
                    ids = batch.data["id"]
                    np.testing.assert_array_equal(batch.data["image"][:, 3, 3], ids % 256)
                    seen += ids.tolist()
                assert seen == sorted(set(seen))
                most = max(most, len(seen))
            assert most > 100  # the writer overtakes a pass of a reader that waits for a core
            while replay.stats()["inserted"] == before:
                time.sleep(0.01)
        finally:
            process.kill()
            process.join()


def change_for_ever(replay, pipe):
    keys = replay.keys()
    pipe.send(None)
    for number in range(1, 1 << 30):
        image = np.full((len(keys), 40, 40), number % 256, np.uint8)
        replay.change(keys, {"image": image, "value": np.full((len(keys), 3), number % 256, "f4")})


def delete_and_report(replay, pipe):
    keys = replay.keys()
    for key in keys:
        replay.delete(np.array([key]))
        pipe.send(int(key))


def test_a_kill_during_changes_costs_one_item_at_most():
    with make(100) as replay:
        replay.writer().extend(rows(0, 100))
        left = 100
        for _ in range(2):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=change_for_ever, args=(replay, theirs), daemon=True)
            process.start()
            assert ours.poll(120)
            with pytest.raises(OwnershipError):
                replay.keys()
            time.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            found = replay.read(replay.keys())
            assert left - 1 <= len(found) <= left  # whole items alone
            left = len(found)
            assert (found.data["image"] == found.data["image"][:, :1, :1]).all()
            np.testing.assert_array_equal(found.data["value"][:, 2], found.data["image"][:, 0, 0])
            assert replay.core.native.check() == 0.0
            replay.release()


def test_a_kill_during_deletes_undoes_none():
    with make(100) as replay:
        replay.writer().extend(rows(0, 100))
        keys = replay.keys()
        replay.release()
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=delete_and_report, args=(replay, theirs), daemon=True)
        process.start()
        gone = [ours.recv() for _ in range(30)]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while ours.poll(0.1):
            try:
                gone.append(ours.recv())
            except EOFError:
                break
        left = replay.keys().tolist()
        assert gone == keys[: len(gone)].tolist()
        assert left in (keys[len(gone) :].tolist(), keys[len(gone) + 1 :].tolist())
        assert len(replay) == len(left)
