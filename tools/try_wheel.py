"""Tries an installed wheel: the replay, with NumPy alone, in this process and in another. Prints what was tried.

python tools/try_wheel.py
"""

from __future__ import annotations

import multiprocessing
import platform
import sys
import time

import numpy as np

import apexrl
from apexrl.replay import Field, Replay, Writer


def write(writer: Writer) -> None:
    writer.extend({"x": np.ones((64, 3), np.float32)}, priorities=np.ones(64))


def main() -> None:
    loaded = {"torch", "gymnasium", "rich"} & set(sys.modules)
    if loaded:
        raise SystemExit(f"importing apexrl.replay brings {', '.join(sorted(loaded))}")
    with Replay(128, {"x": Field((3,), "float32")}, alpha=0.6, writers=2) as replay:
        write(replay.writer())
        other = multiprocessing.get_context("spawn").Process(target=write, args=(replay.writer(),))
        other.start()
        other.join(60.0)
        ends = time.monotonic() + 10.0
        while len(replay) < 128 and time.monotonic() < ends:
            time.sleep(0.01)
        batch = replay.sample(32, beta=0.4, timeout=10.0)
        replay.update_priorities(batch.keys, np.full(32, 2.0))
        if other.exitcode or len(replay) != 128 or not (batch.data["x"] == 1.0).all():
            raise SystemExit(f"the replay holds {len(replay)} rows of 128, its writer ended with {other.exitcode}")
    print(f"apexrl {apexrl.__version__} works on Python {platform.python_version()}, {platform.platform()}")


if __name__ == "__main__":
    main()
