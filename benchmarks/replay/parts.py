"""The three parts of the replay benchmark: measure in turns, tabulate, judge, draw."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.lib import report
from benchmarks.replay import bars
from benchmarks.replay import charts as pictures
from benchmarks.replay.bars import FLOOR, OURS, RIVAL_OF_MANY, Verdict
from benchmarks.replay.contestant_turns import Crew, memcpy
from benchmarks.replay.contestants import MANY, Shape
from benchmarks.replay.rows import ROWS
from benchmarks.replay.timed_contestant import CYCLE_OF_ALL, INSERT, LOOP, SAMPLE, UPDATE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPERATIONS = (INSERT, SAMPLE, UPDATE, LOOP, CYCLE_OF_ALL)


@dataclass
class Run:
    """What one part measured."""

    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    """GB/s of copying memory, a figure a round."""
    figures: dict[Any, Any] = field(default_factory=dict)

    def round(self, label: str, number: int, rounds: int) -> None:
        print(f"{label}, round {number + 1} of {rounds} …", flush=True)
        self.copies.append(memcpy() / 1e9)


def one_process(options: argparse.Namespace) -> None:
    """Every operation of every contestant."""
    shape = Shape(options.rows, options.capacity, options.batch, options.chunk)
    rates: dict[str, dict[str, list[float]]] = {operation: defaultdict(list) for operation in OPERATIONS}
    run = Run(figures=rates)
    with Crew(options, options.contestants, shape) as crew:
        run.infos, run.notes = crew.infos, crew.notes
        for number in range(options.rounds):
            run.round("one process", number, options.rounds)
            for operation, figures in rates.items():
                able = {name for name, info in crew.infos.items() if operation in info["operations"]}
                for name, rate in crew.turns(number, options.seconds, "rate", able, operation=operation):
                    figures[name].append(rate)
    header = [f"{name}, {'transitions/s' if name == INSERT else 'batches/s'}" for name in rates]
    rows = [
        [info["title"], *cells(rates.values(), name), f"{info['bytes_per_transition']:,.0f}"]
        for name, info in run.infos.items()
    ]
    rival = bars.best(rates[LOOP], bars.rivals(run.infos))
    if rival and OURS in run.infos:
        ratios = [bars.compared(figures[OURS], figures[rival])[1] for figures in rates.values()]
        rows.append([f"apexrl / {run.infos[rival]['title']}", *ratios, ""])
    found = bars.one_process(options.rows, rates, run.infos) if judged(options) else []
    what = f"{shape.capacity:,} {shape.rows} rows"
    text = [
        preface(options, f"{what} of {shape.row.nbytes:,} bytes", run),
        report.table(["", *header, "bytes per transition"], rows),
    ]
    figure = pictures.one_process(rates, run.infos, f"One process, {what}")
    save(options, f"replay-{options.rows}", text, run, found, figure)


def many_processes(options: argparse.Namespace) -> None:
    """Writers in processes of their own, unpaced and paced, and one learner."""
    plans = [(count, 0.0) for count in sorted(set(options.writers))]
    plans += [(count, options.pace) for count in sorted(set(options.paced_writers)) if options.pace]
    shape = Shape(options.rows, options.capacity, options.batch, options.chunk, max(1, *(count for count, _ in plans)))
    windows: dict[str, Any] = {}
    for count, pace in plans:
        label = f"{count} writer{'s'[: count != 1]}" + (f", {report.short(pace)}/s" if pace else "")
        windows[label] = {"writers": count, "pace": pace, "learner": defaultdict(list), "inserts": defaultdict(list)}
    run = Run(figures=windows)
    torn: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    with Crew(options, [name for name in options.contestants if name in MANY], shape) as crew:
        run.infos, run.notes = crew.infos, crew.notes
        for number in range(options.rounds):
            run.round("writers", number, options.rounds)
            for window in windows.values():
                request = {"writers": window["writers"], "pace": window["pace"]}
                for name, answer in crew.turns(number, options.window, "window", **request):
                    window["learner"][name].append(answer["batches_per_second"])
                    window["inserts"][name].append(answer["inserts_per_second"])
                    torn[name][0] += int(answer["torn_rows"])
                    torn[name][1] += int(answer["checked_rows"])
    header = ["", *(info["title"] for info in run.infos.values())]
    compare = OURS in run.infos and RIVAL_OF_MANY in run.infos
    if compare:
        header.append(f"apexrl / {run.infos[RIVAL_OF_MANY]['title']}")
    rows = []
    for label, window in windows.items():
        for what, unit in (("learner", "batches/s"), ("inserts", "transitions/s"))[: 1 + (window["writers"] > 0)]:
            row = [f"{label}: {what}, {unit}", *(cells([window[what]], name)[0] for name in run.infos)]
            rows.append([*row, bars.compared(window[what][OURS], window[what][RIVAL_OF_MANY])[1]] if compare else row)
    found = bars.many_processes(options.rows, windows, run.infos) if judged(options) else []
    what = f"{shape.capacity:,} {shape.rows} rows"
    wrong = ", ".join(f"{run.infos[name]['title']} {bad}/{count}" for name, (bad, count) in torn.items())
    text = [
        preface(options, f"Writer processes beside one learner that samples and updates; {what}", run),
        report.table(header, rows),
        f"Torn rows among those checked while writers wrote: {wrong}. Windows of {options.window:g} s.\n",
    ]
    figure = pictures.many_processes(windows, run.infos, f"Writer processes and one learner, {what}")
    save(options, f"replay-{options.rows}-writers", text, run, found, figure)


def sizes(options: argparse.Namespace) -> None:
    """Time of a sample, size by size."""
    rates: dict[int, defaultdict[str, list[float]]] = {}
    run = Run(figures=rates)
    for capacity in options.sizes:
        shape = Shape(options.rows, capacity, options.batch, options.chunk)
        figures = rates[capacity] = defaultdict(list)
        with Crew(options, options.contestants, shape) as crew:
            for number in range(options.rounds):
                run.round(f"{capacity:,} rows", number, options.rounds)
                for name, rate in crew.turns(number, options.seconds, "rate", operation=SAMPLE):
                    figures[name].append(rate)
        run.infos = crew.infos | run.infos
        run.notes += [f"{capacity:,} rows: {note}" for note in crew.notes]
    compare = OURS in run.infos and FLOOR in run.infos
    header = ["rows", *(f"{info['title']}, µs" for info in run.infos.values())]
    if compare:
        header.append(f"apexrl / {run.infos[FLOOR]['title']}")
    rows = []
    for capacity, figures in rates.items():
        times = {name: [1e6 / rate for rate in figures[name]] for name in run.infos}
        row = [f"{capacity:,}", *(cells([times], name)[0] for name in run.infos)]
        rows.append([*row, bars.compared(times[OURS], times[FLOOR])[1]] if compare else row)
    found = bars.sizes(rates) if (options.rows, options.batch) == ("small", 512) else []
    text = [preface(options, f"Time of a sample of {options.rows} rows", run), report.table(header, rows)]
    save(
        options,
        "replay-sizes",
        text,
        run,
        found,
        pictures.sizes(rates, run.infos, f"Time of a sample, {options.rows} rows"),
    )


def cells(columns: Iterable[Mapping[str, list[float]]], name: str) -> list[str]:
    """Median and range of each column's figures of ``name``."""
    return [report.spread(figures[name]) if figures.get(name) else "–" for figures in columns]


