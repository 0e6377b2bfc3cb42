"""Random calls on random replays for an hour, held against a plain Python twin; memory must not grow.

    python benchmarks/replay/run.py soak --minutes 60 [--seed 0] [--round 1234]

A round makes a replay of random options and calls it at random: appends, draws, updates with good, stale and bad
values, refused calls, writers that come, go and are killed, saves and loads, new limits. ``--seed`` and ``--round``
repeat one.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from apexrl.errors import PriorityError, SpecError, WaitTimeout
from apexrl.replay import Batch, Replay, Writer
from benchmarks.lib.report import machine
from benchmarks.replay.soak_twin import (
    ORIGIN,
    ROWS,
    STEPS,
    Array,
    Twin,
    first_own,
    item_tags,
    magnitude,
    rows,
    steps,
    write,
)
from benchmarks.replay.tagged_rows import end, spawn

MOST_GROWTH = 24.0  # MB of memory, after the first quarter of the time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round", type=int, help="do this round alone")
    options = parser.parse_args()
    if options.round is not None:
        soak = Round(options.seed, options.round)
        print(soak.options, flush=True)
        soak.run(print)
        return 0
    print(machine(), flush=True)
    start = time.monotonic()
    done: Counter[str] = Counter()
    memory: list[tuple[float, float]] = []  # (seconds, MB)
    number, minute = 0, 0
    while (elapsed := time.monotonic() - start) < 60.0 * options.minutes:
        try:
            done += Round(options.seed, number).run()
        except BaseException:
            traceback.print_exc()
            print(f"failed: repeat it with --seed {options.seed} --round {number}", flush=True)
            return 1
        number += 1
        gc.collect()
        memory.append((elapsed, resident()))
        if elapsed >= 60.0 * (minute + 1):
            minute = int(elapsed / 60.0)
            calls = ", ".join(f"{count:,} {name}" for name, count in sorted(done.items()))
            print(f"{minute:3d} min: {number:,} rounds, {memory[-1][1]:.0f} MB; {calls}", flush=True)
    growth = grown(memory)
    print(f"{number:,} rounds, {sum(done.values()):,} calls, no deviation; memory grew by {growth:.1f} MB")
    return 0 if growth < MOST_GROWTH else 1


def resident() -> float:
    """Memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096 / 1e6


def grown(memory: list[tuple[float, float]]) -> float:
    """MB, from the second quarter of the time to the last: medians, for rounds differ in size."""
    last = memory[-1][0]
    early = [mb for seconds, mb in memory if 0.25 * last <= seconds < 0.5 * last]
    late = [mb for seconds, mb in memory if seconds >= 0.75 * last]
    return median(late) - median(early) if early and late else 0.0


