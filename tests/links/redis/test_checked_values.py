"""Values of a run's keys become strict types, whoever reads them first."""

from __future__ import annotations

import subprocess
import sys

FIRST_READERS = """
import sys, threading
from typing import Annotated, Any
import msgspec
from apexrl.links.redis.checked_values import decode

sys.setswitchinterval(1e-6)
for _ in range(200):
    class Digest(msgspec.Struct):
        steps: Annotated[int, msgspec.Meta(ge=0)]
        text: Annotated[str, msgspec.Meta(max_length=10)] = ""
        rest: dict[str, Any] = {}
        slots: Annotated[list[int], msgspec.Meta(max_length=8)] = []
    together, found = threading.Barrier(8), []
    def read():
        together.wait()
        found.append(decode(b'{"steps": 3}', Digest))
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Digest(3)] * 8
"""


def test_many_threads_may_be_the_first_to_read_a_kind_of_value() -> None:
    """Otherwise msgspec 0.22 ends the process by a segmentation fault."""
    read = subprocess.run([sys.executable, "-c", FIRST_READERS], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
