"""Two replays and the chunks that travel from one to the other."""

from __future__ import annotations

import functools

import numpy as np

from apexrl.replay import Field, Replay
from apexrl.replay.chunks import ChunkSink, ChunkSource, Receipts

FIELDS = {
    "observation": Field((3,), "float32"),
    "frame": Field((20, 20), "uint8", windowed=True),
    "number": Field((), "int64"),
    "q": Field((), "float32"),
}
KINDS = {
    "transition": {"kind": "transition", "stack": 3, "n_step": 3},
    "sequence": {"kind": "sequence", "length": 5, "stride": 2, "burn_in": 2},
    "unroll": {"kind": "unroll", "length": 4, "burn_in": 1},
}


def fields(kind):
    return FIELDS if kind == "transition" else {**FIELDS, "state": Field((2,), "float32", per_item=True)}


class Simulator:
    """Streams of numbered steps with ends at random."""

    def __init__(self, streams, seed, kind):
        self._rng = np.random.default_rng(seed)
        self._ended = np.zeros(streams, bool)
        self._number = np.arange(streams) * 1_000_000
        self._kind = kind

    def step(self):
        n = len(self._ended)
        draw = self._rng.random(n)
        terminated, truncated = (draw < 0.06) & ~self._ended, (draw > 0.95) & ~self._ended
        self._ended = terminated | truncated
        self._number += 1
        number = self._number.copy()
        values = {
            "observation": (number[:, None] * 10 + np.arange(3)).astype(np.float32),
            "frame": np.broadcast_to((number % 251).astype(np.uint8)[:, None, None], (n, 20, 20)).copy(),
            "number": number,
            "q": number.astype(np.float32) / 7,
            "reward": (number % 17).astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
        }
        return values if self._kind == "transition" else {**values, "state": values["observation"][:, :2].copy()}


def first_number(kind, data):
    """The number of each item's own first step."""
    numbers = data["number"]
    return numbers if kind == "transition" else numbers[:, KINDS[kind]["burn_in"]]


def everything(kind, replay):
    """Each item of a fifo replay by the number of its first step: the bytes of all its columns."""
    items = {}
    while len(replay):
        data = replay.sample(1, timeout=5.0).data
        (number,) = first_number(kind, data).tolist()
        assert number not in items
        items[number] = {name: value[0].tobytes() for name, value in data.items()}
    return items


def pair(kind, chunk_capacity, streams=2):
    """(an actor host's replay, its source, the learner's replay, receipts, its sink)."""
    options = KINDS[kind]
    here = Replay(4096, fields(kind), sampler="fifo", streams=streams, **options)
    there = Replay(chunk_capacity, fields(kind), sampler="fifo", streams=4, **options)
    receipts = Receipts(8)
    sink = ChunkSink(there, receipts, 4)
    sink.open()
    return here, ChunkSource(here), there, receipts, sink


@functools.cache
def first_chunk(kind):
    """Its head and its bytes."""
    here, source, there, *_ = pair(kind, 4096)
    simulator, writer = Simulator(2, 3, kind), here.writer(streams=2)
    for _ in range(60):
        writer.append(simulator.step())
    heads, body = source.take(2**20, 0.0)
    for replay in (here, there):
        replay.close()
    return heads[0], body[: heads[0].nbytes]


def sound_chunk(kind="transition"):
    """A chunk, a sink for it, and the sink's replay."""
    there = Replay(4096, fields(kind), sampler="fifo", streams=4, **KINDS[kind])
    sink = ChunkSink(there, Receipts(8), 4)
    sink.open()
    return *first_chunk(kind), sink, there
