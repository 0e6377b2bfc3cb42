"""The same kills on cpprb's MPPrioritizedReplayBuffer, for comparison.

Its processes wait for one another's locks, so one that dies inside can stop all others for ever. A rig (the learner,
and the workers that it forked) is a process group of its own: after a hang it is killed, and another one started.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.replay.tagged_rows import SEQUENCE, Array, Rows, shared, spawn

PATIENCE = 4.0  # seconds without a batch, or without an insert, after which it hangs


@dataclass
class Trial:
    """What kills of workers did to cpprb."""

    kills: int = 0
    hangs: int = 0
    bad_rows: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"MPPrioritizedReplayBuffer, the same rows: {self.kills} workers killed, {self.hangs} hangs, "
            f"{self.bad_rows} bad rows, in {self.seconds:.0f} s"
        )


def trial(kills: int, workers: int, most_seconds: float, seed: int) -> Trial:
    found, rng = Trial(), random.Random(seed)
    start = time.perf_counter()
    batches, inserts, wrong, pids = shared(1), shared(workers), shared(1), shared(workers)
    while found.kills < kills and time.perf_counter() - start < most_seconds:
        pids[:] = 0
        group = spawn(lambda: rig(workers, batches, inserts, wrong, pids))
        try:
            if not goes_on(batches, inserts, 30.0):
                raise RuntimeError("cpprb does not start")
            while found.kills < kills and time.perf_counter() - start < most_seconds and pids.any():
                time.sleep(rng.uniform(0.0, 0.1))
                seat = rng.choice(np.flatnonzero(pids).tolist())
                os.kill(int(pids[seat]), signal.SIGKILL)
                pids[seat] = 0
                found.kills += 1
                if not goes_on(batches, inserts, PATIENCE, pids.any()):
                    found.hangs += 1
                    break
        finally:
            os.killpg(group, signal.SIGKILL)
            os.waitpid(group, 0)
    found.bad_rows, found.seconds = int(wrong[0]), time.perf_counter() - start
    return found


def goes_on(batches: Array, inserts: Array, seconds: float, writers: bool = True) -> bool:
    """Whether there are three more batches, and inserts, within ``seconds``."""
    until = time.perf_counter() + seconds
    sampled, inserted = batches[0], inserts.sum()
    while time.perf_counter() < until:
        if batches[0] >= sampled + 3 and (inserts.sum() > inserted or not writers):
            return True
        time.sleep(0.001)
    return False


def rig(workers: int, batches: Array, inserts: Array, wrong: Array, pids: Array) -> None:
    """The learner: makes the buffer, fills it a little, forks the workers, samples for ever."""
    import cpprb

    os.setpgid(0, 0)
    rows = Rows()
    fields = {name: {"shape": f.shape or 1, "dtype": np.dtype(f.dtype)} for name, f in rows.fields.items()}
    context = multiprocessing.get_context("fork")
    buffer = cpprb.MPPrioritizedReplayBuffer(rows.capacity, fields, alpha=0.6, eps=1e-6, ctx=context)

    def write(seat: int) -> None:
        rng, number = np.random.default_rng(), 0
        while True:
            count = int(rng.integers(1, 200))
            values = rows.values((seat + 1) * SEQUENCE + np.arange(number, number + count))
            buffer.add(**values, priorities=rng.random(count) + 0.01)
            number += count
            inserts[seat] += count

    buffer.add(**rows.values(SEQUENCE + np.arange(1000)), priorities=np.ones(1000))
    for seat in range(workers):
        pids[seat] = spawn(lambda seat=seat: write(seat))
    rng = np.random.default_rng()
    while True:
        batch = buffer.sample(128, 0.4)
        data = {name: batch[name] for name in rows.fields}
        wrong[0] += rows.wrong({**data, "action": data["action"][:, 0], "reward": data["reward"][:, 0]})
        buffer.update_priorities(batch["indexes"], rng.random(128) + 0.01)
        batches[0] += 1
