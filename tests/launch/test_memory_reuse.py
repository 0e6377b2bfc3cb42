"""What a worker has freed it uses again: pages that went back to the system would come again one by one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys, threading
from apexrl.launch.worker_process import keep_memory

def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages are small ones, and can be counted

def work():
    if sys.argv[2] == "kept":
        keep_memory()
    for _ in range(4):
        before = faults()
        blocks = [bytearray(6 << 20) for _ in range(24)]  # more than one of a thread's heaps holds
        del blocks
        print(faults() - before)

if sys.argv[1] == "thread":
    one = threading.Thread(target=work)
    one.start()
    one.join()
else:
    work()
"""


def faults(where: str, how: str) -> int:
    """Page faults of the last of four rounds that take 144 MB and free them."""
    env = {name: value for name, value in os.environ.items() if name not in ("GLIBC_TUNABLES", "LD_PRELOAD")}
    env = {name: value for name, value in env.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, where, how], capture_output=True, text=True, check=True, env=env
    )
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_freed_memory_is_taken_again_without_a_fault(where: str) -> None:
    assert faults(where, "kept") < 100
    assert faults(where, "given back") > 1000  # so the figure above says something
