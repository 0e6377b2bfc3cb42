"""What masks cost: runs with and without them, in turn, on the same environment; and runs without, beside older code.

    python benchmarks/masks/run.py cost                                    # with and without, five rounds
    python benchmarks/masks/run.py cost --before ../older/.venv/bin/python # CartPole, and runs of what is there

The environment makes its mask in either case, so that the difference is what vectors of environments, replay and agents
do with it. Run nothing beside it.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import Any

from benchmarks.lib import report, runs
from benchmarks.masks.cells import CELLS, KINDS, WAYS, doors, flags


def rate(cell: str, env: list[str], seconds: float, name: str, python: str) -> float:
    """Environment steps per second of a run, its updates in step with them."""
    words = [*env, *flags(cell), "--minutes", str(seconds / 60.0)]
    runs.train("", name, words, seconds + 120.0, python)
    return runs.rates(runs.RUNS / name, 3.0).env_steps_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="TOPOLOGY:AGENT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--told", choices=WAYS, default="key", help="where the environment says its masks")
    parser.add_argument("--before", help="Python with an older apexrl, to compare runs without masks with")
    options = parser.parse_args()
    rows, raw = [], dict[str, Any]()
    for cell in options.cells:
        found: dict[str, list[float]] = {}
        for turn in range(options.rounds):
            kinds = list({"before": options.before, "now": None} if options.before else KINDS)
            for kind in kinds if turn % 2 == 0 else reversed(kinds):
                env = doors(kind, options.told) if kind in KINDS else ["--env", "CartPole-v1"]
                python = options.before if kind == "before" else sys.executable
                found.setdefault(kind, []).append(rate(cell, env, options.seconds, f"masks-cost-{kind}", python))
        first, second = found
        ratios = [later / before for before, later in zip(found[first], found[second], strict=True)]
        rows.append([f"`{cell}`", *(report.spread(values) for values in found.values()), f"{median(ratios):.3f}"])
        raw[cell] = found
        print(cell, found, flush=True)
    text = f"{report.machine()}; {report.versions('apexrl', 'torch')}.\n"
    text += (
        "Environment steps per second, median of rounds (least–greatest); the ratio is the median of the rounds'.\n\n"
    )
    text += report.table(["topology, agent", first, second, "ratio"], rows)
    told = "" if options.told == "key" else f"-{options.told}"
    report.save("masks-before" if options.before else f"masks-cost{told}", text, raw, None)
