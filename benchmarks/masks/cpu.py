"""What masks cost in CPU time, on a machine that may have other work; and runs without masks beside older code.

    python benchmarks/masks/run.py cpu                                    # with and without masks
    python benchmarks/masks/run.py cpu --defaults                         # agents as they are without flags
    python benchmarks/masks/run.py cpu --before ../older/.venv/bin/python # CartPole, which has none, now and before

Runs of all kinds are made together, in one process each (``--serial``) and by turns: one goes on for a few hundredths
of a second while the others are stopped. So each sees the same caches, clock and neighbours.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lib import report
from benchmarks.masks.cells import CELLS, KINDS, WAYS, doors, flags

STEPS = dict(zip(CELLS, (3500, 2600, 7000, 9000), strict=True))
FIRST = 1500
# Behind the first random steps; of unrolls some updates
STEPS_BY_DEFAULT = dict(zip(CELLS, (6000, 6000, 15000, 15000), strict=True))
FIRST_BY_DEFAULT = 4500
CHILD = Path(__file__).with_name("serial_run.py")


def together(commands: dict[str, list[str]], turn: float) -> dict[str, float]:
    """Microseconds a step of runs that go on by turns of so many seconds."""
    runs = {}
    for kind, command in commands.items():
        runs[kind] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        runs[kind].send_signal(signal.SIGSTOP)
    going = list(runs.values())
    try:
        while going:
            for run in list(going):
                run.send_signal(signal.SIGCONT)
                time.sleep(turn)
                if run.poll() is not None:
                    going.remove(run)
                else:
                    run.send_signal(signal.SIGSTOP)
    finally:
        for run in going:
            run.kill()
    found = {}
    for kind, run in runs.items():
        told, errors = run.communicate()
        if run.returncode:
            raise SystemExit(f"{kind}: {errors[-2000:]}")
        found[kind] = float(json.loads(told.splitlines()[-1]))
    return found


def commands(cell: str, before: str | None, way: str, defaults: bool) -> dict[str, list[str]]:
    """What each kind of run is called by."""
    first, steps = (FIRST_BY_DEFAULT, STEPS_BY_DEFAULT) if defaults else (FIRST, STEPS)
    start = [str(CHILD), str(first), str(steps[cell]), "--", *flags(cell, defaults), "--seed", "1"]
    if before:
        env = ["--env", "CartPole-v1"]
        return {kind: [python, *start, *env] for kind, python in (("before", before), ("now", sys.executable))}
    return {kind: [sys.executable, *start, *doors(kind, way)] for kind in KINDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=list(STEPS), choices=STEPS, metavar="TOPOLOGY:AGENT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--told", choices=WAYS, default="key", help="where the environment says its masks")
    parser.add_argument("--defaults", action="store_true", help="agents with their own networks, updates and actors")
    parser.add_argument("--turn", type=float, default=0.06, help="seconds")
    parser.add_argument("--before", help="Python with an older apexrl, to compare runs without masks with")
    options = parser.parse_args()
    rows, raw = [], dict[str, Any]()
    for cell in options.cells:
        words = commands(cell, options.before, options.told, options.defaults)
        rounds = [together(words, options.turn) for _ in range(options.rounds)]
        first, second = rounds[0]
        ratios = [one[first] / one[second] for one in rounds]
        times = (f"{median(one[kind] for one in rounds):.1f}" for kind in (first, second))
        rows.append([f"`{cell}`", *times, f"{median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"])
        raw[cell] = rounds
        print(cell, rounds, flush=True)
    text = f"{report.machine()}; {report.versions('apexrl', 'torch')}. {options.rounds} rounds.\n"
    text += (
        f"CPU time of an environment step, µs, medians; the ratio is {first} / {second}, median (least–greatest).\n\n"
    )
    text += report.table(["topology, agent", first, second, "ratio"], rows)
    told = ("" if options.told == "key" else f"-{options.told}") + "-defaults" * options.defaults
    report.save("masks-before-cpu" if options.before else f"masks-cpu{told}", text, raw, None)
