"""Does the auto-tuner find the best numbers?

    python benchmarks/tuner/run.py             # simulated throughput, 200 seeded runs of every case: an hour or so
    python benchmarks/tuner/run.py --seeds 20 --shapes cliff
    python benchmarks/tuner/run.py --live      # slow-cartpole: from the worst of 9 numbers of actors

Simulated: nine surfaces (``tests/launch/simulated_throughput.py``), 5, 10 and 15 % noise on every window, with and
without a drift of the whole. A run is good when the setting that it ends at truly gives 95 % of the optimum or more.
Seeds are those from ``--first-seed`` on, which neither the tests nor those who chose the tuner's constants have used.

Live: ``--counts`` actors are measured, each by a run of its own, in turns; then a run with --autotune begins at the
worst of them. Its end is measured among the others, in turns again, by runs whose number of actors stays.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "launch"))

from simulated_throughput import DRIFTS, SHAPES, share, simulate

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib import report, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISES = (0.05, 0.10, 0.15)
GOOD = 0.95  # of the optimum
PICTURE = "\n![Where simulated tuning ends](images/tuner.png)\n"
LIVE_PICTURE = "\n![Live tuning from the worst number of actors](images/tuner-live.png)\n"
BAR, LIVE_BAR = 0.95, 0.85  # of the runs that are good; of the best count's throughput


class Case(NamedTuple):
    """All runs of it share everything but their seed."""

    shape: str
    noise: float
    drift: str


class Outcome(NamedTuple):
    """One simulated run."""

    share: float
    """Of the optimum, at its end."""
    spent: float
    """Mean share of the optimum over all of its windows: what looking around left."""
    settled: int | None
    """Window in which it settled first."""
    changes: int
    """Windows whose setting was another than the one before."""


def outcome(case: Case, seed: int) -> Outcome:
    """Run one."""
    shape = SHAPES[case.shape]
    tuner = simulate(shape, case.noise, case.drift, seed)
    log = tuner.decisions
    shares = [share(shape, decision.setting) for decision in log]
    settled = next((decision.window for decision in log if decision.verdict == "settled"), None)
    changes = sum(a.setting != b.setting for a, b in itertools.pairwise(log))
    return Outcome(share(shape, tuner.best), float(np.mean(shares)), settled, changes)


def _outcome(job: tuple[Case, int]) -> Outcome:
    return outcome(*job)


def simulated(options: argparse.Namespace) -> None:
    """The table of all cases."""
    cases = [
        Case(shape, noise, drift)
        for shape in SHAPES
        for noise in options.noises
        for drift in options.drifts
        if not options.shapes or any(shape.startswith(start) for start in options.shapes)
    ]
    results: dict[Case, list[Outcome]] = {}
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started now
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for case in cases:
            began = time.monotonic()
            results[case] = pool.map(_outcome, [(case, seed) for seed in seeds], chunksize=4)
            good = np.mean([result.share >= GOOD for result in results[case]])
            print(f"{case}: {good:.1%} good, {time.monotonic() - began:.0f} s", flush=True)
    rows = []
    for case, each in results.items():
        good = float(np.mean([result.share >= GOOD for result in each]))
        settled = [SHAPES[case.shape].windows if result.settled is None else result.settled for result in each]
        rows.append(
            [
                case.shape,
                f"{case.noise:.0%}",
                case.drift,
                f"**{good:.1%}**" + ("" if good >= BAR else " (missed)"),
                f"{min(result.share for result in each):.0%}",
                f"{np.mean([result.share for result in each]):.1%}",
                f"{np.mean([result.spent for result in each]):.0%}",
                f"{median(settled):.0f} of {SHAPES[case.shape].windows}",
                f"{np.mean([result.changes for result in each]):.0f}",
            ]
        )
    header = [
        "surface",
        "noise",
        "drift",
        f"runs ≥ {GOOD:.0%}",
        "least",
        "mean",
        "meanwhile",
        "settled",
        "changes",
    ]
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'numpy')}.\n\n{options.seeds} seeded runs of every case, "
        f"seeds {seeds[0]} … {seeds[-1]}; "
        "shares are of the optimum's true throughput, at the end (least, mean) and over all windows (meanwhile).\n\n"
    )
    met = sum(np.mean([result.share >= GOOD for result in each]) >= BAR for each in results.values())
    all_good = np.mean([result.share >= GOOD for each in results.values() for result in each])
    text += (
        f"Bar: {BAR:.0%} of the runs of a case end at {GOOD:.0%} of the optimum or better: {met} of {len(results)} "
        f"cases; of all runs together {all_good:.1%}.\n\n"
    )
    data = [{**case._asdict(), "outcomes": [result._asdict() for result in each]} for case, each in results.items()]
    report.save("tuner", text + report.table(header, rows) + PICTURE, data, _picture(results), options.out)


def _picture(results: dict[Case, list[Outcome]]) -> Figure:
    """Share of good runs of every case."""
    report.style()
    import matplotlib.pyplot as plt

    shapes = list(dict.fromkeys(case.shape for case in results))
    figure, axis = plt.subplots(figsize=(8.0, 0.5 + 0.42 * len(shapes)), layout="constrained")
    for case, each in results.items():
        place = shapes.index(case.shape) + 0.2 * (list(NOISES).index(case.noise) - 1 if case.noise in NOISES else 0)
        good = 100 * np.mean([result.share >= GOOD for result in each])
        axis.plot(good, place, "o", color=report.OURS, alpha=0.35 + 4 * case.noise, markeredgewidth=0)
    axis.axvline(100 * BAR, linestyle="--", color=report.FAINT)
    axis.set_yticks(range(len(shapes)), shapes)
    axis.invert_yaxis()
    axis.set(xlabel=f"% of runs that end at {GOOD:.0%} of the optimum or better (darker: more noise)")
    return figure


def live(options: argparse.Namespace) -> None:
    """From the worst of the counts; where it ends, beside all of them."""
    counts = sorted(set(options.counts))
    first = _measured(counts, options, "before")
    worst = min(counts, key=lambda count: median(first[count]))
    name = "tuner-live"
    flags = [*_flags(worst, options), "--autotune", "--autotune-seconds", str(options.window_seconds)]
    flags += ["--actor-slots", str(max(counts)), "--minutes", str(options.minutes)]
    summary = runs.train(options.preset, name, flags, 60.0 * options.minutes + 300.0)
    found = int(summary["autotune"]["best"]["actor"])
    second = _measured(sorted({*counts, found}), options, "after")
    both = {count: first.get(count, []) + second[count] for count in second}
    best = max(counts, key=lambda count: median(both[count]))
    reached = median(both[found]) / median(both[best])
    rows = [
        [
            f"{count}" + (" (begins here)" if count == worst else "") + (" (ends here)" if count == found else ""),
            report.spread(rates),
            f"{median(rates) / median(both[best]):.0%}",
        ]
        for count, rates in both.items()
    ]
    verdict = "met" if reached >= LIVE_BAR else "missed"
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'torch', 'gymnasium')}.\n\n{options.preset}, "
        f"{options.window_seconds:g} s windows, {options.minutes:g} minutes of tuning "
        f"({summary['autotune']['windows']} windows) from the worst, {worst}. It ends at {found}: "
        f"**{reached:.0%}** of the best of the {len(counts)} ({best}); bar {LIVE_BAR:.0%}: {verdict}. Throughput is "
        f"√(env steps/s · updates/s), of runs of {options.seconds:g} s in turns: {options.rounds} of each before, and "
        f"{options.rounds} after, where {found} was one of them.\n\n"
    )
    text += report.table(["actors", "throughput", "of the best"], rows)
    data = {"rates": both, "worst": worst, "found": found, "reached": reached, "autotune": summary["autotune"]}
    report.save("tuner-live", text + LIVE_PICTURE, data, None, options.out)
    shutil.copyfile(runs.RUNS / name / "autotune.png", options.out / "tuner-live.png")


def _flags(actors: int, options: argparse.Namespace) -> list[str]:
    few = ["--eval-episodes", "2", "--eval-envs", "2"]
    one = ["--envs-per-actor", "1"] if options.preset == "slow-cartpole" else []
    return ["--actors", str(actors), "--stop-at-return", "None", *one, *few, *options.flags]


def _measured(counts: Sequence[int], options: argparse.Namespace, when: str) -> dict[int, list[float]]:
    """Throughput of every count in runs of its own, ``--rounds`` of each in turns; every other round backwards."""
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(options.rounds):
        for count in counts if turn % 2 == 0 else reversed(counts):
            name = f"tuner-{when}-{count}-{turn}"
            flags = [*_flags(count, options), "--actor-slots", str(max(options.counts)), "--seed", str(turn + 1)]
            runs.train(
                options.preset, name, [*flags, "--minutes", str(options.seconds / 60.0)], options.seconds + 300.0
            )
            steady = runs.rates(runs.RUNS / name, options.skip_seconds)
            rates[count].append((steady.env_steps_per_second * steady.updates_per_second) ** 0.5)
            print(f"{when}, {count} actors: {json.dumps(steady._asdict())}", flush=True)
    return rates


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="simulated runs of every case (default: 200)")
    parser.add_argument("--first-seed", type=int, default=10_000, help="of these (default: 10000)")
    parser.add_argument("--shapes", nargs="*", default=[], help="surfaces whose names begin so (default: all)")
    parser.add_argument("--noises", type=float, nargs="+", default=list(NOISES))
    parser.add_argument("--drifts", nargs="+", choices=DRIFTS, default=list(DRIFTS))
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that simulate")
    parser.add_argument("--live", action="store_true", help="real runs instead")
    parser.add_argument("--preset", default="slow-cartpole")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 6, 8, 12, 16, 24, 32], help="of actors")
    parser.add_argument("--rounds", type=int, default=2, help="before and again after (default: 2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one measuring run (default: 20)")
    parser.add_argument("--skip-seconds", type=float, default=5.0, help="of it that do not count (default: 5)")
    parser.add_argument("--window-seconds", type=float, default=6.0, help="of the tuner (default: 6)")
    parser.add_argument("--minutes", type=float, default=8.0, help="of tuning (default: 8)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl train")
    options = parser.parse_args()
    if options.live:
        live(options)
    else:
        simulated(options)


if __name__ == "__main__":
    main()
