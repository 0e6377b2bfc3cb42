"""Rows mode: finished items in, prioritized batches out."""

from __future__ import annotations

import gc
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_replay import powered

from apexrl.errors import ApexrlError, ClosedError, ConfigError, ExhaustedError, PriorityError, SpecError, WaitTimeout
from apexrl.replay import Field, Replay

FIELDS = {
    "observation": Field((4,), "float32"),
    "action": Field((), "int64"),
    "pixels": Field((8, 12), "uint8"),
    "done": Field((), "bool"),
    "half": Field((3,), "float16"),
}


def rows(first, count):
    """Rows whose every value tells their number."""
    number = np.arange(first, first + count)
    return {
        "observation": np.repeat(number[:, None], 4, 1).astype("f4"),
        "action": number.astype("i8"),
        "pixels": np.broadcast_to((number % 251)[:, None, None], (count, 8, 12)).astype("u1").copy(),
        "done": number % 3 == 0,
        "half": np.repeat((number % 1000)[:, None], 3, 1).astype("f2"),
    }


def assert_whole(batch):
    number = batch.data["action"]
    np.testing.assert_array_equal(batch.data["observation"], np.repeat(number[:, None], 4, 1))
    assert (batch.data["pixels"] == (number % 251)[:, None, None]).all()
    np.testing.assert_array_equal(batch.data["done"], number % 3 == 0)
    assert (batch.data["half"] == (number % 1000)[:, None]).all()


def make(**options):
    return Replay(**{"capacity": 1000, "fields": FIELDS, "alpha": 1.0, "eps": 0.0, **options})


def test_what_goes_in_comes_out():
    with make() as replay:
        writer = replay.writer()
        writer.extend(rows(0, 700))
        assert len(replay) == 700
        batch = replay.sample(256)
        assert_whole(batch)
        assert {name: (value.shape, value.dtype) for name, value in batch.data.items()} == {
            "observation": ((256, 4), np.dtype("f4")),
            "action": ((256,), np.dtype("i8")),
            "pixels": ((256, 8, 12), np.dtype("u1")),
            "done": ((256,), np.dtype("?")),
            "half": ((256, 3), np.dtype("f2")),
        }
        assert batch.keys.dtype == np.uint64
        assert batch.weights.dtype == np.float32
        assert batch.probabilities.dtype == np.float64


def test_oracle_probabilities_and_weights():
    """p = [1, 2, 3, 4]: the reference sheet's figures."""
    for alpha, beta, expected_p, expected_w in [
        (1.0, 0.4, [0.1, 0.2, 0.3, 0.4], [1, 0.75786, 0.64439, 0.57435]),
        (0.6, 0.4, [0.14823, 0.22467, 0.28656, 0.34054], [1, 0.84675, 0.76823, 0.71698]),
        (0.6, 1.0, [0.14823, 0.22467, 0.28656, 0.34054], [1, 0.65975, 0.51728, 0.43528]),
    ]:
        with make(alpha=alpha) as replay:
            replay.writer().extend(rows(0, 4), priorities=np.array([1.0, 2.0, 3.0, 4.0]))
            batch = replay.sample(400, beta=beta)
            for number in range(4):
                drawn = batch.data["action"] == number
                np.testing.assert_allclose(batch.probabilities[drawn], expected_p[number], atol=1e-5)
                np.testing.assert_allclose(batch.weights[drawn], expected_w[number], atol=1e-5)
            assert np.isclose(batch.weights.max(), 1.0)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_sampling_frequencies_follow_the_priorities(alpha):
    """Chi-square of 60 000 draws; the seed is fixed, so this cannot flicker."""
    rng = np.random.default_rng(5)
    priorities = 10.0 ** rng.uniform(-3, 1, 300)
    with make(alpha=alpha, seed=11) as replay:
        replay.writer().extend(rows(0, 300), priorities=priorities)
        counts = np.zeros(300)
        for _ in range(600):
            # one draw a time: independent, as the test supposes
            counts += np.bincount(np.concatenate([replay.sample(1).data["action"] for _ in range(100)]), minlength=300)
    expected = powered(priorities, alpha, 0.0)
    expected *= counts.sum() / expected.sum()
    keep = expected >= 5
    chi2 = ((counts[keep] - expected[keep]) ** 2 / expected[keep]).sum()
    degrees = keep.sum() - 1
    assert chi2 < degrees + 4 * np.sqrt(2 * degrees)
    assert chi2 > degrees - 4 * np.sqrt(2 * degrees)


