"""How fast experience and weights travel through Redis on the loopback, beside a plain redis-py loop.

    python benchmarks/hosts/run.py transport          # some minutes
    python benchmarks/hosts/run.py transport --quick  # does it work?

Experience: a sender and a receiver, each a process. *raw redis-py*: pipelines of XADD, XREADGROUP, XACK and XDEL over
the same bytes, as many at a time. *sender and receiver*: the link alone, chunks at hand. *replay to replay*: all that
lies between an actor host's replay and the learner's, which is full and evicts. Every arm in every round, by turns the
other way round; a fresh stream each time. The clock runs from the start of the sender until the receiver has
acknowledged (and, in the last arm, committed) everything. *A chunk at a time* is an entry of the stream each in the raw
loop; our sender joins those that wait for the server.

Weights: 10 MB to 4 hosts of 8 actors each; how much the server sent tells how often each version travelled.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.server import Server
from apexrl.links.redis.weights_uploader import WeightsUploader
from apexrl.roles.uplink import FRAME_BYTES, WeightsThread
from apexrl.shared.weights_board import WeightsBoard
from benchmarks.hosts import chunks_to_send as material
from benchmarks.hosts import transport_loops as arms
from benchmarks.lib import hosts as rig
from benchmarks.lib import report

HOSTS, SUBSCRIBERS, WEIGHTS_BYTES = 4, 32, 10 * 2**20
BAR = 0.8


class Case(NamedTuple):
    """What travels."""

    name: str
    shape: str
    chunks: int
    frame_bytes: int


CASES = [
    Case("small, a chunk at a time", "small", 24_000, 1),
    Case("small, frames as the uplink packs them", "small", 80_000, FRAME_BYTES),
    Case("Atari, a chunk at a time", "atari", 800, 1),
]


def play(arm: str, task: arms.Task) -> tuple[int, float]:
    """Items and seconds of one arm once."""
    context = mp.get_context("spawn")
    pipes: list[Connection] = []
    processes = []
    for loop in reversed(arms.ARMS[arm]):  # the receiver first: it makes the stream
        mine, theirs = context.Pipe()
        process = context.Process(target=loop, args=(task, theirs))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(mine)
    try:
        items = sum([_hear(pipe) for pipe in pipes])
        began = time.monotonic()
        for pipe in pipes:
            pipe.send(items)
        return items, _hear(pipes[0]) - began
    finally:
        for process in processes:
            process.join(arms.PATIENCE)
            if process.is_alive():
                process.kill()
        for pipe in pipes:
            pipe.close()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"{arm} failed; its error stands above")


def experience(server: rig.RedisServer, cases: list[Case], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Items per second, of every arm in every round."""
    results: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        frame_bytes = max(case.frame_bytes, largest_chunk(case.shape))
        task = arms.Task(server.tcp_url, case.shape, case.chunks, frame_bytes)
        results[case.name] = {arm: [] for arm in arms.ARMS}
        for number in range(rounds):
            for arm in list(arms.ARMS)[:: 1 if number % 2 == 0 else -1]:
                server.ask("FLUSHALL")
                items, seconds = play(arm, task)
                results[case.name][arm].append(items / seconds)
                print(f"{case.name}, round {number}, {arm}: {items} items in {seconds:.2f} s", flush=True)
    return results


def largest_chunk(shape: str) -> int:
    made, _ = material.chunks(material.SHAPES[shape], 1)
    return made[0].head.nbytes


