"""Waits of the native core take any number of seconds."""

from __future__ import annotations

import threading

from apexrl import _native


def test_an_infinite_wait_sleeps_until_it_is_rung():
    segment = _native.Segment(64)
    waiter = threading.Thread(target=segment.wait, args=(0, 0, float("inf")), daemon=True)
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    while waiter.is_alive():
        segment.ring(0)
        waiter.join(0.1)