def test_draws_are_stratified():
    with make(seed=3) as replay:
        replay.writer().extend(rows(0, 512), priorities=np.ones(512))
        assert sorted(replay.sample(512).data["action"]) == list(range(512))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_random_calls_equal_the_twin(data):
    """Any order of appends, draws and updates: contents, priorities and lengths as a plain list would have them."""
    capacity = data.draw(st.integers(1, 400))
    alpha, eps = data.draw(st.sampled_from([0.0, 0.6, 1.0])), data.draw(st.sampled_from([0.0, 1e-6, 0.1]))
    with make(capacity=capacity, alpha=alpha, eps=eps, seed=data.draw(st.integers(0, 99))) as replay:
        chunk = replay.stats()["chunk"]
        writer, twin, number, largest = replay.writer(), {}, 0, 0.0
        for _ in range(data.draw(st.integers(1, 12))):
            action = data.draw(st.sampled_from(["extend", "extend", "sample"]))
            if action == "extend":
                count = data.draw(st.integers(0, 2 * capacity))
                given = data.draw(st.booleans())
                priorities = np.random.default_rng(number).uniform(0.01, 5.0, count)
                writer.extend(rows(number, count), priorities=priorities if given else None)
                if given:
                    p = powered(priorities, alpha, eps)
                else:
                    p = np.full(count, largest or powered([1.0], alpha, eps)[0])
                twin.update(zip(range(number, number + count), p, strict=True))
                largest = max([largest, *p.tolist()])
                number += count
            elif len(replay):
                batch = replay.sample(data.draw(st.integers(1, 64)))
                assert_whole(batch)
                alive = {i: twin[i] for i in range(number - len(replay), number)}
                assert set(batch.data["action"].tolist()) <= set(alive)
                expected = np.array([alive[i] for i in batch.data["action"].tolist()]) / sum(alive.values())
                np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)
                new = np.random.default_rng(number + 1).uniform(0.01, 5.0, len(batch))
                result = replay.update_priorities(batch.keys, new)
                assert result == (len(batch), 0)
                for i, p in zip(batch.data["action"].tolist(), powered(new, alpha, eps).tolist(), strict=True):
                    twin[i] = p
                    largest = max(largest, p)
            size = len(replay)
            assert size == number if number < capacity else capacity - chunk < size <= capacity
            assert replay.core.native.check() == 0.0


def test_keys_cannot_hit_a_successor():
    with make(capacity=64) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 64), priorities=np.ones(64))
        batch = replay.sample(64)
        writer.extend(rows(64, 64), priorities=np.ones(64))
        result = replay.update_priorities(batch.keys, np.full(64, 1e6))
        alive = batch.data["action"] >= 128 - len(replay)
        assert result.applied == alive.sum()
        assert result.stale == 64 - alive.sum()
        fresh = replay.sample(64)
        successors = fresh.data["action"] >= 64
        assert successors.any()
        assert (fresh.probabilities[successors] < 0.5).all()
        bogus = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
        assert replay.update_priorities(bogus, np.ones(4)).stale >= 3
        assert replay.core.native.check() == 0.0


def test_outputs_own_their_memory_and_batches_may_be_in_flight():
    with make() as replay:
        writer = replay.writer()
        writer.extend(rows(0, 1000))
        batches = [replay.sample(64) for _ in range(20)]
        copies = [(b.data["action"].copy(), b.data["pixels"].copy(), b.keys.copy(), b.weights.copy()) for b in batches]
        for _ in range(30):
            writer.extend(rows(5000, 100))
            replay.sample(64)
        for b, (action, pixels, keys, weights) in zip(batches, copies, strict=True):
            np.testing.assert_array_equal(b.data["action"], action)
            np.testing.assert_array_equal(b.data["pixels"], pixels)
            np.testing.assert_array_equal(b.keys, keys)
            np.testing.assert_array_equal(b.weights, weights)
        assert replay.update_priorities(batches[0].keys, np.ones(64)).applied <= 64