def weights(server: rig.RedisServer, versions: int, period: float) -> dict[str, Any]:
    """Publish; answers how often each version left the server, and when the last subscriber had it."""
    url = server.tcp_url
    context = mp.get_context("spawn")
    boards = [WeightsBoard(WEIGHTS_BYTES) for _ in range(HOSTS)]
    inbox, outbox = context.Pipe(duplex=False)
    lock = context.Lock()
    hosts = [context.Process(target=_host, args=(url, board)) for board in boards]
    readers = [
        context.Process(target=_subscriber, args=(boards[n % HOSTS], n, versions, outbox, lock))
        for n in range(SUBSCRIBERS)
    ]
    for process in (*hosts, *readers):
        process.start()
    try:
        for _ in readers:
            _hear(inbox)
        uploader = WeightsUploader(Server(url), RunKeys("transport"), run_id=arms.RUN_ID)
        array = np.random.default_rng(0).random(WEIGHTS_BYTES // 8)
        rig.wait_for("bells", lambda: _bells(server) == HOSTS)
        before = _sent(server)
        published: dict[int, float] = {}
        for version in range(1, versions + 1):
            array[0] = version
            published[version] = time.monotonic()
            rig.wait_for("readers", lambda version=version: uploader.publish({"all": array}, version))
            time.sleep(max(0.0, published[version] + period - time.monotonic()))
        seen: dict[int, list[float]] = {version: [] for version in published}
        for _ in readers:
            _, each = _hear(inbox)
            for version, at in each.items():
                seen[version].append(at - published[version])
        sent = _sent(server) - before
        uploader.close()
    finally:
        for process in (*readers, *hosts):
            process.terminate()
            process.join(10)
    return {
        "versions": versions,
        "transfers_per_version": sent / versions / WEIGHTS_BYTES,
        "seen_by": [len(each) for each in seen.values()],
        "seconds_to_the_last": [max(each) for each in seen.values() if each],
        "seconds_to_half": [median(each) for each in seen.values() if each],
    }


def _host(url: str, board: WeightsBoard) -> None:
    thread = WeightsThread(Server(url), RunKeys("transport"), arms.RUN_ID, board)
    while True:
        thread.take_refusals()
        time.sleep(0.1)


def _subscriber(board: WeightsBoard, number: int, last: int, pipe: Connection, lock: Any) -> None:
    """As an actor that looks often; every version it saw, and when."""
    with lock:
        pipe.send(number)
    seen: dict[int, float] = {}
    version, end = 0, time.monotonic() + arms.PATIENCE
    while version < last and time.monotonic() < end:
        newest = board.latest(newer_than=version) if board.wait(version, timeout=0.5) else None
        if newest is not None:
            version, arrays = newest
            if arrays["all"][0] != version:
                raise RuntimeError(f"version {version} holds the weights of {arrays['all'][0]}")
            seen[version] = time.monotonic()
    with lock:
        pipe.send((number, seen))


def _sent(server: rig.RedisServer) -> int:
    return int(server.ask("INFO", "stats")["total_net_output_bytes"])


def _bells(server: rig.RedisServer) -> int:
    return int(server.ask("PUBSUB", "NUMSUB", RunKeys("transport").doorbell)[1])


def _hear(pipe: Connection) -> Any:
    if not pipe.poll(arms.PATIENCE):
        raise TimeoutError(f"nothing came within {arms.PATIENCE:g} s")
    return pipe.recv()


def experience_table(results: dict[str, dict[str, list[float]]]) -> str:
    rows = []
    shapes = {case.name: case.shape for case in CASES}
    for case, each in results.items():
        raw = each["raw redis-py"]
        for arm, speeds in each.items():
            whole, text = report.ratio(speeds, raw)
            bar = "" if speeds is raw else f", {'met' if whole >= BAR else 'missed'}"
            megabytes = [speed / 64 * largest_chunk(shapes[case]) / 1e6 for speed in speeds]
            rows.append([case, arm, report.spread(speeds), report.spread(megabytes), text + bar])
    return report.table(["frames", "", "transitions/s", "MB/s", f"of raw redis-py (bar: ≥ {BAR:g}×)"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--versions", type=int, default=20, help="of the weights (default: 20)")
    parser.add_argument("--period", type=float, default=0.5, help="seconds between versions (default: 0.5)")
    parser.add_argument("--appendonly", action="store_true", help="the server persists every second")
    parser.add_argument("--quick", action="store_true", help="a round of little: only to see that it works")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped too
    cases, rounds, versions = CASES, options.rounds, options.versions
    if options.quick:
        cases, rounds, versions = [case._replace(chunks=case.chunks // 20) for case in CASES], 1, 3
    persistence = ["--appendonly", "yes"] if options.appendonly else []
    with tempfile.TemporaryDirectory(prefix="apexrl-") as folder:
        server = rig.RedisServer("127.0.0.1", rig.free_port(), (), Path(folder), persistence)
        server.start()
        try:
            version = rig.redis_version(server)
            speeds = experience(server, cases, rounds)
            spread = weights(server, versions, options.period)
        finally:
            server.kill()
    transfers, last = spread["transfers_per_version"], spread["seconds_to_the_last"]
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'redis', 'hiredis')}, {version}, "
        f"{'append-only file, every second' if options.appendonly else 'no persistence'}.",
        f"A small chunk has 64 transitions and {largest_chunk('small')} bytes, an Atari chunk "
        f"{largest_chunk('atari') / 1000:.0f} kB. {rounds} rounds, median (least–greatest).\n",
        experience_table(speeds),
        f"10 MB of weights, {SUBSCRIBERS} subscribers on {HOSTS} hosts: every version left the server "
        f"**{transfers:.2f}** times (bar: {HOSTS}: {'met' if transfers < HOSTS + 0.5 else 'missed'}); the "
        f" last subscriber had it {report.spread([1000 * s for s in last], ' ms')} after it was published.\n",
    ]
    name = "hosts-transport" + ("-appendonly" if options.appendonly else "") + ("-quick" if options.quick else "")
    report.save(name, "\n".join(lines), {"items_per_second": speeds, "weights": spread}, None, options.out)
