"""The limiter at run time, memory that runs out, and values that do not fit."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import numpy as np
import pytest

from apexrl.errors import ConfigError, SpecError, WaitTimeout
from apexrl.replay import Field, Replay


def rows(first, count):
    return {"number": np.arange(first, first + count)}


def make(**options):
    return Replay(fields={"number": Field((), "int64")}, **options)


def test_a_changed_rate_counts_from_now_on():
    """Neither side stands still for as long as the history is."""
    with make(capacity=5000, min_size=100, samples_per_insert=16.0, insert_band=0.5) as replay:
        writer = replay.writer()
        for _ in range(200):
            with contextlib.suppress(WaitTimeout):
                writer.extend(rows(0, 50), timeout=0.0)
            with contextlib.suppress(WaitTimeout):
                replay.sample(100, timeout=0.0)
        for rate in (1.0, 8.0, 0.25):
            replay.set_limiter(samples_per_insert=rate)
            inserted, sampled = replay.stats()["inserted"], replay.stats()["sampled"]
            for _ in range(400):
                with contextlib.suppress(WaitTimeout):
                    writer.extend(rows(0, 50), timeout=0.0)
                with contextlib.suppress(WaitTimeout):
                    replay.sample(20, timeout=0.0)
            stats = replay.stats()
            assert (stats["sampled"] - sampled) / (stats["inserted"] - inserted) == pytest.approx(rate, rel=0.25)


@pytest.mark.parametrize("timeout", [np.nan, None, "1"])
def test_a_timeout_that_is_no_number_is_no_end(timeout):
    with make(capacity=4, sampler="fifo", max_times_sampled=1) as replay:
        with pytest.raises(ConfigError, match="timeout= must be seconds"):
            replay.sample(2, timeout=timeout)
        writer = replay.writer()
        writer.extend(rows(0, 4))
        with pytest.raises(ConfigError, match="timeout= must be seconds"):
            writer.extend(rows(4, 8), timeout=timeout)
        with pytest.raises(ConfigError, match="timeout= must be seconds, not NaN"):
            replay.writer().extend(rows(0, 1), timeout=np.nan)  # also where there is room


def test_an_owner_that_cannot_be_made_leaves_the_replay_free():
    """Memory runs out while the owner is made: the next try is not refused."""
    code = """
import resource, sys
import numpy as np
from apexrl.replay import Field, Replay
replay = Replay(30_000_000, {"x": Field((), "float32")}, writers=1)
replay.writer().extend({"x": np.zeros(100, "f4")})
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (20 << 20), -1))
try:
    replay.sample(4)
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    print(len(replay.sample(4)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "4\n", done.stderr


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.7], "cannot make a int64 array"),
        (["7"], "cannot make a int64 array"),
        ([2**70], "cannot make a int64 array"),
        ([None], "cannot make a int64 array"),
    ],
)
def test_lists_are_converted_only_without_loss(value, message):
    with Replay(10, {"x": Field((), "int64"), "small": Field((), "uint8")}) as replay:
        writer = replay.writer()
        with pytest.raises(SpecError, match=message):
            writer.extend({"x": value, "small": [1]})
        with pytest.raises(SpecError, match="does not fit"):
            writer.extend({"x": [1], "small": [300]})
        writer.extend({"x": [1], "small": [255]})
        assert len(replay) == 1


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        (["x"], {}, "a mapping of names to Field"),
        ({f"x{i}": Field((), "f4") for i in range(129)}, {}, "more than 128 fields"),
        ({"x": Field((1000, 1000), "f8")}, {"capacity": 2**36}, "cannot create this replay"),
        ({"x": Field((), "f4")}, {"directory": "/does/not/exist"}, "cannot create this replay"),
    ],
)
def test_what_cannot_be_made_is_a_config_error(fields, options, message):
    with pytest.raises(ConfigError if "mapping" not in message else SpecError, match=message):
        Replay(**{"capacity": 10, "fields": fields, **options})


