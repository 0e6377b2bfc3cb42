from __future__ import annotations

import os
import pickle
import time

from apexrl.links.local.tunable_count import TunableCount


def test_another_process_sees_it_turn() -> None:
    knob = TunableCount(3, shared=True)
    handle = pickle.dumps(knob)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        seen = pickle.loads(handle)
        began = seen.value
        os.write(tell, b"x")
        deadline = time.monotonic() + 10.0
        while seen.value != 7 and time.monotonic() < deadline:
            time.sleep(0.005)
        os._exit(0 if (began, seen.value) == (3, 7) else 1)
    os.close(tell)  # a child that died is the end of it
    os.read(told, 1)  # until it has seen where the knob stood
    os.close(told)
    knob.value = 7
    assert os.waitpid(pid, 0)[1] == 0


def test_within_one_process_it_needs_no_shared_memory() -> None:
    knob = TunableCount(2, shared=False)
    assert knob.value == 2
    knob.value = 5
    assert knob.value == 5
