"""Ape-X on Ray beside RLlib's old Ape-X (ray 2.6.3), in turn: the same environment, network, batch and replay.

    python benchmarks/ray/run.py rllib_apex --python rllib=PATH

Two cases of ``cases.py``, the DQN for rates and that for the goal. Each run is told how often every step is to be
read. Every second round begins with the other one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.lib import processes, report
from benchmarks.ray.cases import DQN_CASES
from benchmarks.topologies.peers import stacks

Result = dict[str, Any]
HERE = Path(__file__).parent
OURS, THEIRS = "apexrl on Ray", "RLlib's Ape-X"
BAR = 3.0
TITLES = {"made_per_second": "steps made, per second", "steps_per_second": "samples learned from, per second"}


def measured(case: str, options: argparse.Namespace) -> dict[str, list[Result]]:
    """Both in every round."""
    results: dict[str, list[Result]] = {OURS: [], THEIRS: []}
    for turn in range(options.rounds):
        words = ["--case", case, "--seed", str(turn + 1)]
        words += ["--warm-up", str(options.warm_up), "--window", str(options.window)]
        commands = {
            THEIRS: [options.pythons["rllib"], str(HERE / "rllib_apex_run.py"), *words],
            OURS: [sys.executable, str(HERE / "apexrl_run.py"), "dqn", *words],
        }
        for name in commands if turn % 2 == 0 else reversed(list(commands)):
            results[name].append(_answer(commands[name], options))
            said = ", ".join(f"{report.short(results[name][-1][key])} {title}" for key, title in TITLES.items())
            print(f"{case}, round {turn + 1}: {name}: {said}", flush=True)
    return results


def _answer(command: list[str], options: argparse.Namespace) -> Result:
    return processes.answer(command, options.limit, {"PYTHONWARNINGS": "ignore"})


def rows(results: dict[str, dict[str, list[Result]]]) -> list[list[str]]:
    """Of the table: everybody's figures, then the ratio and its bar."""
    lines = []
    for name, contestants in results.items():
        case = DQN_CASES[name].case
        often = f"each step read {DQN_CASES[name].samples_per_step:g}×"
        what = f"{'–'.join(map(str, case.hidden))}, batches of {case.batch_steps}, {often}"
        values = {who: {key: [one[key] for one in each] for key in TITLES} for who, each in contestants.items()}
        lines += [[what, who, *(report.spread(own[key]) for key in TITLES), ""] for who, own in values.items()]
        ratios = [report.ratio(values[OURS][key], values[THEIRS][key]) for key in TITLES]
        verdict = f"≥ {BAR:g}×: {'met' if ratios[0][0] >= BAR else 'missed'}"
        lines.append([what, f"{OURS} / {THEIRS}", *(text for _, text in ratios), verdict])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=DQN_CASES, default=list(DQN_CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", required=True, metavar="rllib=PATH", help="the interpreter that has ray 2.6.3")
    parser.add_argument("--warm-up", type=float, default=8.0, help="seconds after the first update")
    parser.add_argument("--window", type=float, default=20.0, help="seconds that count")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one run")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    name, _, path = options.python.partition("=")
    if name != "rllib" or not Path(path).exists():
        parser.error(f"--python {options.python}: want rllib=PATH of an interpreter that is there")
    options.pythons = {name: path}
    processes.end_in_order()
    results = {case: measured(case, options) for case in options.cases}
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'ray', 'torch', 'gymnasium')}; beside "
        f"{'; '.join(stacks(options.pythons).values())}.\nCartPole-v1, 2 processes with 16 environments each; 3-step "
        "returns, double, dueling; 100,000 transitions, α 0.6, β 0.4. Median "
        "(least–greatest) of rounds in turn.\n\n"
    )
    header = ["network", "contestant", *TITLES.values(), "bar"]
    report.save("ray-apex", text + report.table(header, rows(results)), results, None, options.out)
