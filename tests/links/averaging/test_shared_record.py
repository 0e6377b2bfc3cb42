"""The shared record of learners: what was put there, by whichever process, and whatever became of it."""

from __future__ import annotations

import os
import pickle
import signal
import time
from typing import Any

import pytest

from apexrl.errors import LinkError
from apexrl.links.averaging.shared_record import SegmentRecord


def test_the_first_of_several_stands() -> None:
    record = SegmentRecord(1 << 10)
    assert record.all() == {}
    assert record.put_first("a", b"one") == b"one"
    assert record.put_first("a", b"two") == b"one"
    assert record.put("b", b"") == {"a": b"one", "b": b""}
    record.put("a", b"three")
    assert record.all() == {"a": b"three", "b": b""}
    record.drop(["a", "c"])
    assert record.all() == {"b": b""}


def test_a_handle_in_another_place_sees_the_same() -> None:
    record = SegmentRecord(1 << 10)
    other: SegmentRecord = pickle.loads(pickle.dumps(record))
    other.put("a", b"one")
    assert record.all() == {"a": b"one"}


def test_what_does_not_fit_is_refused_and_all_else_stays() -> None:
    record = SegmentRecord(64)
    record.put("a", b"one")
    with pytest.raises(LinkError, match="holds 64 bytes"):
        record.put("b", bytes(64))
    assert record.all() == {"a": b"one"}


def forked(work: Any) -> int:
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def test_a_writer_that_is_killed_has_changed_all_or_nothing() -> None:
    record = SegmentRecord(1 << 12)
    record.put("count", b"0" * 1000)

    def write() -> None:
        for number in range(10**9):
            record.put("count", str(number % 10).encode() * 1000)

    for round_ in range(10):
        pid = forked(write)
        time.sleep(0.01 + 0.001 * round_)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        (value,) = set(record.all()["count"])
        assert value in b"0123456789"


def test_a_writer_that_is_stopped_with_the_lock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SegmentRecord(1 << 10)
    ready, told = os.pipe()

    def hold() -> None:
        with record._locked():
            os.write(told, b"!")
            time.sleep(30)

    pid = forked(hold)
    os.read(ready, 1)
    monkeypatch.setattr("apexrl.links.averaging.shared_record._LOCK_SECONDS", 0.1)
    with pytest.raises(LinkError, match=f"process {pid} keeps"):
        record.all()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert record.all() == {}
