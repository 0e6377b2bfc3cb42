"""kill -9 of workers and of sampling learners, at random moments: what hangs, what is torn, what is left behind.

    python benchmarks/replay/run.py kills --kills 1000 --learner-kills 20 [--peers cpprb]

A hang: no batch, or no insert, for 4 seconds. A bad row: its parts are not of one origin. A lost row: missing between
two of its worker that are there. A leak: a process, descriptor, mapping, file, lane or slot that is not given back.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from apexrl.errors import OwnershipError, WaitTimeout
from apexrl.replay import Replay
from benchmarks.lib import report
from benchmarks.replay.tagged_rows import SEQUENCE, TRAFFIC, Array, Nursery, Traffic, end, shared, spawn

PATIENCE = 4.0  # seconds after which it hangs
BATCH = 128


@dataclass
class Findings:
    """What one part found."""

    part: str
    kills: int = 0
    hangs: int = 0
    bad_rows: int = 0
    lost_rows: int = 0
    double_rows: int = 0
    leaks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    batches: int = 0
    checked_rows: int = 0
    inserted: int = 0
    longest_wait: float = 0.0  # seconds without a batch

    @property
    def fine(self) -> bool:
        return not (self.hangs or self.bad_rows or self.lost_rows or self.double_rows or self.leaks)


def main() -> int:
    options = arguments()
    parts = []
    rows_kills = round(0.7 * options.kills)
    for name, kills in (("rows", rows_kills), ("transition", options.kills - rows_kills)):
        parts.append(part(f"workers, {name}", TRAFFIC[name], kill_workers, kills, options))
    for name, kills in (("rows", options.learner_kills // 2), ("transition", (options.learner_kills + 1) // 2)):
        parts.append(part(f"learner, {name}", TRAFFIC[name], kill_learners, kills, options))
    header = [
        "killed",
        "kills",
        "hangs",
        "bad rows",
        "lost rows",
        "double rows",
        "leaks",
        "kills/s",
        "batches",
        "longest wait",
    ]
    lines = [
        [f.part, f.kills, f.hangs, f.bad_rows, f.lost_rows, f.double_rows, len(f.leaks), f"{f.kills / f.seconds:.1f}",
         f"{f.batches:,}", f"{f.longest_wait * 1e3:.0f} ms"]
        for f in parts
    ]  # fmt: skip
    text = f"# kill -9\n\napexrl {report.version('apexrl')}, {options.workers} workers. {report.machine()}.\n\n"
    text += report.table(header, lines)
    leaks = [f"{f.part}: {leak}" for f in parts for leak in f.leaks]
    text += "".join(f"\n- leak: {leak}" for leak in leaks)
    peers = []
    for name in options.peers:
        from benchmarks.replay.kills_cpprb import trial

        print(f"{name}: {options.peer_kills} kills …", flush=True)
        peers.append(trial(options.peer_kills, options.workers, options.peer_seconds, options.seed))
        text += f"\n{name} {report.version(name)}, {peers[-1]}\n"
    given = {name: str(value) for name, value in vars(options).items()}
    data = {"parts": [asdict(f) for f in parts], "peers": [asdict(p) for p in peers], "options": given}
    report.save("replay-faults", text, data, None, options.out)
    return 0 if all(f.fine for f in parts) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="of workers, 7 in 10 in rows mode")
    parser.add_argument("--learner-kills", type=int, default=20, help="of the process that samples and owns")
    parser.add_argument("--workers", type=int, default=4, help="that write flat out at any time")
    parser.add_argument("--rate", type=float, default=40.0, help="kills a second, on average")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of death")
    parser.add_argument("--peers", nargs="*", choices=["cpprb"], default=[], help="kill their workers too")
    parser.add_argument("--peer-kills", type=int, default=40)
    parser.add_argument("--peer-seconds", type=float, default=120.0, help="the most that a peer takes")
    parser.add_argument("--out", type=Path, default=report.OUT)
    return parser.parse_args()


# --- a part: what was there before must be all that is there after


Work = Callable[[Replay, Traffic, int, argparse.Namespace, Findings], None]


def part(name: str, traffic: Traffic, work: Work, kills: int, options: argparse.Namespace) -> Findings:
    findings = Findings(name)
    print(f"{name}: {kills} kills …", flush=True)
    before = belongings()
    start = time.perf_counter()
    replay = traffic.make(options.workers + 1)
    try:
        work(replay, traffic, kills, options, findings)
        findings.seconds = time.perf_counter() - start
        aftermath(replay, traffic, findings)
        findings.inserted = replay.stats()["inserted"]
    finally:
        replay.close()
    del replay
    gc.collect()
    findings.leaks += [f"{what}: {count} more" for what, count in (belongings() - before).items()]
    return findings


class Belongings(dict[str, int]):
    def __sub__(self, earlier: Belongings) -> Belongings:
        return Belongings({what: n - earlier.get(what, 0) for what, n in self.items() if n > earlier.get(what, 0)})


def belongings() -> Belongings:
    """What this process holds of the system's things."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    try:
        children = 1 if os.waitpid(-1, os.WNOHANG) else 0
    except ChildProcessError:
        children = 0
    return Belongings(
        descriptors=len(os.listdir("/proc/self/fd")),
        mappings=maps.count("memfd:apexrl"),
        files=len(os.listdir("/dev/shm")),
        threads=len(os.listdir("/proc/self/task")),
        children=children,
    )


