"""The rate of every topology on the same environment and network (``topologies_cases.py``), in turn."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import processes
from topologies_cases import CASES

import report
from apexrl.topologies import TOPOLOGIES

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
    script = str(Path(__file__).with_name("topologies_ours.py"))
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
