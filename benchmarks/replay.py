"""apexrl.replay beside cpprb: one process, then many writers with one learner.

    python benchmarks/replay.py                 # a minute; needs cpprb (pip install cpprb==11.0.0)
    python benchmarks/replay.py --rows atari    # image stacks
    python benchmarks/replay.py --help

Contestants take turns within every round, in alternating order; figures are medians with their range, and ratios
are given of the medians and within rounds. A contestant that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import report
from replay_contestants import ROWS, Apexrl, ApexrlStreams, Array, Contestant, Cpprb
from replay_rig import Rig, Shape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INSERT, SAMPLE, UPDATE = "insert", "sample", "update"
LOOP, CYCLE = "sample + update", "insert + sample + update"
WRITING, LEARNING = "inserts by all writers", "learner: sample + update"
# What apexrl promises beside cpprb: 1M small rows, batch 512, chunks of 50, 4 writers.
BARS = {LOOP: 4.0, INSERT: 2.0, LEARNING: 10.0, WRITING: 1.0}

Series = dict[str, dict[str, list[float]]]  # operation -> contestant -> one figure a round


class Player:
    """A contestant with data at hand."""

    def __init__(self, contestant: Contestant, batch: int, chunk: int, rng: np.random.Generator) -> None:
        self.contestant = contestant
        self._batch, self._chunk = batch, chunk
        self._chunks = contestant.chunks(chunk, 16, rng)
        self._priorities: list[Array] = [rng.random(chunk, np.float32) for _ in range(16)]
        self._magnitudes: list[Array] = [rng.random(batch, np.float32) for _ in range(16)]
        self._keys: Any = None
        self._turn = 0

    def fill(self, capacity: int) -> None:
        for i in range(5 * capacity // (4 * self._chunk)):  # every page was touched
            self.contestant.insert(self._chunks[i % 16], self._priorities[i % 16])
        self.settle()

    def settle(self) -> None:
        """Finish work that an operation may have put off."""
        self.contestant.ready()
        for _ in range(3):
            self._keys, _ = self.contestant.sample(self._batch)

    def insert(self) -> None:
        self._turn = turn = (self._turn + 1) & 15
        self.contestant.insert(self._chunks[turn], self._priorities[turn])

    def sample(self) -> None:
        self._keys, _ = self.contestant.sample(self._batch)

    def update(self) -> None:
        self._turn = turn = (self._turn + 1) & 15
        self.contestant.update(self._keys, self._magnitudes[turn])

    def loop(self) -> None:
        self.sample()
        self.update()

    def cycle(self) -> None:
        self.insert()
        self.sample()
        self.update()

    def insert_and_sample(self) -> None:
        self.insert()
        self.sample()


def operations(uniform: bool, chunk: int) -> dict[str, tuple[Callable[[Player], None], float]]:
    """What is timed: operation -> (call, figures per call)."""
    if uniform:
        return {
            INSERT: (Player.insert, chunk),
            SAMPLE: (Player.sample, 1),
            "insert + sample": (Player.insert_and_sample, 1),
        }
    return {
        INSERT: (Player.insert, chunk),
        SAMPLE: (Player.sample, 1),
        UPDATE: (Player.update, 1),
        LOOP: (Player.loop, 1),
        CYCLE: (Player.cycle, 1),
    }


def rate(call: Callable[[Player], None], player: Player, seconds: float) -> float:
    """Calls per second."""
    calls, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        for _ in range(8):
            call(player)
        calls += 8
    return calls / (now - start)


def memcpy() -> float:
    """Bytes per second of copying 64 MiB: how fast the machine is just now."""
    source = np.ones(64 << 20, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return source.nbytes / median(times)


def one_process(options: argparse.Namespace) -> tuple[Series, dict[str, float]]:
    """Every operation of every contestant, one after the other in one process."""
    rows = ROWS[options.rows]
    rng = np.random.default_rng(0)
    makers: dict[str, Callable[[], Contestant]] = {
        "apexrl": lambda: (
            ApexrlStreams(rows, options.capacity, options.chunk, options.uniform)
            if options.rows == "atari"
            else Apexrl(rows, options.capacity, 0, options.uniform)
        ),
        "cpprb": lambda: Cpprb(rows, options.capacity, processes=False, uniform=options.uniform),
    }
    players = [Player(makers[name](), options.batch, options.chunk, rng) for name in options.contestants]
    for player in players:
        player.fill(options.capacity)
    series: Series = defaultdict(lambda: defaultdict(list))
    for number in range(options.rounds):
        print(f"one process, round {number + 1} of {options.rounds} …", flush=True)
        series["memcpy, GB/s"]["NumPy"].append(memcpy() / 1e9)
        for name, (call, unit) in operations(options.uniform, options.chunk).items():
            for player in players if number % 2 == 0 else players[::-1]:
                player.settle()
                series[name][player.contestant.name].append(unit * rate(call, player, options.seconds))
    stored = {player.contestant.name: player.contestant.bytes_per_transition for player in players}
    for player in players:
        player.contestant.close()
    return series, stored


def many_processes(options: argparse.Namespace) -> tuple[Series, dict[str, str]]:
    """Unpaced writers and one learner."""
    shape = Shape(options.rows, options.capacity, options.batch, options.chunk, options.writers, options.uniform)
    rigs = [Rig(name, shape) for name in options.contestants]
    series: Series = defaultdict(lambda: defaultdict(list))
    checked: dict[str, list[int]] = {rig.name: [0, 0] for rig in rigs}
    try:
        for number in range(options.rounds):
            print(f"{options.writers} writers, round {number + 1} of {options.rounds} …", flush=True)
            for rig in rigs if number % 2 == 0 else rigs[::-1]:
                window = rig.window(options.window)
                series[LEARNING][rig.name].append(window.batches_per_second)
                series[WRITING][rig.name].append(window.inserts_per_second)
                checked[rig.name][0] += window.torn_rows
                checked[rig.name][1] += window.checked_rows
    finally:
        for rig in rigs:
            rig.close()
    return series, {name: f"{wrong}/{rows}" for name, (wrong, rows) in checked.items()}


def as_table(series: Series, units: dict[str, str], bars: dict[str, float]) -> str:
    """One line an operation; the first contestant is compared with the second."""
    names = list(next(iter(series.values())))
    header = ["operation", "unit", *names]
    compared = len(names) == 2
    if compared:
        header += [f"{names[0]} / {names[1].removeprefix('cpprb.')}", *(["bar"] if bars else [])]
    rows = []
    for operation, figures in series.items():
        line = [operation, units.get(operation, "batches/s"), *(report.spread(figures[name]) for name in names)]
        if compared:
            whole, text = report.ratio(figures[names[0]], figures[names[1]])
            line.append(text)
            if bars:
                bar = bars.get(operation)
                line.append("" if bar is None else f"≥ {bar:g}× {'met' if whole >= bar else '**missed**'}")
        rows.append(line)
    return report.table(header, rows)


def draw(parts: list[tuple[str, Series]]) -> Figure:
    """Rates on a logarithmic axis: median and range."""
    report.style()
    import matplotlib.pyplot as plt

    heights = [len(series) for _, series in parts]
    figure, axes = plt.subplots(
        len(parts),
        1,
        figsize=(7.5, 1.0 + 0.5 * sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, series) in zip(axes[:, 0], parts, strict=True):
        names = list(next(iter(series.values())))
        for column, (name, color) in enumerate(zip(names, (report.OURS, report.THEIRS), strict=False)):
            for place, figures in enumerate(series.values()):
                values, y = figures[name], place + (column - (len(names) - 1) / 2) * 0.28
                axis.plot(
                    [min(values), max(values)], [y, y], color=color, linewidth=4, alpha=0.3, solid_capstyle="round"
                )
                axis.plot(median(values), y, "o", color=color, markersize=5, label=name if place == 0 else None)
                axis.annotate(
                    report.short(median(values)),
                    (max(values), y),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    color=color,
                    fontsize=7.5,
                )
        axis.set(xscale="log", title=title, xlabel="per second (transitions for inserts, batches otherwise)")
        axis.set_yticks(range(len(series)), list(series))
        axis.set_ylim(len(series) - 0.5, -0.5)
        axis.margins(x=0.12)
        axis.grid(axis="y", visible=False)
        axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, fontsize=8, handletextpad=0.2)
    return figure


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rows", choices=list(ROWS), default="small", help="what a transition holds (default: small)")
    parser.add_argument("--capacity", type=int, default=0, help="transitions (default: 1M; 50k for atari)")
    parser.add_argument("--batch", type=int, default=512, help="transitions sampled at once (default: 512)")
    parser.add_argument("--chunk", type=int, default=50, help="transitions inserted at once (default: 50)")
    parser.add_argument("--uniform", action="store_true", help="uniform sampling instead of prioritized")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every contestant (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one operation in one round (default: 0.5)")
    parser.add_argument("--writers", type=int, default=4, help="writer processes (default: 4)")
    parser.add_argument("--window", type=float, default=2.5, help="seconds of many processes a round (default: 2.5)")
    parser.add_argument("--parts", nargs="+", choices=["one", "many"], default=["one", "many"], help="default: both")
    parser.add_argument("--contestants", nargs="+", choices=["apexrl", "cpprb"], default=["apexrl", "cpprb"])
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    options = parser.parse_args()
    options.capacity = options.capacity or ROWS[options.rows].capacity
    if options.rows == "atari" and "many" in options.parts:
        parser.error("--rows atari measures one process: add --parts one")
    missing = [name for name in options.contestants if report.version(name) is None]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}")
    options.contestants = [name for name in options.contestants if name not in missing]
    if not options.contestants:
        parser.error("no contestant is installed")
    return options


def main() -> None:
    options = parse()
    rows = ROWS[options.rows]
    standard = options.rows == "small" and not options.uniform and options.capacity == 1_000_000
    standard = standard and (options.batch, options.chunk, options.writers) == (512, 50, 4)
    bars = BARS if standard else {}
    units = {INSERT: "transitions/s", WRITING: "transitions/s"}
    kind = "uniform" if options.uniform else "prioritized"
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'cpprb', 'numpy')}.",
        f"{options.capacity:,} {options.rows} rows of {rows.nbytes:,} bytes, {kind}, batch {options.batch}, chunks of "
        f"{options.chunk}. Median (least–greatest) of {options.rounds} rounds, contestants in turn.\n",
    ]
    data: dict[str, Any] = {"options": {name: str(value) for name, value in vars(options).items()}}
    parts: list[tuple[str, Series]] = []
    if "one" in options.parts:
        series, stored = one_process(options)
        copies = series.pop("memcpy, GB/s")["NumPy"]
        lines += [as_table(series, units, bars)]
        lines += [f"Meanwhile copying memory ran at {report.spread(copies, ' GB/s')}. Bytes per stored transition: "]
        lines[-1] += ", ".join(f"{name} {count:,.0f}" for name, count in stored.items()) + ".\n"
        parts.append(("One process", series))
        data |= {"one_process": series, "memcpy_gb_per_second": copies, "bytes_per_transition": stored}
    if "many" in options.parts:
        series, checked = many_processes(options)
        lines += [f"{options.writers} unpaced writer processes and one learner, windows of {options.window} s:\n"]
        lines += [as_table(series, units, bars)]
        lines += ["Torn rows among those checked: " + ", ".join(f"{n} {text}" for n, text in checked.items()) + ".\n"]
        parts.append((f"{options.writers} writer processes, one learner", series))
        data |= {"many_processes": series, "torn_rows": checked}
    name = "replay" if standard else f"replay-{options.rows}{'-uniform' if options.uniform else ''}"
    report.save(name, "\n".join(lines), data, draw(parts), options.out)


if __name__ == "__main__":
    main()
