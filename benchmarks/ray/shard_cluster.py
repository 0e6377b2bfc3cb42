"""Shards, writers and a sampler on a Ray of this machine alone: what ``scale.py`` and ``shards.py`` drive.

Shards and sampler are those of a run (``apexrl.replay.sharded.shard``, ``ShardedReplay``, the calls of
``apexrl.launch.ray.shard_clients``); environments, agents and learners are left out. Writers are Ray actors that append
ready-made steps in shared memory, as actors of a shard's group do.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray

from apexrl.launch.ray.shard_clients import ShardClient, generation_name
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import DrawResult, Shard, UpdateResult
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from benchmarks.lib import report
from benchmarks.replay.rows import CYCLE, ROWS, steps

ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
AHEAD = 2  # batches asked for before they are wanted, as in a run
LIMIT = 120.0  # seconds for anything that Ray is asked for, beyond the time that it was told to take
QUIET = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # a cluster of its own, of this machine alone
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
_remote: Any = ray.remote


def add_flags(parser: argparse.ArgumentParser, writers: int, streams: int, warm_up: float, seconds: float) -> None:
    """The flags of every benchmark that drives such a cluster, with these defaults."""
    parser.add_argument("--rows", choices=ROWS, default="atari", help="whose rates are measured")
    parser.add_argument("--writers", type=int, default=writers, help="processes; at least as many as shards")
    parser.add_argument("--streams", type=int, default=streams, help="of all writers together")
    parser.add_argument("--warm-up", type=float, default=warm_up, help="seconds before a window")
    parser.add_argument("--seconds", type=float, default=seconds, help="of a window")
    parser.add_argument("--store-mb", type=int, default=600, help="of the object store")
    parser.add_argument("--quick", action="store_true", help="small rows, seconds: does it work?")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")


@contextmanager
def cluster(cpus: int, store_bytes: int) -> Iterator[str]:
    """A Ray of this machine; gives the namespace. It is gone afterwards."""
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    os.environ.update(QUIET, PYTHONPATH=os.pathsep.join(entry for entry in path if entry))  # nodes find us there
    namespace = f"apexrl-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        ray.init(
            num_cpus=cpus, object_store_memory=store_bytes, namespace=namespace, include_dashboard=False,
            log_to_driver=False, logging_level=logging.ERROR, _temp_dir=folder,
        )  # fmt: skip
        try:
            yield namespace
        finally:
            ray.shutdown()


class Did(NamedTuple):
    """What one process did in a window."""

    done: int  # transitions written, or batches sampled
    cpu: float  # seconds of processors, all its threads
    seconds: float
    bytes: int = 0  # of arrays that came or went


class Host:
    """A process with a shard (a Ray actor)."""

    def __init__(self, options: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
        self._replay = Replay(fields=fields, **options)
        self._shard = Shard(self._replay)

    def replay(self) -> Replay:
        """For writers on this machine."""
        return self._replay

    def draw(self, count: int, until: int | None, node: str) -> DrawResult:
        """As from another ``node`` than this, whoever asks."""
        return self._shard.draw(count, until)

    def update(self, generation: str, keys: Any, priorities: Any) -> UpdateResult:
        return self._shard.update(generation, keys, priorities)

    def put(self, values: Mapping[str, Any], priorities: Any) -> int:
        """Insert finished rows; answers how many."""
        self._replay.writer().extend(values, priorities=priorities)
        return len(priorities)

    def stats(self) -> dict[str, Any]:
        return self._replay.stats()

    def cpu(self) -> float:
        """Seconds of processors that this process has had."""
        return time.process_time()


def host(namespace: str, shard: int, options: Mapping[str, Any], fields: Mapping[str, Field]) -> Any:
    """A ``Host`` under the name by which samplers find it."""
    name = generation_name(f"shard-{shard}", 0)
    return _remote(Host).options(num_cpus=0, name=name, namespace=namespace).remote(dict(options), dict(fields))


class Pen:
    """A process that writes into one shard (a Ray actor): ``streams`` actors of the paper, a step of each at a time."""

    def __init__(self, replay: Replay, rows: str, streams: int, seed: int) -> None:
        self._streams = streams
        self._rng = np.random.default_rng(seed)
        self._steps = [dict(step) for step in steps(ROWS[rows], streams)]
        self._turn = 0
        self._writer = replay.writer(streams=streams, priority_fn=lambda items: items["magnitude"])

    def ready(self) -> bool:
        return True

    def fill(self, count: int) -> int:
        """Write ``count`` transitions or a few more, without pause."""
        written = 0
        while written < count:
            written += self._write()
        return written

    def write(self, begin: float, warm: float, seconds: float, rate: float) -> Did:
        """From ``begin`` (monotonic seconds) for ``warm + seconds``, ``rate`` transitions a second (0: without pause).

        Counted is what was written in the last ``seconds``. Turns have times of their own: one that comes late does not
        move those after it.
        """
        interval = self._streams / rate if rate else 0.0
        due, counts_from, ends = begin, begin + warm, begin + warm + seconds
        count, cpu, since = 0, 0.0, 0.0
        while (now := time.monotonic()) < ends:
            if not since and now >= counts_from:
                since, cpu = now, time.process_time()
            if due > now:
                time.sleep(min(due, ends) - now)
                if due >= ends:
                    break
            due += interval
            wrote = self._write()
            count += wrote if since else 0
        one = sum(value.nbytes for value in self._steps[0].values()) // self._streams
        return Did(count, time.process_time() - cpu, seconds, count * one)

    def _write(self) -> int:
        step = self._steps[self._turn % CYCLE]
        self._turn += 1
        step["magnitude"] = self._rng.random(self._streams, dtype=np.float32)
        self._writer.append(step, timeout=LIMIT)
        return self._streams


class Rig:
    """Shards of ``items`` together, ``writers`` processes that write, and a sampler in this process.

    Args:
        rows: a name of ``replay_rows.ROWS``.
        streams: of all writers together; writer k writes into shard k mod ``shards``.
        n_step: of a transition.
    """

    def __init__(
        self, namespace: str, rows: str, items: int, shards: int, writers: int, streams: int, n_step: int = 1
    ) -> None:
        row = ROWS[rows]
        stack = row.observation[0] if len(row.observation) > 1 else 1
        frame = row.observation[1:] if stack > 1 else row.observation
        fields = {
            "observation": Field(frame, row.observation_dtype),
            "action": Field(row.action, row.action_dtype),
            "magnitude": Field((), "float32", sampled=False),
        }
        each = max(1, streams // writers)
        options = {
            "capacity": -(-items // shards), "kind": "transition", "stack": stack, "n_step": n_step, "alpha": ALPHA,
            "eps": EPS, "writers": writers, "streams": each * -(-writers // shards),
        }  # fmt: skip
        self.items = items
        self._hosts = [host(namespace, k, {**options, "seed": k}, fields) for k in range(shards)]
        replays = [host.replay.remote() for host in self._hosts]
        self._pens = [
            _remote(Pen).options(num_cpus=0).remote(replays[k % shards], rows, each, k) for k in range(writers)
        ]
        asked([pen.ready.remote() for pen in self._pens])
        ends = [ShardClient(f"shard-{k}", namespace) for k in range(shards)]
        self.replay = ShardedReplay(ends, capacity=items, min_size=1, ahead=AHEAD, seed=0)
        self._rng = np.random.default_rng(1)

    def fill(self, items: int) -> None:
        """Write ``items`` transitions."""
        asked([pen.fill.remote(-(-items // len(self._pens))) for pen in self._pens], seconds=items / 1000.0)

    def stats(self) -> list[dict[str, Any]]:
        return asked([host.stats.remote() for host in self._hosts])

    def cpu(self) -> list[float]:
        """Of each shard's process, seconds."""
        return asked([host.cpu.remote() for host in self._hosts])

    def write(self, begin: float, warm: float, seconds: float, rate: float) -> list[Any]:
        """Have all writers write, ``rate`` together; what comes is asked for with ``asked``."""
        return [pen.write.remote(begin, warm, seconds, rate / len(self._pens)) for pen in self._pens]

    def learn(self, begin: float, warm: float, seconds: float, batch: int, rate: float) -> Did:
        """Sample, read every byte as a learner would, and write priorities, ``rate`` batches a second (0: no pause)."""
        interval = 1.0 / rate if rate else 0.0
        due, counts_from, ends = begin, begin + warm, begin + warm + seconds
        count, nbytes, cpu, since = 0, 0, 0.0, 0.0
        while (now := time.monotonic()) < ends:
            if not since and now >= counts_from:
                since, cpu = now, time.process_time()
            if due > now:
                time.sleep(min(due, ends) - now)
                if due >= ends:
                    break
            due += interval
            got = self.replay.sample(batch, beta=BETA, timeout=LIMIT)
            for value in got.data.values():
                _read(value)
            self.replay.update_priorities(got.keys, self._rng.random(batch))
            if since:
                count += 1
                nbytes += sum(value.nbytes for value in got.data.values())
        return Did(count, time.process_time() - cpu, seconds, nbytes)

    def close(self) -> None:
        for actor in (*self._pens, *self._hosts):
            ray.kill(actor, no_restart=True)


