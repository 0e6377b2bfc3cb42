"""How fast a replay is saved and loaded, beside writing and reading a file of that size.

    python benchmarks/replay/run.py snapshot                # 1 GB of image stacks
    python benchmarks/replay/run.py snapshot --rows small --gigabytes 0.5 --folder /mnt/disk

The file written beside it is plain: blocks of 8 MB from memory, then fsync. Reading is from the page cache, where a
file just written is: the disk itself would be slower for both.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from apexrl.replay import Field, Replay
from benchmarks.lib import report

BLOCK = 8 << 20
STREAMS = 50


def full_replay(rows: str, nbytes: float) -> Replay:
    """A replay of about ``nbytes`` that is full."""
    rng = np.random.default_rng(0)
    if rows == "small":
        fields = {"observation": Field((4,), "float32"), "next_observation": Field((4,), "float32")}
        replay = Replay(int(nbytes / 40), {**fields, "action": Field((), "int64")}, writers=1)
        chunk = {name: rng.random((10_000, 4), np.float32) for name in fields} | {"action": np.arange(10_000)}
        with replay.writer() as writer:
            for _ in range(replay.capacity // 8_000 + 1):
                writer.extend(chunk, priorities=rng.random(10_000))
        return replay
    fields = {"observation": Field((84, 84), "uint8"), "action": Field((), "int64")}
    replay = Replay(int(nbytes / 7_550), fields, kind="transition", stack=4, writers=1, streams=STREAMS)
    no = np.zeros(STREAMS, np.bool_)
    step = {"action": np.zeros(STREAMS, np.int64), "reward": np.zeros(STREAMS), "terminated": no, "truncated": no}
    frames = rng.integers(0, 256, (8, STREAMS, 84, 84), dtype=np.uint8)
    with replay.writer(streams=STREAMS) as writer:
        for t in range(replay.capacity // (STREAMS * 4 // 5) + 1):
            writer.append({"observation": frames[t % 8], **step})
    return replay


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def write_plain(path: Path, nbytes: int) -> None:
    block = np.ones(BLOCK, np.uint8).data
    with path.open("wb", buffering=0) as file:
        for start in range(0, nbytes, BLOCK):
            file.write(block[: min(BLOCK, nbytes - start)])
        os.fsync(file.fileno())


def read_plain(path: Path) -> None:
    block = np.empty(BLOCK, np.uint8)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block.data):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rows", choices=["atari", "small"], default="atari")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary folder)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    names = ("save", "write a plain file", "load", "read a plain file")
    series: dict[str, list[float]] = {name: [] for name in names}
    with TemporaryDirectory(dir=options.folder) as folder, full_replay(options.rows, options.gigabytes * 1e9) as replay:
        saved, plain = Path(folder, "replay"), Path(folder, "plain")
        for _ in range(options.rounds):
            series["save"].append(seconds(lambda: replay.save(saved)))
            size = saved.stat().st_size
            series["write a plain file"].append(seconds(lambda nbytes=size: write_plain(plain, nbytes)))
            series["load"].append(seconds(lambda: Replay.load(saved).close()))
            series["read a plain file"].append(seconds(lambda: read_plain(plain)))
            plain.unlink()
    rates = {name: [size / 1e9 / value for value in values] for name, values in series.items()}
    rows = [[name, report.spread(values, " s"), report.spread(rates[name], " GB/s")] for name, values in series.items()]
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'numpy')}.",
        f"{options.rows} rows, a file of {size / 1e9:.2f} GB; {options.rounds} rounds in turn.\n",
        report.table(["", "time", "rate"], rows),
    ]
    report.save(
        f"replay-snapshot-{options.rows}", "\n".join(lines), {"seconds": series, "bytes": size}, None, options.out
    )