def aftermath(replay: Replay, traffic: Traffic, findings: Findings) -> None:
    """The workers are dead and this process owns: nothing published is lost, and every lane and slot comes back."""
    deadline = time.perf_counter() + PATIENCE
    while replay.stats()["lanes_active"] and time.perf_counter() < deadline:
        replay.sample(1)
        time.sleep(0.02)
    if lanes := replay.stats()["lanes_active"]:
        findings.leaks.append(f"{lanes} lanes of dead workers")
    for again in range(2):
        tags = everything(replay, traffic, findings)
        origins, numbers = np.divmod(np.sort(tags), SEQUENCE)
        findings.double_rows += len(tags) - len(np.unique(tags))
        for origin in np.unique(origins):
            findings.lost_rows += traffic.gaps(np.unique(numbers[origins == origin]))
        size, chunk = len(replay), replay.stats()["chunk"]
        # Right after the kills, chunks that the dead left half filled may take the place of full ones.
        if not (traffic.capacity - chunk if again else 0) < size <= traffic.capacity:
            findings.leaks.append(f"slots: {size} items of {traffic.capacity} after {findings.kills} kills")
        if not again:
            try:
                traffic.write(replay, 999_999, 3 * traffic.capacity)
            except WaitTimeout as error:
                findings.leaks.append(f"slots: {error}")
                return
    if replay.core.native.check() != 0.0:
        findings.leaks.append("the sums or counts of the tree are wrong")


def everything(replay: Replay, traffic: Traffic, findings: Findings) -> Array:
    """The tags of all items, each once: what was drawn gets a small priority, so that the rest is drawn soon."""
    found: dict[int, int] = {}
    for _ in range(100):
        size = len(replay)
        batch = replay.sample(size)
        check(batch.data, traffic, findings)
        found.update(zip(batch.keys.tolist(), batch.data[traffic.tag].tolist(), strict=True))
        if len(found) == size:
            return np.array(list(found.values()))
        replay.update_priorities(batch.keys, np.full(size, 1e-9))
    raise RuntimeError(f"{size - len(found)} items cannot be drawn")


def check(data: dict[str, Array], traffic: Traffic, findings: Findings) -> None:
    findings.bad_rows += traffic.wrong(data)
    findings.checked_rows += len(data[traffic.tag])


# --- workers die


