"""Seconds until CartPole is solved: ``apexrl train cartpole`` beside Stable-Baselines3's DQN, run in turn.

    python benchmarks/cartpole/run.py               # seeds 1 to 5, some minutes; needs stable-baselines3

Solved: 20 greedy episodes have a mean return of 475 or more, tried about every second. Wall clock runs from the first
environment step, evaluations included; start-up is not counted. A peer that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib import report, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]
GOAL = 475.0


def apexrl(seed: int, limit: float) -> Result:
    flags = ["--seed", str(seed), "--stop-at-return", str(GOAL), "--minutes", str(limit / 60)]
    summary = runs.train("cartpole", f"cartpole-{seed}", flags, limit + 60)
    return summary | {"solved": summary["stopped_by"] == "stop_at_return"}


def sb3(seed: int, limit: float) -> Result:
    script = Path(__file__).with_name("sb3_dqn.py")
    command = [sys.executable, str(script), "--seed", str(seed), "--goal", str(GOAL), "--limit", str(limit)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit + 120, check=True)
    result: Result = json.loads(done.stdout)
    return result


CONTESTANTS: dict[str, tuple[str, Callable[[int, float], Result]]] = {
    "apexrl": ("apexrl", apexrl),
    "SB3 DQN (rl-zoo)": ("stable-baselines3", sb3),
}


def as_table(results: dict[str, list[Result]], limit: float) -> str:
    rows = []
    for name, each in results.items():
        seconds = [result["wall_seconds"] for result in each]
        rows.append(
            [
                name,
                f"{sum(result['solved'] for result in each)}/{len(each)}",
                report.spread(seconds, " s"),
                ", ".join(f"{s:.1f}" if r["solved"] else f">{limit:.0f}" for s, r in zip(seconds, each, strict=True)),
                report.spread([result["env_steps_per_second"] for result in each]),
                report.spread([result["updates_per_second"] for result in each]),
                report.spread([result["final_eval_return"] for result in each]),
            ]
        )
    header = ["", "solved", "seconds to 475", "each seed", "env steps/s", "updates/s", "final return, fresh seeds"]
    return report.table(header, rows)


def draw(results: dict[str, list[Result]]) -> Figure:
    """Every seed, a dot."""
    report.style()
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 0.9 + 0.6 * len(results)), layout="constrained")
    for place, (name, each) in enumerate(results.items()):
        color = report.OURS if name == "apexrl" else report.THEIRS
        seconds = [result["wall_seconds"] for result in each]
        axis.plot(seconds, [place] * len(seconds), "o", color=color, alpha=0.45, markersize=7, markeredgewidth=0)
        axis.plot([median(seconds)] * 2, [place - 0.25, place + 0.25], color=color, linewidth=2.5)
        for result in each:
            if not result["solved"]:
                axis.annotate("not solved", (result["wall_seconds"], place), xytext=(0, 8), textcoords="offset points")
    axis.set_yticks(range(len(results)), list(results))
    axis.set(ylim=(len(results) - 0.5, -0.5), xlabel="seconds of training; a dot a seed, a bar the median")
    axis.set_xlim(left=0)
    axis.set_title("CartPole-v1 to a mean greedy return of 475")
    axis.grid(axis="y", visible=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for one run (default: 90)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    options = parser.parse_args()

    present = [name for name, (distribution, _) in CONTESTANTS.items() if report.version(distribution)]
    results: dict[str, list[Result]] = {name: [] for name in present}
    for number, seed in enumerate(options.seeds):
        for name in present if number % 2 == 0 else present[::-1]:
            result = CONTESTANTS[name][1](seed, options.limit)
            results[name].append(result)
            print(
                f"seed {seed}: {name} {result['wall_seconds']:.1f} s, final {result['final_eval_return']:.1f}",
                flush=True,
            )
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'stable-baselines3', 'torch', 'gymnasium')}.",
        f"Seeds {', '.join(map(str, options.seeds))}, contestants in turn; median (least–greatest).\n",
        as_table(results, options.limit),
    ]
    if len(present) == 2:
        ours, theirs = ([result["wall_seconds"] for result in results[name]] for name in present)
        lines.append(f"Wall time of apexrl / SB3: {report.ratio(ours, theirs)[1]}; the bar is ≤ 1×, the aim ≤ 0.5×.\n")
    report.save("cartpole", "\n".join(lines), results, draw(results), options.out)


if __name__ == "__main__":
    main()
