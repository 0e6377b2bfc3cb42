from __future__ import annotations

import os
import pickle
import time

from apexrl.links.knob import Knob


def test_another_process_sees_it_turn() -> None:
    knob = Knob(3, shared=True)
    handle = pickle.dumps(knob)
    pid = os.fork()
    if pid == 0:
        seen = pickle.loads(handle)
        began = seen.value
        deadline = time.monotonic() + 10.0
        while seen.value != 7 and time.monotonic() < deadline:
            time.sleep(0.005)
        os._exit(0 if (began, seen.value) == (3, 7) else 1)
    time.sleep(0.05)
    knob.value = 7
    assert os.waitpid(pid, 0)[1] == 0


def test_within_one_process_it_needs_no_shared_memory() -> None:
    knob = Knob(2, shared=False)
    assert knob.value == 2
    knob.value = 5
    assert knob.value == 5
