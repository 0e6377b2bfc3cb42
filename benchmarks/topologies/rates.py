"""The rate of every topology on the same environment and network (``cases.py``), in turn.

python benchmarks/topologies/run.py rates
python benchmarks/topologies/run.py rates --topologies apex seed --rounds 1 --warm-up 2 --window 5
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from apexrl.topologies import TOPOLOGIES
from benchmarks.lib import processes, report
from benchmarks.topologies.cases import CASES

CASE = "cartpole"
LIMIT = 300.0  # seconds of one run
Result = dict[str, Any]


def measure(options: argparse.Namespace) -> None:
    """Run all topologies in turn, ``--rounds`` times, every second round in reverse; write the table."""
    names = [name for name in TOPOLOGIES if not options.topologies or name in options.topologies]
    path = options.out / "topologies-rates.json"
    results: dict[str, list[Result]] = json.loads(path.read_text()) if path.exists() else {}
    if not options.table:
        results |= {name: [] for name in names}
        for turn in range(options.rounds):
            for name in names if turn % 2 == 0 else reversed(names):
                results[name].append(_run(name, turn + 1, options))
                rate = report.short(results[name][-1]["steps_per_second"])
                print(f"rates, round {turn + 1}: {name}: {rate} steps learned from per second", flush=True)
    if results:
        _write({name: results[name] for name in TOPOLOGIES if name in results}, options.out)


def _run(name: str, seed: int, options: argparse.Namespace) -> Result:
    script = str(Path(__file__).with_name("apexrl_run.py"))
    words = [name, "--case", CASE, "--seed", str(seed)]
    for flag, seconds in (("--warm-up", options.warm_up), ("--window", options.window)):
        words += [flag, str(seconds)] if seconds else []
    return processes.answer([sys.executable, script, *words], LIMIT)


def _write(results: dict[str, list[Result]], out: Path) -> None:
    case = CASES[CASE]
    rows = [
        [
            f"`{name}`",
            f"`{each[0]['agent']}`",
            report.spread([result["steps_per_second"] for result in each]),
            report.spread([result["made_per_second"] for result in each]),
        ]
        for name, each in results.items()
    ]
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'torch', 'gymnasium')}.\n"
        f"{case.env}, a network of {'–'.join(map(str, case.hidden))}, {case.workers} processes with {case.envs} "
        f"environments each. Agents of unrolls: {case.unroll} steps, {case.batch_steps} steps an update (with `a3c` "
        f"a worker's {case.envs} unrolls), each learned from once. Agents of transitions: {case.batch_steps} each, "
        "each made step read once on average. No evaluation meanwhile. Median (least–greatest) of rounds in turn.\n\n"
    )
    text += report.table(["topology", "agent", "steps learned from, per second", "steps made, per second"], rows)
    report.save("topologies-rates", text, results, None, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", nargs="+", choices=TOPOLOGIES, default=[], help="only these (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="in turn (default: 3)")
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--table", action="store_true", help="run nothing; make the table of what there is")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for the table")
    options = parser.parse_args()
    processes.end_in_order()
    measure(options)
