"""How much memory ragged fields take beside their content, and how fast they are sampled beside fields of fixed size.

    python benchmarks/replay/run.py ragged
    python benchmarks/replay/run.py ragged --most 4096 --share 0.1 --kind sequence

Three replays of the same options hold one observation each: ragged, with lengths from 0 up to ``--most`` bytes; fixed
at the mean length, which stores as many bytes; and fixed at ``--most``, filled up with zeros, which yields the same
batches. They are full and have turned over once before they are looked at. Speeds are of the sampling thread's
processor time.

A chunk repeats the rows that its last windows need, of ragged fields as of all others: a 64th of its own here with
transitions and unrolls, a seventh with sequences. So blocks are compared with the content of all rows stored.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from apexrl.replay import Field, Replay
from apexrl.replay.options import native_sizes
from benchmarks.lib import report

STREAMS = 16
KINDS: dict[str, dict[str, Any]] = {
    "transition": {"kind": "transition", "n_step": 1},
    "sequence": {"kind": "sequence", "length": 16, "stride": 8},
    "unroll": {"kind": "unroll", "length": 16},
    "fifo": {"kind": "unroll", "length": 16, "sampler": "fifo"},
}


def lengths_of(rng: np.random.Generator, most: int, share: float) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Of a step of every stream: exponential, of mean ``share · most``, cut off at ``most``."""
    return np.minimum(rng.exponential(share * most, STREAMS), most).astype(np.int32)


def opened(kind: str, items: int, field: Field) -> Replay:
    fields = {"observation": field, "action": Field((), "int64")}
    replay = Replay(items, fields, streams=STREAMS, writers=1, **KINDS[kind])
    replay.core.own()  # from now on the oldest items go
    return replay


def fill(replay: Replay, options: argparse.Namespace, steps: int, share: float, seed: int) -> float:
    """Append so many steps of each stream. Answers the mean bytes of an observation."""
    rng, size = np.random.default_rng(seed), replay.core.layout.columns[0].field.shape[0]
    ragged = replay.core.layout.columns[0].field.ragged
    values = rng.integers(1, 255, (STREAMS, size), dtype=np.uint8)
    plain = {"observation": values, "action": np.zeros(STREAMS, np.int64)}
    ends = np.zeros(STREAMS, bool)
    total = 0
    with replay.writer(streams=STREAMS) as writer:
        for t in range(steps):
            lengths = lengths_of(rng, options.most, share)
            total += int(lengths.sum()) if ragged else values.nbytes
            given = {**plain, "observation/length": lengths} if ragged else plain
            writer.append({**given, "reward": np.zeros(STREAMS), "terminated": ends, "truncated": ends})
            if t % 16 == 0 and replay.core.fifo and len(replay) > replay.capacity - 4 * STREAMS:
                replay.sample(2 * STREAMS)
            elif t % 16 == 0:
                len(replay)  # takes in what was appended, and removes as much
    return total / (steps * STREAMS)


def physical(replay: Replay) -> int:
    """Bytes of its segment that take memory."""
    (_, fd, *_), _ = replay.handle
    return os.fstat(fd).st_blocks * 512


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--kind", choices=list(KINDS), nargs="*", default=list(KINDS))
    parser.add_argument("--most", type=int, nargs="*", default=[512, 8192], help="bytes of the longest observation")
    parser.add_argument("--share", type=float, default=0.25, help="mean length, as a share of the longest")
    parser.add_argument("--megabytes", type=float, default=64.0, help="of content in each replay")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    rows, raw, kinds, sizes = [], {}, options.kind, options.most
    for kind in kinds:
        for most in sizes:
            options.most = most
            found = measure(kind, options)
            raw[f"{kind} {most}"] = found
            rows.append(
                [
                    f"{kind}, to {most} bytes",
                    f"{found['bytes per step'] / found['content per step']:.3f}",
                    f"{found['blocks per step'] / found['ragged per step']:.3f}",
                    *(report.ratio(found["ragged"], found[other])[1] for other in ("mean", "most")),
                ]
            )
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'numpy')}.",
        f"Mean length {options.share:g} of the longest; batches of {options.batch}; {options.rounds} rounds in turn.\n",
        report.table(
            [
                "observations",
                "all memory ÷ content",
                "blocks ÷ ragged content",
                "sampling ÷ fixed at the mean",
                "÷ fixed at the longest",
            ],
            rows,
        ),
    ]
    report.save("replay-ragged", "\n".join(lines), raw, None, options.out)


def measure(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Bytes per stored step, and samples a second of each replay, a figure a round."""
    most = options.most
    draw = np.concatenate([lengths_of(np.random.default_rng(i), most, options.share) for i in range(2000)])
    mean = max(1, round(float(draw.mean())))
    stride = KINDS[kind].get("stride", KINDS[kind].get("length", 1))
    items = max(2 * options.batch, int(options.megabytes * 1e6 / (mean + 16) / stride))
    replays = {
        "ragged": opened(kind, items, Field((most,), "uint8", ragged=True)),
        "mean": opened(kind, items, Field((mean,), "uint8")),
        "most": opened(kind, items, Field((most,), "uint8")),
    }
    steps = 2 * items * stride // STREAMS
    try:
        content = {name: fill(replay, options, steps, options.share, 1) for name, replay in replays.items()}
        ragged = replays["ragged"]
        stored = len(ragged) * stride
        sizes = native_sizes(ragged.core.options)
        # the last item of a chunk begins a stride before its end, and needs the observation after its last step
        repeated = 1 + (1 + sizes["n_step"] - stride) / sizes["chunk"]
        samples: dict[str, list[float]] = {name: [] for name in replays}
        for _ in range(options.rounds):
            for name, replay in replays.items():
                samples[name].append(speed(replay, options))
        return {
            **samples,
            "stored steps": stored,
            # observation, its length, action, reward and three flags
            "content per step": content["ragged"] + 4 + 8 + 4 + 3,
            "bytes per step": physical(ragged) / stored,
            "ragged per step": content["ragged"] * repeated,
            "blocks per step": ragged.stats()["ragged_bytes"] / stored,
            "bytes per step, fixed at the longest": physical(replays["most"]) / stored,
        }
    finally:
        for replay in replays.values():
            replay.close()


def speed(replay: Replay, options: argparse.Namespace) -> float:
    """Items a second; of a fifo replay, those of one fill."""
    if replay.core.fifo:
        fill(replay, options, min(replay.capacity, 2000) * KINDS["fifo"]["length"] // STREAMS, options.share, 2)
    times = []
    for _ in range(20):
        if replay.core.fifo and len(replay) < options.batch:
            break
        start = time.thread_time()
        replay.sample(options.batch)
        times.append(time.thread_time() - start)
    return options.batch / median(times)
