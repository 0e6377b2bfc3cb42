"""Several learners that make every update together: over Ray nodes, on one machine without Ray, and RLlib's, in turn.

    python benchmarks/ray/run.py learners --python rllib=PATH            # IMPALA and APPO, half an hour
    python benchmarks/ray/run.py learners --algorithms impala --rounds 1 --python rllib=PATH
    python benchmarks/ray/run.py learners --quick --python rllib=PATH    # does it work? few seconds of each

``cases.py`` has what all are given alike; batches are those of each learner. Each run on Ray starts a head without
processors and a node for each learner, all on this machine. apexrl's learner k is on node k beside its shard; RLlib's
are where Ray places them, and no node has room for all its processes. In every round all run one after the other, every
second round in reverse. Without ``--python rllib=PATH`` only apexrl runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.lib import processes, report
from benchmarks.ray.cases import RATES, SETTINGS
from benchmarks.topologies.peers import stacks

Result = dict[str, Any]
HERE = Path(__file__).parent
ALGORITHMS = ("impala", "appo")
MEASURES = tuple(name for name in SETTINGS if name != "goal")
HOME, OURS, THEIRS = "apexrl, one machine without Ray", "apexrl, Ray nodes", "RLlib, Ray nodes"
RATES_OF = ("steps_per_second", "steps_per_processor_second")
BARS = ((OURS, THEIRS, 2.0), (OURS, HOME, 0.9))


def run(who: str, algorithm: str, measure: str, seed: int, options: argparse.Namespace) -> Result:
    """One contestant once. A failure is a result, too."""
    python = options.pythons["rllib"] if who == THEIRS else sys.executable
    script = HERE / ("rllib_run.py" if who == THEIRS else "apexrl_run.py")
    words = [algorithm, "--measure", measure, "--seed", str(seed), "--learners", str(options.learners)]
    words += ["--where", "home"] if who == HOME else ["--nodes", str(options.learners)]
    for flag, seconds in (("--warm-up", options.warm_up), ("--window", options.window)):
        words += [flag, str(seconds)] if seconds else []
    try:
        return processes.answer([python, str(script), *words], options.limit, {"PYTHONWARNINGS": "ignore"})
    except processes.Failed as failed:
        return {"failure": str(failed)}


def measured(algorithm: str, measure: str, options: argparse.Namespace) -> dict[str, list[Result]]:
    """All rounds of one algorithm."""
    names = [HOME, OURS, *([THEIRS] if "rllib" in options.pythons else [])]
    results: dict[str, list[Result]] = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            result = run(name, algorithm, measure, turn + 1, options)
            results[name].append(result)
            failed = (result.get("failure", "").strip().splitlines() or [""])[-1]
            rate = f"failed: {failed}" if failed else f"{report.short(result['steps_per_second'])}/s"
            print(f"{measure} {algorithm}, round {turn + 1}: {name}: {rate}", flush=True)
    return results


def rows(algorithm: str, measure: str, results: dict[str, list[Result]]) -> list[list[str]]:
    """Of the table: everybody's rates, then the ratios and their bars, which a failed run misses."""
    what = [algorithm, "–".join(map(str, SETTINGS[measure][algorithm].case.hidden))]
    done = {name: [result for result in each if "failure" not in result] for name, each in results.items()}
    rates = {
        name: [[float(result[rate]) for result in each if rate in result] for rate in RATES_OF]
        for name, each in done.items()
    }
    lines = []
    for name, each in results.items():
        figures = [report.spread(values) if values else "–" for values in rates[name]]
        lines.append([*what, name, f"{len(done[name])} of {len(each)}", *figures, ""])
    for ours, theirs, bar in BARS:
        if len(done[ours]) == len(done.get(theirs, [])) == len(results[ours]):
            pairs = list(zip(rates[ours], rates[theirs], strict=True))
            texts = [report.ratio(*pair)[1] if len(pair[0]) == len(pair[1]) > 0 else "–" for pair in pairs]
            verdict = f"≥ {bar:g}×: {'met' if report.ratio(*pairs[0])[0] >= bar else 'missed'}"
            lines.append([*what, f"{ours} / {theirs}", "", *texts, verdict])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--learners", type=int, default=2, help="each on a node of its own (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn (default: 3)")
    parser.add_argument("--python", nargs="+", default=[], metavar="rllib=PATH", help="the interpreter that has RLlib")
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one run (default: 600)")
    parser.add_argument("--quick", action="store_true", help="one round of a few seconds: does it work?")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    options.pythons = processes.interpreters(parser, options.python, ("rllib",))
    if not 1 < options.learners <= (most := RATES["impala"].case.workers):
        parser.error(f"--learners {options.learners}: 2 to {most}, as each has an actor")
    if options.quick:
        options.rounds, options.warm_up, options.window = 1, options.warm_up or 2.0, options.window or 6.0
    processes.end_in_order()
    told = stacks(options.pythons)
    results = {
        f"{measure} {algorithm}": measured(algorithm, measure, options)
        for measure in options.measures
        for algorithm in options.algorithms
    }
    lines = [line for name, each in results.items() for line in rows(name.split()[1], name.split()[0], each)]
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'ray', 'torch', 'gymnasium')}; "
        f"beside {'; '.join(told.values()) or '–'}.\n"
        f"CartPole-v1, {options.learners} learners that average their gradients, each with batches of 1,024 steps; "
        "Ray has as many nodes, all on this machine. Steps that learners have learned from, as they say: a second, and "
        "a second of processor time of all processes. Median (least–greatest) of rounds in turn.\n\n"
    )
    head = ["algorithm", "layers", "contestant", "runs", "steps/s", "steps a processor second", "bar, of steps/s"]
    text += report.table(head, lines)
    report.save("ray-learners-quick" if options.quick else "ray-learners", text, results, None, options.out)