def preface(options: argparse.Namespace, what: str, run: Run) -> str:
    """What was measured, on what, with whom."""
    versions = dict.fromkeys(report.stack(info["versions"]) for info in run.infos.values())
    lines = [
        f"{report.machine()}, {report.versions('numpy')}; {', '.join(filter(None, versions))}. "
        f"Copying memory meanwhile: {report.spread(run.copies, ' GB/s')}; {report.huge_pages()}.",
        f"{what}, batch {options.batch}, chunks of {options.chunk}. "
        f"Median (least–greatest) of {options.rounds} rounds, contestants in turn.",
        *(f"{note[0].upper()}{note[1:].rstrip('.')}." for note in dict.fromkeys(run.notes)),
    ]
    return "\n".join(lines) + "\n"


def judged(options: argparse.Namespace) -> bool:
    """Whether the bars are stated for this shape."""
    return (options.batch, options.chunk, options.capacity) == (512, 50, ROWS[options.rows].capacity)


def save(
    options: argparse.Namespace, name: str, text: list[str], run: Run, found: list[Verdict], figure: Figure
) -> None:
    """Table, bars, raw figures and picture."""
    data = {
        "options": {key: str(value) for key, value in vars(options).items()},
        "contestants": run.infos,
        "notes": run.notes,
        "memcpy_gb_per_second": run.copies,
        "figures": run.figures,
        "bars": [verdict._asdict() for verdict in found],
    }
    report.save(name, "\n".join([*text, *([bars.as_table(found)] if found else [])]), data, figure, options.out)
