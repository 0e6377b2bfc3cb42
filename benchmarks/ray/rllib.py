"""Beside RLlib on the same Ray, in turn: environment steps consumed per second, and seconds until CartPole is solved.

    python benchmarks/ray/run.py rllib --python rllib=PATH              # IMPALA, APPO and DQN, an hour
    python benchmarks/ray/run.py rllib --algorithms impala --measures rate --rounds 1 --python rllib=PATH
    python benchmarks/ray/run.py rllib --quick --python rllib=PATH      # does it work? few seconds of each

``cases.py`` has the table of what both are given alike. Each run starts a Ray of its own on this machine, which
ends with it. Both interpreters should have the same Ray. In every round all run one after the other, alone on the
machine, every second round in reverse. Without ``--python rllib=PATH`` only apexrl runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lib import processes, report
from benchmarks.ray.cases import ALGORITHMS, EPISODES, GOAL, SETTINGS
from benchmarks.topologies.peers import stacks

Result = dict[str, Any]
HERE = Path(__file__).parent
OURS, THEIRS = "apexrl on Ray", "RLlib"
FASTER, SLOWER = 3.0, 1.0  # bars: of steps consumed per second, at least; of seconds to the goal, at most


def run(who: str, algorithm: str, measure: str, seed: int, options: argparse.Namespace) -> Result:
    """One contestant once. A failure is a result, too."""
    python = sys.executable if who == OURS else options.pythons["rllib"]
    script = HERE / ("apexrl_run.py" if who == OURS else "rllib_run.py")
    words = [algorithm, "--measure", measure, "--seed", str(seed), "--minutes", str(options.minutes)]
    for flag, seconds in (("--warm-up", options.warm_up), ("--window", options.window)):
        words += [flag, str(seconds)] if seconds else []
    if who == THEIRS:
        words += ["--learners", str(options.rllib_learners)]
    try:
        return processes.answer([python, str(script), *words], options.limit, {"PYTHONWARNINGS": "ignore"})
    except processes.Failed as failed:
        return {"failure": str(failed)}


def measured(algorithm: str, measure: str, options: argparse.Namespace) -> dict[str, list[Result]]:
    """All rounds of one algorithm."""
    names = [OURS, *([THEIRS] if "rllib" in options.pythons else [])]
    results: dict[str, list[Result]] = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            result = run(name, algorithm, measure, turn + 1, options)
            results[name].append(result)
            print(f"{measure} {algorithm}, round {turn + 1}: {name}: {_said(result, measure)}", flush=True)
    return results


def _said(result: Result, measure: str) -> str:
    if "failure" in result:
        return "failed: " + (str(result["failure"]).strip().splitlines() or ["?"])[-1]
    if measure != "goal":
        return f"{report.short(result['steps_per_second'])}/s"
    return f"{result['seconds']:.1f} s" + ("" if result["solved"] else ", not solved")


def _values(each: Sequence[Result], measure: str) -> list[float]:
    """Of the runs that did what was asked."""
    if measure != "goal":
        return [float(result["steps_per_second"]) for result in each if "failure" not in result]
    return [float(result["seconds"]) for result in each if result.get("solved")]


def rows(results: dict[str, dict[str, dict[str, list[Result]]]]) -> list[list[str]]:
    """Of the table: everybody's figures, then the ratio and its bar."""
    lines = []
    for measure, algorithms in results.items():
        for algorithm, contestants in algorithms.items():
            layers = "–".join(map(str, SETTINGS[measure][algorithm].case.hidden))
            what = f"seconds to {GOAL:g}" if measure == "goal" else f"steps consumed per second, {layers}"
            values = {name: _values(each, measure) for name, each in contestants.items()}
            for name, each in contestants.items():
                done = f"{len(values[name])} of {len(each)}"
                figure = report.spread(values[name]) if values[name] else "–"
                starts = [float(result["with_start"]) for result in each if result.get("solved")]
                if starts:
                    figure += f"; with start-up {report.spread(starts)}"
                lines.append([what, algorithm, name, done, figure, ""])
            lines += _bar(what, algorithm, measure, contestants, values)
    return lines


def _bar(
    what: str, algorithm: str, measure: str, contestants: dict[str, list[Result]], values: dict[str, list[float]]
) -> list[list[str]]:
    ours, theirs = values.get(OURS, []), values.get(THEIRS, [])
    if not ours or not theirs:
        return []
    paired = len(ours) == len(theirs) == len(contestants[OURS])
    whole, text = report.ratio(ours, theirs) if paired else (r := median(ours) / median(theirs), f"**{r:.2f}×**")
    everybody = len(ours) == len(contestants[OURS])  # a run of ours that failed misses the bar
    good = everybody and (whole <= SLOWER if measure == "goal" else whole >= FASTER)
    verdict = f"{f'≤ {SLOWER:g}×' if measure == 'goal' else f'≥ {FASTER:g}×'}: {'met' if good else 'missed'}"
    return [[what, algorithm, f"{OURS} / {THEIRS}", "", text, verdict]]


def failures(results: dict[str, dict[str, dict[str, list[Result]]]]) -> str:
    lines = [
        f"- {measure}, {algorithm}, {name}: {_said(result, measure)}"
        for measure, algorithms in results.items()
        for algorithm, contestants in algorithms.items()
        for name, each in contestants.items()
        for result in each
        if "failure" in result or (measure == "goal" and not result["solved"])
    ]
    return "\nNot as it should be:\n\n" + "\n".join(lines) + "\n" if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--measures", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn (default: 3)")
    parser.add_argument("--python", nargs="+", default=[], metavar="rllib=PATH", help="the interpreter that has RLlib")
    parser.add_argument(
        "--rllib-learners", type=int, default=1, help="processes; 0: in the driver (default: 1, RLlib's)"
    )
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the case's")
    parser.add_argument("--minutes", type=float, default=10.0, help="that a run may take to its goal (default: 10)")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds for one run (default: 1200)")
    parser.add_argument("--quick", action="store_true", help="one round of a few seconds: does it work?")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    options.pythons = processes.interpreters(parser, options.python, ("rllib",))
    if options.quick:
        options.rounds, options.minutes = 1, min(options.minutes, 0.2)
        options.warm_up, options.window = options.warm_up or 2.0, options.window or 6.0
    processes.end_in_order()
    told = stacks(options.pythons)

    title = "ray-peers-quick" if options.quick else "ray-peers"
    path = options.out / f"{title}.json"
    results: dict[str, dict[str, dict[str, list[Result]]]] = json.loads(path.read_text()) if path.exists() else {}
    for measure in options.measures:
        for algorithm in options.algorithms:
            results[measure] = results.get(measure, {}) | {algorithm: measured(algorithm, measure, options)}
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'ray', 'torch', 'gymnasium')}; "
        f"beside {'; '.join(told.values()) or '–'}.\n"
        "Each run on a Ray of its own on this machine. Steps that learners say they have learned from, per second; "
        f"seconds of training until a greedy evaluation of {EPISODES} episodes reaches {GOAL:g}. Median "
        "(least–greatest) of rounds in turn.\n\n"
    )
    text += report.table(["what", "algorithm", "contestant", "runs", "", "bar"], rows(results)) + failures(results)
    report.save(title, text, results, None, options.out)
