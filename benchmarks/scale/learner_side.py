"""The learner's host in one process: its lease, the real intake with a replay that is full and evicts, the weights.

What is left out is the learner: nobody samples but for the first batch, after which a thread here makes room.
"""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np

from apexrl.config import Config
from apexrl.errors import HeldError, LinkError
from apexrl.links.local.role_context import InlineContext, InlineRun, WorkerIdentity
from apexrl.links.redis.checked_values import LearnerDigest, RunRecord
from apexrl.links.redis.receiver import Received
from apexrl.links.redis.run_record import LearnerLease
from apexrl.links.redis.server import Server
from apexrl.replay import Replay
from apexrl.replay.chunks import Receipts
from apexrl.roles import Intake
from apexrl.shared.weights_board import WeightsBoard
from benchmarks.hosts import chunks_to_send as material
from benchmarks.scale.light_hosts import SENT_AT

CAPACITY = 2**16
LEASE_SECONDS = 5.0
TAKE_SECONDS = 60.0


def serve(url: str, record: RunRecord, streams: int, weights_nbytes: int, pipe: Pipe) -> None:
    """Be the learner of the run: take its lease, commit what comes, publish when told."""
    began = time.monotonic()
    server = Server(url)
    lease = _take(server, record)
    taken_seconds = time.monotonic() - began
    shape = material.SHAPES["small"]
    options: dict[str, Any] = {"kind": "transition", "stack": 1, "n_step": 3}
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(
            fields=shape.fields, capacity=CAPACITY, writers=2, streams=streams + material.STREAMS, **options
        )
        with replay.writer(streams=material.STREAMS) as writer:
            for step in material.steps(shape, 2 * CAPACITY // material.STREAMS, seed=1):
                writer.append(step)
                if len(replay) >= CAPACITY:
                    break
            replay.sample(64)  # from here on this process owns it, and makes room
        board = WeightsBoard(weights_nbytes + 1024)
        run = InlineRun(lambda name, kind, values: None, steps_per_second=1000.0, real_time=True)
        latencies: list[float] = []
        receipts = Receipts(resumed=lease.resumed)
        context = InlineContext(run, WorkerIdentity("intake", "intake", 0, 0, 0, Path(folder)))
        intake = Intake(
            context, config=Config(), server=server, keys=lease.keys, run_id=record.run_id,
            replays=[replay], weights=board, receipts=receipts, streams=streams, fence=lease.taken,
        )  # fmt: skip
        acknowledge = intake._receiver.acknowledge

        def acknowledged(done: Sequence[Received], committed: Any) -> None:
            now = time.monotonic()
            latencies.extend(now - one.counts[SENT_AT] / 1000 for one in done if SENT_AT in one.counts)
            acknowledge(done, committed)

        intake._receiver.acknowledge = acknowledged  # type: ignore[method-assign]
        over, renewals = threading.Event(), []

        def renew() -> None:
            while not over.wait(1.0):
                start = time.monotonic()
                try:
                    lease.renew(LearnerDigest(weights_version=board.version))
                    renewals.append(time.monotonic() - start)
                except LinkError:
                    pass

        lease.renew(LearnerDigest())
        beacon = threading.Thread(target=renew, daemon=True)
        beacon.start()
        pipe.send({"taken_s": taken_seconds})
        array = np.zeros(weights_nbytes // 4, np.float32)
        while True:
            intake.step()
            if not pipe.poll():
                continue
            order, value = pipe.recv()
            if order == "publish":
                board.publish({"w": array}, value)
            usage = resource.getrusage(resource.RUSAGE_SELF)
            totals = receipts.totals()
            pipe.send({
                "at": time.monotonic(), "cpu": time.process_time(), "rss_mib": usage.ru_maxrss / 1024,
                "committed": totals.committed, "missing": totals.missing, "repeated": totals.repeated,
                "latencies": latencies[:], "renewals": renewals[:], "inserted": int(replay.stats()["inserted"]),
            })  # fmt: skip
            latencies.clear()
            renewals.clear()
            if order == "finish":
                break
        over.set()
        beacon.join(10.0)
        intake.close()
        lease.finish({}, timeout=5.0)
        replay.close()


def _take(server: Server, record: RunRecord) -> LearnerLease:
    deadline = time.monotonic() + TAKE_SECONDS
    while True:
        try:
            return LearnerLease.take(server, record, LEASE_SECONDS)
        except HeldError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
