from __future__ import annotations

import math

import numpy as np

from apexrl.links.local import worker_messages


def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        assert worker_messages.receive(ours) == []
        assert worker_messages.send(theirs, "episodes", {"returns": [1.0, 2.5]})
        assert worker_messages.send(theirs, "log", {"text": "ä\n"})
        first, second = worker_messages.receive(ours)
    assert first == ("episodes", {"returns": [1.0, 2.5]})
    assert second == ("log", {"text": "ä\n"})


def test_arrays_and_numpy_scalars_become_plain_and_nan_becomes_null() -> None:
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        worker_messages.send(theirs, "m", {"a": np.arange(3), "b": np.float32(0.5), "c": math.nan, "d": np.int64(4)})
        ((_, values),) = worker_messages.receive(ours)
    assert values == {"a": [0, 1, 2], "b": 0.5, "c": None, "d": 4}


def test_a_sender_never_waits_and_says_what_it_dropped() -> None:
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        sent = [worker_messages.send(theirs, "log", {"text": "x" * 1000}) for _ in range(5000)]
        assert not all(sent)
        assert len(worker_messages.receive(ours)) == sum(sent)
        assert worker_messages.send(theirs, "log", {"text": "room again"})


def test_what_is_too_long_is_dropped() -> None:
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        assert not worker_messages.send(theirs, "log", {"text": "x" * worker_messages.MAX_BYTES})
        assert worker_messages.send(theirs, "log", {"text": "x" * (worker_messages.MAX_BYTES - 100)})
        assert len(worker_messages.receive(ours)) == 1


def test_both_ends_survive_the_end_of_the_other() -> None:
    ours, theirs = worker_messages.channel()
    worker_messages.send(theirs, "log", {"text": "last"})
    theirs.close()
    assert [message.kind for message in worker_messages.receive(ours)] == ["log"]
    assert worker_messages.receive(ours) == []
    ours.close()
    ours, theirs = worker_messages.channel()
    ours.close()
    assert not worker_messages.send(theirs, "log", {"text": "nobody"})
    theirs.close()