def test_a_view_keeps_a_batch_alive():
    with make() as replay:
        replay.writer().extend(rows(0, 1000))
        view = replay.sample(64).data["pixels"][3:9, 2]
        raw = memoryview(replay.sample(64).data["observation"])
        kept, bytes_ = view.copy(), bytes(raw)
        for _ in range(10):
            replay.sample(64)
        np.testing.assert_array_equal(view, kept)
        assert bytes(raw) == bytes_


def test_dropped_batches_are_reused():
    with make() as replay:
        replay.writer().extend(rows(0, 1000))
        first = replay.sample(64)
        where = first.data["pixels"].ctypes.data
        del first
        gc.collect()
        assert replay.sample(64).data["pixels"].ctypes.data == where


def test_same_seed_same_draws():
    def draws(seed):
        with make(seed=seed) as replay:
            writer = replay.writer()
            out = []
            for i in range(20):
                writer.extend(rows(i * 90, 90), priorities=np.linspace(0.1, 3, 90))
                batch = replay.sample(32)
                out.append((batch.data["action"].tolist(), batch.keys.tolist()))
                replay.update_priorities(batch.keys, np.linspace(2, 0.1, 32))
            return out

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


def test_len_is_right_before_anyone_samples():
    with make() as replay:
        writer = replay.writer()
        assert len(replay) == 0
        for i in range(13):
            writer.extend(rows(i * 70, 70))
            assert len(replay) == (i + 1) * 70
        assert replay.owner_pid == 0


def test_one_process_may_fill_past_capacity_without_sampling():
    with make(capacity=200) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 5000))
        assert 200 - replay.stats()["chunk"] < len(replay) <= 200
        assert replay.sample(64).data["action"].min() >= 5000 - 200


def test_default_priority_is_the_largest_so_far():
    with make() as replay:
        writer = replay.writer()
        writer.extend(rows(0, 1))
        np.testing.assert_allclose(replay.sample(1).probabilities, 1.0)
        writer.extend(rows(1, 1), priorities=np.array([7.0]))
        writer.extend(rows(2, 1))
        batch = replay.sample(300)
        for number, p in [(0, 1 / 15), (1, 7 / 15), (2, 7 / 15)]:
            np.testing.assert_allclose(batch.probabilities[batch.data["action"] == number], p)


# --- refusals


def test_wrong_fields_are_refused_by_name():
    with make() as replay:
        writer = replay.writer()
        good = rows(0, 5)
        for change, words in [
            ({"action": None}, ["missing", "'action'"]),
            ({"extra": np.zeros(5)}, ["unknown", "'extra'"]),
            ({"observation": np.zeros((5, 3), "f4")}, ["'observation'", "[5, 3]", "[N, 4]"]),
            ({"observation": np.zeros((5, 4), "f8")}, ["'observation'", "float64", "float32"]),
            ({"action": np.zeros(4, "i8")}, ["'action'", "4 rows", "5"]),
            ({"done": np.zeros(5, "u1")}, ["'done'", "uint8", "bool"]),
            ({"action": np.zeros((5, 1), "i8")}, ["'action'", "[5, 1]"]),
            ({"action": object()}, ["'action'"]),
            ({"action": np.int64(3)}, ["'action'", "shape"]),
        ]:
            values = {**good, **change}
            if change.get("action", 0) is None:
                del values["action"]
            with pytest.raises(SpecError) as error:
                writer.extend(values)
            for word in words:
                assert word in str(error.value), (change, str(error.value))
        with pytest.raises(SpecError, match="mapping"):
            writer.extend([1, 2, 3])
        assert len(replay) == 0
        writer.extend(good)
        assert len(replay) == 5


def test_lists_and_strided_arrays_are_taken():
    with make() as replay:
        writer = replay.writer()
        wide = {name: np.repeat(value, 2, 0)[::2] for name, value in rows(0, 6).items()}
        writer.extend(wide)
        writer.extend({**rows(6, 2), "action": [6, 7], "done": [True, False]})
        assert_whole(replay.sample(64))
        assert len(replay) == 8


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-9, 1e200])
def test_bad_priorities_are_refused_by_row(bad):
    with make() as replay:
        writer = replay.writer()
        priorities = np.ones(10)
        priorities[6] = bad
        with pytest.raises(PriorityError, match="row 6"):
            writer.extend(rows(0, 10), priorities=priorities)
        assert len(replay) == 0
        writer.extend(rows(0, 10))
        batch = replay.sample(10)
        with pytest.raises(PriorityError, match="row 6"):
            replay.update_priorities(batch.keys, priorities)
        with pytest.raises(PriorityError, match="row 0"):
            replay.update_priorities(batch.keys, np.full(10, bad, "f8"))
        assert replay.core.native.check() == 0.0
        np.testing.assert_allclose(replay.sample(10).probabilities, 0.1)