def kill_workers(replay: Replay, traffic: Traffic, kills: int, options: argparse.Namespace, findings: Findings) -> None:
    """This process samples, checks and updates flat out while workers are killed."""
    done = shared(1)
    nursery = Nursery(
        lambda worker: traffic.write(replay, worker, float("inf")), options.workers, options.rate, options.seed, done
    )
    rng = np.random.default_rng(options.seed)
    inserts = Progress()
    last = time.perf_counter()
    try:
        while done[0] < kills:
            try:
                batch = replay.sample(BATCH, timeout=PATIENCE)
            except WaitTimeout:
                findings.hangs += 1
                continue
            check(batch.data, traffic, findings)
            replay.update_priorities(batch.keys, rng.random(BATCH) + 0.01)
            now = time.perf_counter()
            findings.longest_wait, last = max(findings.longest_wait, now - last), now
            findings.batches += 1
            if findings.batches % 64 == 0:
                findings.hangs += inserts.stalled(replay)
    finally:
        nursery.stop()
    findings.kills = int(done[0])


class Progress:
    """Whether inserts go on."""

    def __init__(self) -> None:
        self._seen, self._when = 0, time.perf_counter()

    def stalled(self, replay: Replay) -> bool:
        """True once for every PATIENCE seconds without an insert."""
        inserted, now = replay.stats()["inserted"], time.perf_counter()
        if inserted != self._seen:
            self._seen, self._when = inserted, now
        elif now - self._when > PATIENCE:
            self._when = now
            return True
        return False


# --- learners die


def kill_learners(
    replay: Replay, traffic: Traffic, kills: int, options: argparse.Namespace, findings: Findings
) -> None:
    """Two processes try to sample: one owns, is killed, and the other takes over. Workers are killed now and then."""
    deaths, batches, wrong = shared(1), shared(2), shared(2)
    nursery = Nursery(
        lambda worker: traffic.write(replay, worker, float("inf")),
        max(1, options.workers // 2),
        5.0,
        options.seed,
        deaths,
    )
    me = os.getpid()

    def learn(seat: int) -> None:
        rng = np.random.default_rng()
        while os.getppid() == me:
            try:
                batch = replay.sample(BATCH, timeout=PATIENCE)
            except (OwnershipError, WaitTimeout):
                time.sleep(0.001)
                continue
            wrong[seat] += traffic.wrong(batch.data)
            replay.update_priorities(batch.keys, rng.random(BATCH) + 0.01)
            batches[seat] += 1

    rng = random.Random(options.seed)
    pids = [spawn(lambda seat=seat: learn(seat)) for seat in (0, 1)]
    inserts = Progress()
    try:
        while findings.kills < kills:
            seat = await_owner(replay, pids, batches, findings)
            if seat is None:
                findings.hangs += 1
                seat = 0
            time.sleep(rng.uniform(0.0, 0.05))
            end(pids[seat])
            findings.kills += 1
            pids[seat] = spawn(lambda seat=seat: learn(seat))
            findings.hangs += inserts.stalled(replay)
        if await_owner(replay, pids, batches, findings) is None:
            findings.hangs += 1
    finally:
        for pid in pids:
            end(pid)
        nursery.stop()
    findings.batches, findings.bad_rows = int(batches.sum()), int(wrong.sum())
    findings.checked_rows += BATCH * findings.batches


def await_owner(replay: Replay, pids: list[int], batches: Array, findings: Findings) -> int | None:
    """The seat of the learner that owns, once it has sampled three batches; None when that takes too long."""
    start = time.perf_counter()
    before = batches.copy()
    while (waited := time.perf_counter() - start) < PATIENCE:
        for seat in (0, 1):
            if batches[seat] >= before[seat] + 3 and replay.owner_pid == pids[seat]:
                findings.longest_wait = max(findings.longest_wait, waited)
                return seat
        time.sleep(0.0005)
    return None
