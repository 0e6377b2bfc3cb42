"""What does a sum of gradients cost an update, beside gloo and beside shared memory?

    python benchmarks/averaging/run.py                      # 20,000 and 1,500,000 values, two members
    python benchmarks/averaging/run.py --members 3 --work-ms 0

All contestants run in the same processes. In every round each makes ``--sums`` sums in turn, with the same work between
two sums as an update would be; the order is reversed every second round. Wall time and processor time (of all threads
of the first member) include the work, which ``nothing`` makes without sums.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib import report

Sum: TypeAlias = Callable[[Any], object]
_LINE = 64  # bytes of a member's words
_CONTESTANTS = ("apexrl", "gloo", "shared memory", "nothing")


def shared_memory(segment: Any, rank: int, size: int, floats: int) -> Sum:
    """The least that a sum on one machine takes: two slots a member, a count of sums, and a bell."""
    import torch

    memory = segment.array()[2 * _LINE * size :].view(np.float32)
    slots = torch.from_numpy(memory[: 2 * size * floats]).view(2, size, floats)
    lines, made = [2 * _LINE * member for member in range(size)], [0]

    def add(vector: Any) -> object:
        made[0] += 1
        slots[made[0] % 2, rank].copy_(vector)
        segment.store(lines[rank], made[0])
        for line in lines:
            if line != lines[rank]:
                segment.ring(line + _LINE)
        while True:
            seen = segment.load(lines[rank] + _LINE)
            if all(segment.load(line) >= made[0] for line in lines):
                return slots[made[0] % 2].sum(0)
            segment.wait(lines[rank] + _LINE, seen, 0.1)

    return add


def member(rank: int, options: argparse.Namespace, floats: int, record: Any, segment: Any) -> Any:
    """Milliseconds (wall, processor) of a sum with the work before it: contestant -> one pair for each round."""
    import torch

    from apexrl.links.averaging.connections import Connections
    from apexrl.links.averaging.process_group import ProcessGroup

    torch.set_num_threads(1)
    ours, beside = (
        Connections(record, f"{name}/address", rank, options.members, "127.0.0.1", b"benchmark", 60.0)
        for name in ("ours", "gloo")
    )
    gloo = ProcessGroup("gloo", beside, record, "gloo/group", "127.0.0.1", 60.0, torch.device("cpu"))
    sums: dict[str, Sum] = {
        "apexrl": ours.sum,
        "gloo": gloo.sum,
        "shared memory": shared_memory(segment, rank, options.members, floats),
        "nothing": lambda _: None,
    }
    vector, square = torch.randn(floats), torch.randn(64, 64)
    times = int(options.work_ms / _milliseconds_of(square))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sums}
    for turn in range(options.rounds + 1):
        for name in _CONTESTANTS[:: -1 if turn % 2 else 1]:
            ours.sum(torch.zeros(1))  # all begin together
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(options.sums):
                for _ in range(times):
                    square @ square
                sums[name](vector)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if turn:  # the first one warms up
                found[name].append((1e3 * wall / options.sums, 1e3 * cpu / options.sums))
    ours.close()
    gloo.close()
    return found


def _milliseconds_of(square: Any) -> float:
    begun = time.process_time()
    for _ in range(1000):
        square @ square
    return time.process_time() - begun  # seconds of a thousand


def measured(options: argparse.Namespace, floats: int) -> dict[str, list[tuple[float, float]]]:
    """What the first member has measured; each member is a process."""
    from apexrl._native import Segment
    from apexrl.links.averaging.shared_record import SegmentRecord

    size = options.members
    record, segment = SegmentRecord(1 << 20), Segment(2 * _LINE * size + 8 * size * floats)
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(size):
            pid = os.fork()
            if not pid:
                try:
                    found = member(rank, options, floats, record, segment)
                    if rank == 0:
                        Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            pids.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(codes):
            sys.exit("a member failed: see above")
        return json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floats", type=int, nargs="+", default=[20_000, 1_500_000], help="values of a gradient")
    parser.add_argument("--members", type=int, default=2, help="learners, a process each")
    parser.add_argument("--work-ms", type=float, default=1.0, help="processor time between two sums")
    parser.add_argument("--sums", type=int, default=200, help="sums of a contestant in a round")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    rows, figures = [], {}
    for floats in options.floats:
        found = figures[floats] = measured(options, floats)
        for name in _CONTESTANTS:
            columns = list(zip(*found[name], strict=True)), list(zip(*found["apexrl"], strict=True))
            ratios = [report.ratio(theirs, ours)[1] for theirs, ours in zip(*columns, strict=True)]
            rows.append([f"{floats:,}", name, *(report.spread(one, " ms") for one in columns[0]), *ratios])
    header = ["values", "sums by", "wall", "processor", "wall, beside apexrl", "processor, beside apexrl"]
    head = (
        f"{report.machine()}, {report.versions('torch')}. {options.members} members; {options.rounds} rounds of "
        f"{options.sums} sums, with {options.work_ms:g} ms of work before each: a time is that of both.\n\n"
    )
    report.save("averaging", head + report.table(header, rows), figures, None)


if __name__ == "__main__":
    main()