class Round:
    """One replay and what happens to it."""

    def __init__(self, seed: int, number: int) -> None:
        self.rng = np.random.default_rng([seed, number])
        self.options = random_options(self.rng)
        self.fields = ROWS if self.options["kind"] == "rows" else STEPS
        self.replay = Replay(fields=self.fields, **self.options)
        self.twin = Twin(self.options)
        self.writers: list[tuple[Writer, Array]] = []  # and the next tag of each of its streams
        self.origins = 1
        self.old: list[Batch] = []  # drawn before
        self.done: Counter[str] = Counter()
        self.twin.exact = self.options["kind"] == "rows" and self.options["remover"] == "fifo"
        self.twin.exact &= self.options["trim_every"] == 1

    def run(self, say: Callable[[str], None] = lambda _: None) -> Counter[str]:
        calls: dict[str, tuple[Callable[[], None], float]] = {
            "appends": (self.append, 10.0),
            "draws": (self.draw, 10.0),
            "updates": (self.update, 6.0),
            "stale updates": (self.update_stale, 1.0),
            "refusals": (self.refuse, 2.0),
            "writers opened": (self.open, 1.0),
            "writers closed": (self.shut, 0.7),
            "writers killed": (self.kill, 0.3),
            "saves and loads": (self.save_and_load, 0.2),
            "limits": (self.limit, 0.3),
        }
        names, weights = list(calls), np.array([weight for _, weight in calls.values()])
        try:
            for _ in range(int(self.rng.integers(20, 150))):
                name = str(self.rng.choice(names, p=weights / weights.sum()))
                say(name)
                calls[name][0]()
                self.done[name] += 1
                self.twin.check_counts(self.replay)
        finally:
            self.replay.close()
        return self.done

    # --- calls

    def open(self) -> None:
        if len(self.writers) >= self.options["writers"]:
            return
        streams = 1 if self.options["kind"] == "rows" else self.options["streams"] // self.options["writers"]
        if self.options["kind"] == "rows":
            writer = self.replay.writer()
        else:
            writer = self.replay.writer(streams=streams, priority_fn=self.priorities)
        self.writers.append((writer, (self.origins + np.arange(streams)) * ORIGIN))
        self.origins += streams
        if len(self.writers) > 1:
            self.twin.exact = False

    def priorities(self, items: Mapping[str, Array]) -> Array:
        return magnitude(first_own(items["tag"], self.options))

    def shut(self) -> None:
        if self.writers:
            self.writers.pop(int(self.rng.integers(len(self.writers))))[0].close()

    def append(self) -> None:
        if not self.writers:
            self.open()
        writer, tags = self.writers[int(self.rng.integers(len(self.writers)))]
        amount = int(self.rng.integers(0, 2 * min(self.options["capacity"], 500) + 2))
        if self.options["kind"] == "rows":
            before = self.replay.stats()["inserted"]
            new = tags[0] + np.arange(amount)
            try:
                write(writer, self.options, new, True, 0.0)
            except WaitTimeout:
                self.done["waits"] += 1
            stored = self.replay.stats()["inserted"] - before
            self.twin.insert(new[:stored])
            tags += stored
            return
        for _ in range(amount // len(tags) + 1):
            try:
                write(writer, self.options, tags, True, 0.0)
            except WaitTimeout:
                self.done["waits"] += 1
                return
            tags += 1

    def draw(self) -> None:
        size = int(self.rng.integers(1, 200))
        fifo = self.options["sampler"] == "fifo"
        if fifo:
            size = min(size, self.options["capacity"])
        alive = None if fifo else self.twin.alive(self.replay)
        try:
            batch = self.replay.sample(size, beta=float(self.rng.random()), timeout=0.0)
        except WaitTimeout:
            self.done["waits"] += 1
            return
        self.twin.check_batch(self.replay, batch, alive)
        self.old = [*self.old[-3:], batch]

    def update(self) -> None:
        """Of a batch drawn just now: nothing can have gone since."""
        if self.options["sampler"] == "fifo":
            return
        self.draw()
        if not self.old:
            return
        batch = self.old[-1]
        tags = np.unique(item_tags(batch, self.options))  # an item drawn twice gets one value
        fresh = 10.0 ** self.rng.uniform(-6, 6, len(tags))
        magnitudes = fresh[np.searchsorted(tags, item_tags(batch, self.options))]
        applied, stale = self.replay.update_priorities(batch.keys, magnitudes)
        self.twin.counts.update(applied=applied, stale=stale)
        if stale == 0:
            self.twin.update(batch, applied, magnitudes)
        else:  # an older batch, as nothing could be drawn just now
            self.forget(batch, magnitudes)

    def forget(self, batch: Batch, magnitudes: Array) -> None:
        """Some of the batch was applied. Which: those that can still be drawn; so the same value does no harm."""
        alpha = 0.0 if self.options["sampler"] == "uniform" else self.options["alpha"]
        powered = (magnitudes + self.options["eps"]) ** alpha
        self.twin.changed.update(zip(item_tags(batch, self.options).tolist(), powered.tolist(), strict=True))

    def update_stale(self) -> None:
        """Keys of batches drawn long ago, some of them gone, and keys that never were."""
        if not self.old or self.options["sampler"] == "fifo":
            return
        batch = self.old[0]
        magnitude_ = float(10.0 ** self.rng.uniform(-6, 6))
        applied, stale = self.replay.update_priorities(batch.keys, np.full(len(batch), magnitude_))
        assert applied + stale == len(batch)
        self.twin.counts.update(applied=applied, stale=stale)
        self.forget(batch, np.full(len(batch), magnitude_))
        keys = np.full(5, 2**64 - 1, np.uint64)
        assert self.replay.update_priorities(keys, np.ones(5)) == (0, 5)
        self.twin.counts.update(stale=5)

    def refuse(self) -> None:
        """Calls that must raise and change nothing."""
        before = {name: self.replay.stats()[name] for name in ("size", "inserted", "updates_applied", "max_priority")}
        bad = float(self.rng.choice([np.nan, np.inf, -1.0]))
        if self.writers:
            writer, tags = self.writers[0]
            new = tags[0] + np.arange(5) if self.options["kind"] == "rows" else tags
            values = rows(new) if self.options["kind"] == "rows" else steps(new)
            method = writer.extend if self.options["kind"] == "rows" else writer.append
            expect(SpecError, lambda: method({**values, "tag": values["tag"].astype(np.float32)}))
            expect(SpecError, lambda: method({name: v for name, v in values.items() if name != "tag"}))
            expect(SpecError, lambda: method({**values, "more": values["tag"]}))
            if self.options["kind"] == "rows":
                expect(PriorityError, lambda: writer.extend(values, priorities=np.array([1, 1, 1, bad, 1.0])))
        if self.old and self.options["sampler"] != "fifo":
            keys = self.old[-1].keys
            expect(PriorityError, lambda: self.replay.update_priorities(keys, np.full(len(keys), bad)))
            expect(SpecError, lambda: self.replay.update_priorities(keys, np.ones(len(keys) + 1)))
        assert before == {name: self.replay.stats()[name] for name in before}

    def kill(self) -> None:
        """A forked writer, killed while it appends."""
        if len(self.writers) >= self.options["writers"]:
            return
        streams = 1 if self.options["kind"] == "rows" else self.options["streams"] // self.options["writers"]
        tags = (self.origins + np.arange(streams)) * ORIGIN
        self.origins += streams
        self.twin.exact = False

        def work() -> None:
            self.writers = []
            self.open()
            writer, _ = self.writers[0]
            while True:
                new = tags[0] + np.arange(37) if self.options["kind"] == "rows" else tags
                write(writer, self.options, new, True, 60.0)
                tags[:] += 37 if self.options["kind"] == "rows" else 1

        pid = spawn(work)
        time.sleep(float(self.rng.uniform(0.0, 0.03)))
        end(pid)
        deadline = time.monotonic() + 4.0
        while self.replay.stats()["lanes_active"] > len(self.writers):
            assert time.monotonic() < deadline, "the lane of a killed writer does not come back"
            self.replay.core.own()
            time.sleep(0.01)

    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "replay"
            self.replay.save(path)
            for writer, _ in self.writers:
                writer.close()
            size, kept = len(self.replay), {n: self.replay.stats()[n] for n in ("inserted", "sampled", "evicted")}
            loaded = Replay.load(path)
        self.replay.close()
        self.replay, self.writers = loaded, []
        self.twin.counts.update(applied=-self.twin.counts["applied"], stale=-self.twin.counts["stale"])
        assert len(loaded) == size
        assert kept == {n: loaded.stats()[n] for n in kept}

    def limit(self) -> None:
        if self.options["sampler"] == "fifo":
            return
        rate = float(self.rng.choice([0.0, 0.0, 0.5, 4.0]))
        self.replay.set_limiter(
            min_size=int(self.rng.integers(0, self.options["capacity"] + 1)), samples_per_insert=rate
        )


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    kind = str(rng.choice(["rows", "rows", "transition", "sequence", "unroll"]))
    writers = int(rng.integers(1, 4))
    length = int(rng.integers(1, 13))
    sampler = str(rng.choice(["prioritized", "prioritized", "uniform", "fifo"]))
    alpha = float(rng.choice([0.0, 0.4, 0.6, 1.0]))
    options: dict[str, Any] = {
        "kind": kind,
        "capacity": int(2 ** rng.uniform(0 if kind == "rows" else 6, 13)),
        "sampler": sampler,
        "draws": str(rng.choice(["stratified", "independent"])),
        "alpha": alpha,
        "eps": float(rng.choice([0.0, 1e-6, 0.1])),
        "gamma": float(rng.choice([0.9, 0.99, 1.0])),
        "seed": int(rng.integers(2**31)),
        "writers": writers,
        "stack": 1,
        "n_step": 1,
        "length": 0,
        "burn_in": 0,
        "remover": "fifo",
        "trim_every": 1,
    }
    if kind != "rows":
        options |= {"stack": int(rng.integers(1, 5)), "streams": writers * int(rng.integers(1, 4))}
    if kind == "transition":
        options["n_step"] = int(rng.integers(1, 6))
    if kind in ("sequence", "unroll"):
        options |= {"length": length, "burn_in": int(rng.integers(0, 5))}
    if kind == "sequence":
        options["stride"] = int(rng.integers(1, length + 1))
    if sampler != "fifo":
        options["trim_every"] = int(rng.choice([1, 1, 7]))
    if sampler == "prioritized" and alpha > 0.0:
        options["remover"] = str(rng.choice(["fifo", "fifo", "proportional"]))
    return options


def expect(error: type[Exception], call: Callable[[], Any]) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__} was raised")
