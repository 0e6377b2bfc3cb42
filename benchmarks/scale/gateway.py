"""Environment workers at one TCP gateway: how many does it bear, how long do they wait, and what gives way?

    python benchmarks/scale/run.py gateway           # some minutes
    python benchmarks/scale/run.py gateway --quick   # does it work?

The gateway, the memory behind it and the request server are real; answers are zeros, as no network computes them. The
workers are simulated: hosts of eight, each with the real connection, and each worker with the real client, which sends
an observation every 50 ms (a simulator of 20 steps a second) and waits for its action. A thread serves eight of them.
Requests are numbered: every one must be answered once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import resource
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

import numpy as np

from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp.gateway_messages import Record
from apexrl.links.tcp.gateway_server import Gateway
from apexrl.links.tcp.handshake import UnreachableError
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.inference_desk import InferenceDesk
from apexrl.links.tcp.remote_inference import RemoteInference, RemoteRequestClient
from apexrl.spec import Field
from benchmarks.lib import report

EACH: Final = 8
"""Workers of a host."""
STEP_SECONDS: Final = 0.05
TOKEN: Final = "a token of many letters"
REQUEST: Final = {"observation": Field((4,), "float32"), "starts": Field((), "bool"), "number": Field((), "int64")}
REPLY: Final = {"action": Field((), "int64"), "number": Field((), "int64")}
PATIENCE: Final = 300.0


def serve(workers: int, pipe: Pipe) -> None:
    """The learner's host: answers whatever waits, until told to end."""
    _many_files()
    link = InferenceLink.make(shared=True, request=REQUEST, reply=REPLY, workers=workers, splits=(1,))
    record = Record(
        run_id="12345678-scale", name="scale", apexrl="0", host="here", config="x = 1", spec={}, splits=[1],
        lease_seconds=10.0,
    )  # fmt: skip
    server, told = link.server(), []
    gateway = Gateway(InferenceDesk(link), TOKEN, record, tell=lambda text, level: told.append(text))
    pipe.send(gateway.address)
    answered = sizes = batches = 0
    while True:
        pending = server.pending()
        if not pending:
            server.wait(0.05)
        else:
            requests = server.read(pending)
            number = requests.columns["number"]
            server.answer(requests, {"action": np.zeros(len(number), np.int64), "number": number})
            answered, sizes, batches = answered + len(number), sizes + len(pending), batches + 1
        if pipe.poll():
            try:
                order = pipe.recv()
            except EOFError:  # whoever measures has ended
                break
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send({
                "answered": answered, "batch": sizes / max(1, batches), "cpu": time.process_time(),
                "rss_mib": usage.ru_maxrss / 1024, "threads": threading.active_count(), "said": len(told),
            })  # fmt: skip
            if order == "end":
                break
    gateway.close()


def work(address: tuple[str, int], hosts: int, pipe: Pipe) -> None:
    """Join with so many hosts, let their workers ask, and tell what they saw."""
    _many_files()
    threading.stack_size(256 * 1024)
    joins: list[float] = []
    waits: list[list[float]] = [[] for _ in range(hosts)]
    counts = [[0, 0, 0, 0] for _ in range(hosts)]  # asked, answered, answers of another number, reconnects
    connections = [HostConnection(address, TOKEN, f"host-{n}", n, connect_seconds=30.0) for n in range(hosts)]
    clients: list[Sequence[RemoteRequestClient]] = []
    for connection in connections:
        began = time.monotonic()
        connection.connect()
        connection.join(EACH)
        link = RemoteInference(
            address, TOKEN, REQUEST, REPLY, (1,), run="12345678-scale", member=connection.member,
            leases=connection.leases, connect_seconds=30.0,
        )  # fmt: skip
        clients.append([link.worker(index, 0) for index, _ in connection.leases])
        joins.append(time.monotonic() - began)
    pipe.send(joins)
    over = threading.Event()

    def play(host: int) -> None:
        beat_at, number = 0.0, 0
        asked, numbers = [0.0] * EACH, [0] * EACH
        due = [time.monotonic() + STEP_SECONDS * n / EACH for n in range(EACH)]
        while not over.is_set() or any(asked):
            now = time.monotonic()
            for n, client in enumerate(clients[host]):
                if asked[n] and client.answered():
                    counts[host][1] += 1
                    counts[host][2] += int(client.take(0)["number"][0]) != numbers[n]
                    waits[host].append(now - asked[n])
                    asked[n] = 0.0
                if not asked[n] and now >= due[n] and not over.is_set() and (room := client.room(0)) is not None:
                    number += 1
                    counts[host][0] += 1
                    room["number"][0] = numbers[n] = number
                    client.ask(0, now)
                    asked[n], due[n] = now, now + STEP_SECONDS
            if now >= beat_at:
                try:
                    connections[host].beat(counts={"env_steps": EACH})
                except UnreachableError:  # silent for longer than its lease while all others joined
                    connections[host].connect()
                    counts[host][3] += 1
                beat_at = now + 1.0
            time.sleep(0.002)

    players = [threading.Thread(target=play, args=(host,), daemon=True) for host in range(hosts)]
    pipe.recv()
    for player in players:
        player.start()
    pipe.recv()
    over.set()
    for player in players:
        player.join(60.0)
    pipe.send({
        "waits": [one for each in waits for one in each], "asked": sum(one[0] for one in counts),
        "answered": sum(one[1] for one in counts), "wrong": sum(one[2] for one in counts),
        "reconnects": sum(one[3] for one in counts),
    })  # fmt: skip
    for connection in connections:
        connection.leave()


