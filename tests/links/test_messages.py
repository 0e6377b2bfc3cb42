from __future__ import annotations

import math

import numpy as np

from apexrl.links import messages


def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = messages.channel()
    with ours, theirs:
        assert messages.receive(ours) == []
        assert messages.send(theirs, "episodes", {"returns": [1.0, 2.5]})
        assert messages.send(theirs, "log", {"text": "ä\n"})
        first, second = messages.receive(ours)
    assert first == ("episodes", {"returns": [1.0, 2.5]})
    assert second == ("log", {"text": "ä\n"})


def test_arrays_and_numpy_scalars_become_plain_and_nan_becomes_null() -> None:
    ours, theirs = messages.channel()
    with ours, theirs:
        messages.send(theirs, "m", {"a": np.arange(3), "b": np.float32(0.5), "c": math.nan, "d": np.int64(4)})
        ((_, values),) = messages.receive(ours)
    assert values == {"a": [0, 1, 2], "b": 0.5, "c": None, "d": 4}


def test_a_sender_never_waits_and_says_what_it_dropped() -> None:
    ours, theirs = messages.channel()
    with ours, theirs:
        sent = [messages.send(theirs, "log", {"text": "x" * 1000}) for _ in range(5000)]
        assert not all(sent)
        assert len(messages.receive(ours)) == sum(sent)
        assert messages.send(theirs, "log", {"text": "room again"})


def test_what_is_too_long_is_dropped() -> None:
    ours, theirs = messages.channel()
    with ours, theirs:
        assert not messages.send(theirs, "log", {"text": "x" * messages.MAX_BYTES})
        assert messages.send(theirs, "log", {"text": "x" * (messages.MAX_BYTES - 100)})
        assert len(messages.receive(ours)) == 1


def test_both_ends_survive_the_end_of_the_other() -> None:
    ours, theirs = messages.channel()
    messages.send(theirs, "log", {"text": "last"})
    theirs.close()
    assert [message.kind for message in messages.receive(ours)] == ["log"]
    assert messages.receive(ours) == []
    ours.close()
    ours, theirs = messages.channel()
    ours.close()
    assert not messages.send(theirs, "log", {"text": "nobody"})
    theirs.close()
