"""Experience to send: chunks as actors publish them, and what the replay at the other end should make of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from apexrl.protocols import ChunkHead
from apexrl.replay import Field, Replay
from apexrl.replay.chunks import ChunkSource

STREAMS = 8
_CHUNK = 64
_N_STEP = 3


class Shape(NamedTuple):
    """What a step holds."""

    fields: dict[str, Field]
    stack: int


SHAPES = {
    "small": Shape({"observation": Field((4,), "float32"), "action": Field((), "int64")}, 1),
    "atari": Shape({"observation": Field((84, 84), "uint8"), "action": Field((), "int64")}, 4),
}


class Chunk(NamedTuple):
    head: ChunkHead
    body: bytes


def replay(shape: Shape, capacity: int, sampler: str = "fifo") -> Replay:
    """As an actor host's, or in the learner's place; with ``fifo`` it gives out every item once, in order."""
    options: dict[str, Any] = {"kind": "transition", "stack": shape.stack, "n_step": _N_STEP, "sampler": sampler}
    return Replay(fields=shape.fields, capacity=capacity, writers=2, streams=4 * STREAMS, **options)


def steps(shape: Shape, count: int, seed: int) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """``count`` times a step of all streams, random, with episodes of 50 steps on average."""
    rng = np.random.default_rng(seed)
    field = shape.fields["observation"]
    ended = np.zeros(STREAMS, np.bool_)
    for _ in range(count):
        if field.dtype == "uint8":
            observation = rng.integers(256, size=(STREAMS, *field.shape), dtype=np.uint8)
        else:
            observation = rng.normal(size=(STREAMS, *field.shape)).astype(np.float32)
        ended = (rng.random(STREAMS) < 0.02) & ~ended  # the step after an end is a final observation
        truncated = ended & (rng.random(STREAMS) < 0.5)
        yield {
            "observation": observation,
            "action": rng.integers(6, size=STREAMS),
            "reward": rng.normal(size=STREAMS).astype(np.float32),
            "terminated": ended & ~truncated,
            "truncated": truncated,
        }


def chunks(shape: Shape, count: int, seed: int = 0, most_bytes: int = 1 << 24) -> tuple[list[Chunk], bytes]:
    """``count`` chunks of several streams in the order of a sender, and their schema.

    ``most_bytes``: of one; larger ones come in pieces.
    """
    length = (count // STREAMS + 2) * _CHUNK
    with replay(shape, max(8 * STREAMS * _CHUNK, 2 * STREAMS * length)) as source:  # of less, chunks would be shorter
        with source.writer(streams=STREAMS) as writer:
            for step in steps(shape, length, seed):
                writer.append(step)
        taker = ChunkSource(source)
        made: list[Chunk] = []
        while len(made) < count:
            heads, body = taker.take(most_bytes, 0.0)
            if not heads:
                raise RuntimeError(f"{length} steps of {STREAMS} streams make {len(made)} chunks, not {count}")
            offset = 0
            for head in heads:
                made.append(Chunk(head, body[offset : offset + head.nbytes]))
                offset += head.nbytes
        return made[:count], taker.schema


def items_of(made: list[Chunk], shape: Shape) -> set[bytes]:
    """What a replay that has just these chunks gives out, each item as bytes."""
    from apexrl.replay.chunks import ChunkSink, Receipts

    with replay(shape, 2 * sum(chunk.head.items for chunk in made) + 4096) as target:
        sink = ChunkSink(target, Receipts(8), 4 * STREAMS)
        sink.open()
        item = 0
        for sequence, chunk in enumerate(made):
            sink.commit("reference", sequence, item, chunk.head, chunk.body)
            item += chunk.head.items
        sink.close()
        return set(drained(target))


def drained(target: Replay) -> list[bytes]:
    """All that waits in a fifo replay, each item as bytes."""
    count = len(target)
    if not count:
        return []
    batch = target.sample(count)
    columns = [np.ascontiguousarray(batch.data[name]).reshape(count, -1) for name in sorted(batch.data)]
    rows = np.concatenate([column.view(np.uint8).reshape(count, -1) for column in columns], axis=1)
    return [row.tobytes() for row in rows]
