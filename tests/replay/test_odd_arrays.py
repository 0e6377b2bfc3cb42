"""Arrays that are no plain numbers: refused in words or converted, and never a reason to crash."""

from __future__ import annotations

import numpy as np
import pytest

from apexrl.errors import SpecError
from apexrl.replay import Field, Replay

NOTHING = np.zeros(3, dtype=[])  # elements of no bytes
STRUCTURED = np.zeros(3, dtype=[("a", "f4"), ("b", "i8")])
ODD = {
    "no bytes": NOTHING,
    "structured": STRUCTURED,
    "void": np.zeros(3, "V8"),
    "text": np.zeros(3, "U4"),
    "bytes of length 0": np.zeros(3, "S0"),
    "complex": np.zeros(3, "c8"),
    "dates": np.zeros(3, "M8[s]"),
    "objects": np.array([None, 1, "x"], object),
}


@pytest.fixture
def replay():
    with Replay(1000, {"x": Field((), "float32")}, writers=2) as replay:
        yield replay


@pytest.mark.parametrize("priorities", ODD.values(), ids=ODD)
def test_priorities_that_are_no_numbers_are_refused(replay, priorities):
    writer = replay.writer()
    rows = {"x": np.arange(3, dtype=np.float32)}
    with pytest.raises(SpecError, match="priorities"):
        writer.extend(rows, priorities=priorities)
    assert len(replay) == 0
    writer.extend(rows)
    with pytest.raises(SpecError, match="priorities"):
        replay.update_priorities(replay.sample(3).keys, priorities)
    with pytest.raises(SpecError, match="keys"):
        replay.update_priorities(priorities, np.ones(3))


@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_columns_that_are_no_numbers_are_refused(replay, values):
    with pytest.raises(SpecError, match="field 'x'"):
        replay.writer().extend({"x": values})
    with Replay(100, {"o": Field((), "float32")}, kind="transition", writers=1) as streams:
        ends = {name: np.zeros(3, bool) for name in ("terminated", "truncated")}
        plain = {"o": np.zeros(3, "f4"), "reward": np.zeros(3, "f4"), **ends}
        writer = streams.writer(streams=3)
        for name in plain:
            with pytest.raises(SpecError, match=name):
                writer.append({**plain, name: values})
        with pytest.raises(SpecError):
            writer.append(plain, streams=values)


def test_other_byte_orders_and_strides_mean_the_same_numbers(replay):
    writer = replay.writer()
    x = np.arange(6, dtype=np.float32)
    for priorities in (x[::-1] + 1, (x + 1).astype(">f8"), (x + 1)[::2].repeat(2)[::-1], [1, 2, 3, 4, 5, 6]):
        writer.extend({"x": x[::-1][::-1]}, priorities=priorities)
    writer.extend({"x": np.stack([x, x])[:, ::-1][0]})
    keys = replay.sample(6).keys
    assert replay.update_priorities(keys[::-1], np.arange(6, dtype=">f4")).applied == 6
    with pytest.raises(SpecError, match="dtype"):  # an array of another dtype is refused rather than cast
        writer.extend({"x": x.astype(">f4")})


def test_arrays_of_no_rows_are_nothing(replay):
    writer = replay.writer()
    writer.extend({"x": np.zeros(0, "f4")})
    writer.extend({"x": np.zeros(0, "f4")}, priorities=np.zeros(0))
    with pytest.raises(SpecError):
        writer.extend({"x": np.zeros(0, "f4")}, priorities=NOTHING)
    writer.extend({"x": np.zeros(4, "f4")})
    assert replay.update_priorities(np.zeros(0, np.uint64), np.zeros(0)).applied == 0
    with pytest.raises(SpecError):
        replay.update_priorities(np.zeros(0, np.uint64), np.zeros(0, dtype=[]))