def _many_files() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def measure(workers: int, seconds: float) -> dict[str, Any]:
    """So many workers for so long."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(workers, theirs), daemon=True)
    server.start()
    address = _hear(ours)
    pipe, end = context.Pipe()
    crowd = context.Process(target=work, args=(address, workers // EACH, end), daemon=True)
    began = time.monotonic()
    crowd.start()
    try:
        joins = _hear(pipe)
        joined = time.monotonic() - began
        pipe.send("ask")
        time.sleep(2.0)
        before = _ask(ours, "look")
        began = time.monotonic()
        time.sleep(seconds)
        wall, now = time.monotonic() - began, _ask(ours, "look")
        pipe.send("end")
        seen = _hear(pipe)
        last = _ask(ours, "end")
    finally:
        for process in (crowd, server):
            process.join(10.0)
            process.kill()
    return {
        "workers": workers, "joined_s": joined, "join_ms": [1000 * float(np.percentile(joins, p)) for p in (50, 99)],
        "answers_per_second": (now["answered"] - before["answered"]) / wall,
        "wanted_per_second": workers / STEP_SECONDS,
        "wait_ms": [1000 * float(np.percentile(seen["waits"], p)) for p in (50, 99, 100)],
        "server_cpu": (now["cpu"] - before["cpu"]) / wall, "batch": now["batch"], "threads": now["threads"],
        "rss_mib": now["rss_mib"], "asked": seen["asked"], "answered": seen["answered"], "wrong": seen["wrong"],
        "reconnects": seen["reconnects"],
        "server_answered": last["answered"], "said": last["said"],
    }  # fmt: skip


def _ask(pipe: Pipe, order: str) -> Any:
    pipe.send(order)
    return _hear(pipe)


def _hear(pipe: Pipe) -> Any:
    if not pipe.poll(PATIENCE):
        raise TimeoutError(f"no answer within {PATIENCE:g} s")
    return pipe.recv()


def table(rows: list[dict[str, Any]]) -> str:
    heads = ["workers", "all joined, s", "answers/s", "of 20 a worker", "wait p50 / p99 / most, ms", "gateway, cores",
             "requests together", "its threads", "its memory, MiB", "asked", "answered", "wrong"]  # fmt: skip
    cells = [
        [row["workers"], f"{row['joined_s']:.1f}", report.short(row["answers_per_second"]),
         f"{row['answers_per_second'] / row['wanted_per_second']:.0%}",
         " / ".join(report.short(value) for value in row["wait_ms"]), f"{row['server_cpu']:.2f}", f"{row['batch']:.1f}",
         row["threads"], f"{row['rss_mib']:.0f}", f"{row['asked']:,}", f"{row['answered']:,}", row["wrong"]]
        for row in rows
    ]  # fmt: skip
    whole = all(row["asked"] == row["answered"] and not row["wrong"] for row in rows)
    return "\n".join(
        [
            f"{report.machine()}; {report.versions('apexrl', 'numpy')}.\n",
            report.table(heads, cells),
            f"Every request was answered once, with its own number: {'met' if whole else 'missed'}.",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true", help="few workers, short: only to see that it works")
    parser.add_argument("--records", type=Path, default=report.RECORDS / "scale", help="folder of the record")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.seconds = [16], 2.0
    rows = []
    for workers in options.workers:
        rows.append(measure(workers, options.seconds))
        print(json.dumps(rows[-1]), flush=True)
    text = table(rows)
    if not options.quick:
        options.records.mkdir(parents=True, exist_ok=True)
        (options.records / "gateway.json").write_text(json.dumps(rows) + "\n", encoding="utf-8")
    report.save("scale-gateway" + ("-quick" if options.quick else ""), text, {"rows": rows}, None, options.out)
    return 0 if "missed" not in text else 1
