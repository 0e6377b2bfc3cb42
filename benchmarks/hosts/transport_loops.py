"""The two loops that ``transport.py`` compares. Each runs in two processes, a sender and a receiver.

Each says over its pipe that it is ready (the sender: with how many items), and waits to be told how many will be sent.
The receiver then says at what time (``time.monotonic``) all of them had come and were acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec
import redis

from apexrl._native import ChunkHeads
from apexrl.launch.worker_process import keep_memory
from apexrl.links.redis.encoding import FrameHead, encode_frame
from apexrl.links.redis.experience_stream import ExperienceReceiver, ExperienceSender
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.receiver import MOST_ENTRIES
from apexrl.links.redis.sender import BATCH_BYTES, BATCH_FRAMES
from apexrl.links.redis.server import Server
from apexrl.replay.chunks import ChunkSink, ChunkSource, Receipts
from benchmarks.hosts import chunks_to_send as material

RUN_ID, MEMBER = "transport-1", "sender"
STREAM, GROUP = "raw:steps", "learner"
READ_BYTES = 8 << 20
"""Asked for at a time by both receivers."""
SOCKET_BYTES = 1 << 20
"""Taken from the socket at a time by both receivers; redis-py's own default is 64 KB, and slower."""
WINDOW_BYTES = 64 << 20
"""That may wait to be committed; the default of ``--window-mb``."""
PATIENCE = 120.0


class Task(NamedTuple):
    """What travels."""

    url: str
    shape: str
    chunks: int
    frame_bytes: int  # most of a frame's chunks together