def asked(references: Sequence[Any], seconds: float = 0.0) -> list[Any]:
    """The answers; TimeoutError where they do not come ``LIMIT`` after the ``seconds`` that they may take."""
    return list(ray.get(list(references), timeout=LIMIT + seconds))


def _read(value: Any) -> None:
    """Every byte once, at the speed of memory."""
    plain = value.reshape(-1).view(np.uint8)
    words = plain[: len(plain) // 8 * 8].view(np.uint64)
    np.bitwise_xor.reduce(words)


def raylet_cpu() -> float:
    """Seconds of processors that this process's raylet has had, in which the object store works; 0: there is none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has ended meanwhile
                continue
            fields = rest.split()
            if name.endswith("(raylet") and int(fields[1]) == os.getpid():
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def machine_cpu() -> tuple[float, float]:
    """Seconds that this machine's processors have worked, and have had, since it began."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    clock = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / clock, sum(ticks) / clock


def memory_available() -> int:
    """Bytes that programs may still take."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not tell MemAvailable")


def copy_rate(seconds: float = 1.0) -> float:
    """Bytes a second that one process copies in memory, alone."""
    source = np.ones(64 << 20, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    began, copied = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        np.copyto(target, source)
        copied += source.nbytes
    return copied / (time.perf_counter() - began)