def test_wrong_priority_shapes_are_refused():
    with make() as replay:
        writer = replay.writer()
        with pytest.raises(SpecError, match="priorities"):
            writer.extend(rows(0, 10), priorities=np.ones(9))
        with pytest.raises(SpecError, match="priorities"):
            writer.extend(rows(0, 10), priorities=np.ones((10, 1)))
        writer.extend(rows(0, 10), priorities=[1] * 10)
        with pytest.raises(SpecError, match="keys"):
            replay.update_priorities([1, 2], [1.0, 2.0])
        with pytest.raises(SpecError, match="priorities"):
            replay.update_priorities(replay.sample(4).keys, np.ones(5))


def test_sampling_an_empty_replay_waits_then_raises():
    with make() as replay:
        with pytest.raises(WaitTimeout, match="0 items"):
            replay.sample(4, timeout=0.05)
        replay.writer().extend(rows(0, 1))
        assert len(replay.sample(4)) == 4
    with make(min_size=50) as replay:
        replay.writer().extend(rows(0, 49))
        with pytest.raises(WaitTimeout, match=r"49 items.*50"):
            replay.sample(4, timeout=0.05)


def test_all_priorities_zero():
    with make(eps=0.0) as replay:
        replay.writer().extend(rows(0, 10), priorities=np.zeros(10))
        with pytest.raises(WaitTimeout, match="zero"):
            replay.sample(4, timeout=0.05)


def test_closed_is_said():
    replay = make()
    writer = replay.writer()
    writer.extend(rows(0, 3))
    replay.close()
    replay.close()
    for call in (
        lambda: replay.sample(1),
        lambda: writer.extend(rows(0, 1)),
        lambda: replay.writer().extend(rows(0, 1)),
        lambda: replay.update_priorities(np.zeros(1, "u8"), np.ones(1)),
    ):
        with pytest.raises(ClosedError):
            call()


def test_lanes_run_out_and_come_back():
    with make(writers=2) as replay:
        first, second, third = replay.writer(), replay.writer(), replay.writer()
        first.extend(rows(0, 1))
        second.extend(rows(1, 1))
        with pytest.raises(ExhaustedError, match="writers="):
            third.extend(rows(2, 1))
        first.close()
        third.extend(rows(2, 1))
        assert len(replay) == 3


def test_wrong_options_are_refused():
    for options, word in [
        ({"capacity": 0}, "capacity"),
        ({"capacity": 1.5}, "capacity"),
        ({"alpha": -1}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"kind": "sequence-of"}, "kind"),
        ({"writers": 0}, "writers"),
        ({"stack": 4}, "stack"),
        ({"min_size": 2000}, "min_size"),
    ]:
        with pytest.raises(ConfigError, match=word):
            make(**options)
    with pytest.raises(SpecError):
        make(fields={})
    with pytest.raises(SpecError, match="object"):
        Field((), "object")
    with pytest.raises(TypeError):
        make(alhpa=0.6)
    with make() as replay:
        with pytest.raises(ApexrlError, match="extend"):
            replay.writer().append({})
        with pytest.raises(ConfigError):
            replay.writer(streams=4)
        with pytest.raises(ConfigError, match="batch_size"):
            replay.sample(0)


def test_a_pickled_handle_is_the_same_replay():
    with make() as replay:
        twin = pickle.loads(pickle.dumps(replay))
        writer = pickle.loads(pickle.dumps(replay.writer()))
        writer.extend(rows(0, 10))
        assert len(twin) == len(replay) == 10
        assert_whole(twin.sample(5))


def test_a_file_backed_replay_leaves_nothing(tmp_path):
    replay = make(directory=str(tmp_path))
    replay.writer().extend(rows(0, 10))
    assert len(os.listdir(tmp_path)) == 1
    assert_whole(pickle.loads(pickle.dumps(replay)).sample(5))
    replay.close()
    del replay
    gc.collect()
    assert os.listdir(tmp_path) == []