def raw_send(task: Task, pipe: Connection) -> None:
    """redis-py's pipeline of XADD, as deep as ours."""
    chunks = _frames(task)
    frames = _wire(task, chunks)
    depth = max(1, min(BATCH_FRAMES, BATCH_BYTES // len(frames[0])))
    with redis.Redis.from_url(task.url) as client:
        client.ping()
        _begin(pipe, _items(chunks))
        with client.pipeline(transaction=False) as batch:
            for number, frame in enumerate(frames, 1):
                batch.xadd(STREAM, {"f": frame})
                if number % depth == 0:
                    batch.execute()
            batch.xadd(STREAM, {"f": b""})
            batch.execute()


def raw_receive(task: Task, pipe: Connection) -> None:
    """XREADGROUP and XACK; XDEL too, as ours does, or the server's memory would grow."""
    count = max(1, min(MOST_ENTRIES, READ_BYTES // task.frame_bytes))
    last = False
    with redis.Redis.from_url(task.url, socket_read_size=SOCKET_BYTES) as client:
        client.delete(STREAM)
        client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        _begin(pipe)
        while not last:
            for _, entries in client.xreadgroup(GROUP, "one", {STREAM: ">"}, count=count, block=1000):
                ids = [entry for entry, _ in entries]
                last = not entries[-1][1][b"f"]
                with client.pipeline(transaction=False) as batch:
                    batch.xack(STREAM, GROUP, *ids)
                    batch.xdel(STREAM, *ids)
                    batch.execute()
        pipe.send(time.monotonic())
        client.delete(STREAM)


def link_send(task: Task, pipe: Connection) -> None:
    """The sender alone: chunks are at hand."""
    chunks = _frames(task)
    frames = [
        (ChunkHeads([chunk.head for chunk in frame]), b"".join(chunk.body for chunk in frame)) for frame in chunks
    ]
    sender = _sender(task)
    sender.step(1.0)
    _begin(pipe, _items(chunks))
    _send_all(sender, frames)


def link_receive(task: Task, pipe: Connection) -> None:
    """The receiver alone: what it gives out is acknowledged at once."""
    receiver = _receiver(task)
    receiver.receive(0.1)
    expected = _begin(pipe)
    taken = 0
    while taken < expected:
        done = receiver.receive(1.0)
        if done:
            newest = done[-1]
            taken = newest.item_index + newest.heads.items()
            receiver.acknowledge(done, {(MEMBER, 1): newest.sequence + len(newest.heads)})
    pipe.send(time.monotonic())
    receiver.close()


def whole_send(task: Task, pipe: Connection) -> None:
    """Out of an actor host's replay, as the uplink does it."""
    shape = material.SHAPES[task.shape]
    with material.replay(shape, 2 * (task.chunks + 64) * 64) as source:
        taker = ChunkSource(source)
        taker.take(0, 0.0)  # an uplink owns its replay before anything is in it
        with source.writer(streams=material.STREAMS) as writer:
            for step in material.steps(shape, task.chunks // material.STREAMS * 64, seed=0):
                writer.append(step)
        sender = _sender(task)
        sender.step(1.0)
        _use_memory(task.frame_bytes)
        expected = int(source.core.native.counters()["inserted"])  # len() would take them in before the clock runs
        _begin(pipe, expected)
        _send_all(sender, _taken(taker, task.frame_bytes))
        if sender.committed_items != expected:
            raise RuntimeError(f"{sender.committed_items} of {expected} items were committed")


def _use_memory(frame_bytes: int) -> None:
    """As much as may wait to be committed. An uplink that has run for a while has used it, and keeps it; the raw loop
    has made its frames before the clock runs."""
    keep_memory()
    frames = [b"." * frame_bytes for _ in range(WINDOW_BYTES // frame_bytes)]
    del frames


def _taken(source: ChunkSource, most_bytes: int) -> Iterator[tuple[ChunkHeads, bytes]]:
    while (taken := source.take(most_bytes, 0.0))[0]:
        yield taken


def whole_receive(task: Task, pipe: Connection) -> None:
    """Into a learner's replay that is full and evicts, as the intake does it."""
    shape = material.SHAPES[task.shape]
    with material.replay(shape, 128 * 64, sampler="prioritized") as target:
        with target.writer(streams=material.STREAMS) as filler:
            for step in material.steps(shape, 2 * 128 * 64 // material.STREAMS, seed=1):
                filler.append(step)
            target.sample(64)  # from here on this process owns it, and a thread of it makes room
        before = target.stats()["inserted"]
        sink = ChunkSink(target, Receipts(), 2 * material.STREAMS)
        sink.open()
        receiver = _receiver(task)
        receiver.receive(0.1)
        expected = _begin(pipe)
        committed = 0
        while committed < expected:
            done = receiver.receive(1.0)
            for one in done:
                sink.commit_frame(MEMBER, one.sequence, one.item_index, one.heads, one.body, timeout=PATIENCE)
                committed = one.item_index + one.heads.items()
            if done:
                receiver.acknowledge(done, {(MEMBER, 1): done[-1].sequence + len(done[-1].heads)})
        pipe.send(time.monotonic())
        receiver.close()
        sink.close()
        target.sample(64)
        arrived = target.stats()["inserted"] - before
        if arrived != expected:
            raise RuntimeError(f"{arrived} of {expected} items came into the replay")


def _frames(task: Task) -> list[list[material.Chunk]]:
    """The chunks of each frame."""
    made, _ = material.chunks(material.SHAPES[task.shape], task.chunks)
    frames: list[list[material.Chunk]] = []
    nbytes = task.frame_bytes
    for chunk in made:
        if nbytes + chunk.head.nbytes > task.frame_bytes:
            frames.append([])
            nbytes = 0
        frames[-1].append(chunk)
        nbytes += chunk.head.nbytes
    return frames


def _wire(task: Task, frames: list[list[material.Chunk]]) -> list[bytes]:
    """The same as our sender makes them."""
    schema, wire, sequence, item = _schema(task), [], 0, 0
    for frame in frames:
        heads = msgspec.Raw(ChunkHeads([chunk.head for chunk in frame]).pack())
        head = FrameHead(RUN_ID, schema, MEMBER, 1, sequence, item, heads, {"env_steps": item})
        wire.append(b"".join(encode_frame(head, b"".join(chunk.body for chunk in frame))))
        sequence, item = sequence + len(frame), item + sum(chunk.head.items for chunk in frame)
    return wire


def _items(frames: list[list[material.Chunk]]) -> int:
    return sum(chunk.head.items for frame in frames for chunk in frame)


def _send_all(sender: ExperienceSender, frames: Iterable[tuple[ChunkHeads, bytes]]) -> None:
    queued = nbytes = 0
    for heads, body in frames:
        while sender.room < len(body):
            sender.step(0.01)
        sender.offer(heads, body, {"env_steps": sender.sent_items})
        queued, nbytes = queued + 1, nbytes + len(body)
        if queued == BATCH_FRAMES or nbytes >= BATCH_BYTES:
            sender.step(0.0)
            queued = nbytes = 0
    sender.close(PATIENCE)


def _begin(pipe: Connection, items: int = 0) -> int:
    """Say that all is ready, and wait for the start; answers how many items will be sent."""
    keep_memory()  # as every worker of a run does
    pipe.send(items)
    if not pipe.poll(PATIENCE):
        raise TimeoutError("nobody said go")
    return int(pipe.recv())


def _schema(task: Task) -> bytes:
    return material.chunks(material.SHAPES[task.shape], 1)[1]


def _sender(task: Task) -> ExperienceSender:
    return ExperienceSender(
        Server(task.url), RunKeys("transport"), run_id=RUN_ID, member=MEMBER, generation=1, schema=_schema(task),
        window_bytes=WINDOW_BYTES,
    )  # fmt: skip


def _receiver(task: Task) -> ExperienceReceiver:
    return ExperienceReceiver(
        Server(task.url), RunKeys("transport"), run_id=RUN_ID, schema=_schema(task), most_bytes_per_read=READ_BYTES
    )


Loop = Callable[[Task, Connection], None]
ARMS: dict[str, tuple[Loop, Loop]] = {
    "raw redis-py": (raw_send, raw_receive),
    "apexrl, sender and receiver": (link_send, link_receive),
    "apexrl, replay to replay": (whole_send, whole_receive),
}
