"""Environment steps *consumed by SGD* per second, beside Sample Factory's APPO and RLlib's IMPALA and APPO, in turn.

    python benchmarks/topologies/run.py peers --python sample_factory=PATH rllib=PATH     # cartpole and pong: an hour
    python benchmarks/topologies/run.py peers --cases cartpole --rounds 1 --python sample_factory=PATH
    python benchmarks/topologies/run.py peers --quick --python …        # does it work? few seconds of each

All have the same environment, network, batch, epochs and processes (``cases.py`` has the table). Each peer
runs in an interpreter of its own, whose path ``--python`` gives; without it the peer is left out. In every round all
contestants run one after the other, alone on the machine, every second round in reverse. What counts is what each
learner's own counter says that it has learned from, in a window that begins some seconds after its first update.
RLlib's learner is a process of its own, as it comes, or works in the driver (``--rllib-learners 0``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.lib import processes, report
from benchmarks.topologies.cases import CASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]
HERE = Path(__file__).parent


class Contestant(NamedTuple):
    """Who runs a case."""

    script: str
    words: tuple[str, ...] = ()
    package: str = ""  # whose interpreter is wanted, by its name in --python; empty: this one


class Pair(NamedTuple):
    """What the issue compares."""

    case: str
    ours: str
    theirs: str
    bar: float


CONTESTANTS = {
    "apexrl sample_factory, appo": Contestant("apexrl_run.py", ("sample_factory", "appo")),
    "apexrl impala, impala": Contestant("apexrl_run.py", ("impala", "impala")),
    "apexrl impala, appo": Contestant("apexrl_run.py", ("impala", "appo")),
    "Sample Factory APPO": Contestant("sample_factory_run.py", (), "sample_factory"),
    "RLlib IMPALA": Contestant("rllib_run.py", ("impala",), "rllib"),
    "RLlib APPO": Contestant("rllib_run.py", ("appo",), "rllib"),
}
PAIRS = (
    Pair("cartpole", "apexrl sample_factory, appo", "Sample Factory APPO", 3.0),
    Pair("cartpole", "apexrl impala, impala", "RLlib IMPALA", 5.0),
    Pair("cartpole", "apexrl impala, appo", "RLlib APPO", 5.0),
    Pair("cartpole-256", "apexrl impala, impala", "RLlib IMPALA", 5.0),
    Pair("cartpole-256", "apexrl impala, appo", "RLlib APPO", 5.0),
    Pair("pong", "apexrl sample_factory, appo", "Sample Factory APPO", 1.1),
)
PACKAGES = {"sample_factory": ("sample-factory", "gymnasium", "torch"), "rllib": ("ray", "gymnasium", "torch")}
_VERSIONS = (
    "import json,sys;from importlib import metadata;print(json.dumps({n: metadata.version(n) for n in sys.argv[1:]}))"
)


def who(case: str, pythons: dict[str, str]) -> list[str]:
    """Contestants of a case that can run here, in the order of a round."""
    wanted = list(dict.fromkeys(name for pair in PAIRS if pair.case == case for name in (pair.ours, pair.theirs)))
    return [name for name in wanted if CONTESTANTS[name].package in {"", *pythons}]


def run(name: str, case: str, seed: int, options: argparse.Namespace) -> Result:
    """One contestant once."""
    contestant = CONTESTANTS[name]
    python = options.pythons.get(contestant.package, sys.executable)
    words = [*contestant.words, "--case", case, "--seed", str(seed)]
    for flag, seconds in (("--warm-up", options.warm_up), ("--window", options.window)):
        words += [flag, str(seconds)] if seconds else []
    if contestant.package == "rllib":
        words += ["--learners", str(options.rllib_learners)]
    command = [python, str(HERE / contestant.script), *words]
    return processes.answer(command, options.limit, {"PYTHONWARNINGS": "ignore"})


def measured(case: str, options: argparse.Namespace) -> dict[str, list[Result]]:
    """All rounds of a case."""
    names = [name for name in who(case, options.pythons) if not options.only or name in options.only]
    results: dict[str, list[Result]] = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            result = run(name, case, turn + 1, options)
            results[name].append(result)
            rate = report.short(result["steps_per_second"])
            print(f"{case}, round {turn + 1}: {name}: {rate}/s over {result['seconds']:.0f} s", flush=True)
    return results


def rows(case: str, results: dict[str, list[Result]]) -> list[list[str]]:
    """Of the table: everybody's rate, then each pair's ratio."""
    unit = "emulator frames" if CASES[case].frames > 1 else "environment steps"
    lines = [[case, name, f"{report.spread(_rates(each))} {unit}/s", ""] for name, each in results.items()]
    for pair in PAIRS:
        if pair.case == case and results.get(pair.ours) and results.get(pair.theirs):
            whole, text = report.ratio(_rates(results[pair.ours]), _rates(results[pair.theirs]))
            verdict = "met" if whole >= pair.bar else "missed"
            lines.append([case, f"{pair.ours} / {pair.theirs}", text, f"≥ {pair.bar:g}×: {verdict}"])
    return lines


def _rates(each: Sequence[Result]) -> list[float]:
    return [float(result["steps_per_second"]) for result in each]


def draw(results: dict[str, dict[str, list[Result]]]) -> Figure:
    """A panel a case, a bar a contestant, a dot a round."""
    report.style()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(results), 1, figsize=(8.0, 0.6 + 2.0 * len(results)), squeeze=False, layout="constrained"
    )
    for axis, (case, each) in zip(axes.flat, results.items(), strict=True):
        for place, (name, some) in enumerate(each.items()):
            colour = report.OURS if name.startswith("apexrl") else report.THEIRS
            axis.barh(place, median(_rates(some)), color=colour, alpha=0.35)
            axis.plot(_rates(some), [place] * len(some), "o", color=colour, markersize=5, markeredgewidth=0)
        axis.set_yticks(range(len(each)), list(each))
        axis.invert_yaxis()
        axis.set_title(f"{case}: {'frames' if CASES[case].frames > 1 else 'steps'} learned from, per second")
        axis.grid(axis="y", visible=False)
    return figure


def stacks(pythons: dict[str, str]) -> dict[str, str]:
    """``name version (gymnasium …, torch …)`` of each peer, asked in its interpreter."""
    told = {}
    for name, path in pythons.items():
        found = processes.answer([path, "-c", _VERSIONS, *PACKAGES[name]], 60.0)
        told[name] = report.stack({package: str(number) for package, number in found.items()})
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn (default: 3)")
    parser.add_argument("--python", nargs="+", default=[], metavar="NAME=PATH", help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=[], help="contestants (default: all)")
    parser.add_argument(
        "--rllib-learners", type=int, default=1, help="processes; 0: in the driver (default: 1, RLlib's)"
    )
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds, other than the cases'")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, other than the cases'")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one run (default: 600)")
    parser.add_argument("--quick", action="store_true", help="one round of a few seconds: does it work?")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    options = parser.parse_args()
    options.pythons = processes.interpreters(parser, options.python, PACKAGES)
    if options.quick:
        options.rounds, options.warm_up, options.window = 1, options.warm_up or 3.0, options.window or 8.0
    processes.end_in_order()
    told = stacks(options.pythons)

    title = "topologies-peers-quick" if options.quick else "topologies-peers"
    path = options.out / f"{title}.json"
    results: dict[str, dict[str, list[Result]]] = json.loads(path.read_text()) if path.exists() else {}
    for case in options.cases:
        results[case] = results.get(case, {}) | measured(case, options)
    results = {case: results[case] for case in CASES if case in results}
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'torch', 'gymnasium')}; "
        f"beside {'; '.join(told.values()) or '–'}.\n"
        "Steps that learners say they have learned from, per second; median (least–greatest) of rounds in turn.\n\n"
    )
    text += report.table(
        ["case", "contestant", "", "bar"], [row for case in results for row in rows(case, results[case])]
    )
    text += f"\n![Steps learned from per second](images/{title}.png)\n"
    report.save(title, text, results, draw(results), options.out)