@pytest.mark.parametrize("shape", [(2.5,), (2**40, 2**40), (2**33,)])
def test_impossible_field_shapes_are_refused(shape):
    with pytest.raises(SpecError, match=r"whole numbers|4 GiB"):
        Field(shape, "uint8")


def added(writer, count):
    """How many of so many rows, one after the other, were stored without a wait."""
    for number in range(count):
        try:
            writer.extend(rows(number, 1), timeout=0.0)
        except WaitTimeout:
            return number
    return count


@pytest.mark.parametrize("rate", [0.5, 1.0, 8.0])
def test_deleted_items_are_not_waited_for(rate):
    """Below ``min_size`` items writers do not wait, also where there were more before."""
    with make(capacity=1000, min_size=100, samples_per_insert=rate) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 100))
        replay.sample(10)
        for left in (50, 0):
            replay.delete(replay.keys()[left:])
            assert len(replay) == left
            with pytest.raises(WaitTimeout, match=f"holds {left} items, fewer than the 100 needed"):
                replay.sample(1, timeout=0.0)
            assert added(writer, 200) >= 100 - left
            assert len(replay) >= 100
            replay.sample(10, timeout=0.0)


@pytest.mark.parametrize("sampler", ["lifo", "max_heap"])
def test_a_batch_larger_than_min_size_is_waited_for(sampler):
    """A batch of these has each item once, so writers are let in until there are so many."""
    with make(capacity=1000, min_size=10, samples_per_insert=1.0, sampler=sampler) as replay:
        writer = replay.writer()
        added(writer, 200)
        for _ in range(2):
            with pytest.raises(WaitTimeout, match="fewer than the 64 needed"):
                replay.sample(64, timeout=0.0)
            assert added(writer, 200) > 50
            assert len(replay.sample(64, timeout=0.0).keys) == 64
            replay.delete(replay.keys()[20:])


def test_min_size_holds_again_where_room_was_made():
    """Part-filled chunks took the room, then batches took their items."""
    options = {"sampler": "lifo", "max_times_sampled": 1}
    with make(capacity=1000, min_size=500, **options) as replay:
        for number in range(1500):
            with contextlib.suppress(WaitTimeout):
                replay.sample(600, timeout=0.0)
            with replay.writer() as writer:
                writer.extend(rows(number, 1), timeout=0.0)
        replay.sample(100, timeout=0.0)
        with pytest.raises(WaitTimeout, match="fewer than the 500 needed"):
            replay.sample(1, timeout=0.0)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_part_filled_chunks_are_not_waited_for(rate):
    """Writers that come and go leave chunks of one item, which take the room of ``min_size`` items."""
    with make(capacity=1000, min_size=900, samples_per_insert=rate) as replay:
        with contextlib.suppress(WaitTimeout):
            replay.sample(1, timeout=0.0)
        sampled = 0
        for number in range(1500):
            with replay.writer() as writer:
                writer.extend(rows(number, 1), timeout=0.0)
            with contextlib.suppress(WaitTimeout):
                sampled += len(replay.sample(1, timeout=0.0).keys)
        assert len(replay) < 900
        assert sampled > 100


def test_a_writer_that_nobody_samples_hears_of_the_limiter():
    said = "the limiter holds inserts back until some process has sampled more"
    with make(capacity=1000, min_size=10, samples_per_insert=1.0) as replay, pytest.raises(WaitTimeout, match=said):
        replay.writer().extend(rows(0, 100), timeout=0.0)


def test_rows_are_never_dropped_steps():
    with make(capacity=100) as replay:
        with replay.writer() as writer:
            writer.extend(rows(0, 5))
        assert (len(replay), replay.stats()["dropped_steps"]) == (5, 0)


def test_weights_of_far_greater_priorities_are_small_and_not_zero():
    with make(capacity=100, alpha=1.0, eps=0.0) as replay:
        with replay.writer() as writer:
            writer.extend(rows(0, 2), priorities=np.array([1.0, 1e-50]))
        batch = replay.sample(8, beta=0.1, normalize="buffer")
        np.testing.assert_allclose(batch.weights[batch.data["number"] == 0], 1e-5, rtol=1e-4)
