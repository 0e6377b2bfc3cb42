"""Acting and learning at once: apexrl beside an Ape-X skeleton on cpprb, same network and batch.

    python benchmarks/skeleton/run.py               # two minutes; needs cpprb (pip install cpprb==11.0.0)

CartPole-v1, two actor processes and one learner, 256-256 units, dueling, double, batch 64. Nothing holds the skeleton
back; it settles at about 80 environment steps an update, and ours keeps to that proportion by its limiter. Both figures
count: env steps/s and updates/s in the same seconds. A peer that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.lib import report, runs
from benchmarks.lib.runs import Rates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SKIP_SECONDS = 2.0  # after the first update
UPDATES_PER_STEP = 1 / 80  # as the skeleton


def apexrl(seconds: float, envs_per_actor: int, turn: int) -> Rates:
    name = f"skeleton-{turn}"
    flags = ["--updates-per-step", str(UPDATES_PER_STEP), "--hidden", "256", "256", "--learning-rate", "1e-3"]
    flags += ["--stop-at-return", "None", "--eval-period-seconds", "3600"]
    flags += ["--actors", "2", "--envs-per-actor", str(envs_per_actor), "--seed", str(turn + 1)]
    flags += ["--minutes", str((seconds + SKIP_SECONDS + 1.0) / 60)]
    runs.train("cartpole", name, flags, seconds + 90)
    return runs.rates(runs.RUNS / name, SKIP_SECONDS)


def skeleton(seconds: float, envs_per_actor: int, turn: int) -> Rates:
    script = Path(__file__).with_name("cpprb_skeleton.py")
    command = [sys.executable, str(script), "--seconds", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + 60, check=True)
    return Rates(**json.loads(done.stdout))


CONTESTANTS: dict[str, tuple[str, Callable[[float, int, int], Rates]]] = {
    "apexrl": ("apexrl", apexrl),
    "skeleton on cpprb": ("cpprb", skeleton),
}


def draw(results: dict[str, list[Rates]]) -> Figure:
    """Both rates at once: up and to the right is better."""
    report.style()
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.0, 3.6), layout="constrained")
    for name, each in results.items():
        color = report.OURS if name == "apexrl" else report.THEIRS
        x, y = [r.env_steps_per_second for r in each], [r.updates_per_second for r in each]
        axis.plot(x, y, "o", color=color, alpha=0.6, markersize=8, markeredgewidth=0, label=name)
    axis.set(xlabel="env steps/s", ylabel="updates/s (batch 64)", title="CartPole, acting and learning at once")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.legend(loc="best")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn (default: 3)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of the steady state (default: 15)")
    parser.add_argument("--envs-per-actor", type=int, default=32, help="of apexrl (default: 32)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table, figures and picture")
    options = parser.parse_args()

    present = [name for name, (distribution, _) in CONTESTANTS.items() if report.version(distribution)]
    results: dict[str, list[Rates]] = {name: [] for name in present}
    for turn in range(options.rounds):
        for name in present if turn % 2 == 0 else present[::-1]:
            measured = CONTESTANTS[name][1](options.seconds, options.envs_per_actor, turn)
            results[name].append(measured)
            print(
                f"round {turn + 1}: {name} {measured.env_steps_per_second:.0f} env steps/s, "
                f"{measured.updates_per_second:.0f} updates/s",
                flush=True,
            )
    columns = [
        (name, [r.env_steps_per_second for r in each], [r.updates_per_second for r in each])
        for name, each in results.items()
    ]
    rows = [[name, report.spread(steps), report.spread(updates)] for name, steps, updates in columns]
    if len(columns) == 2:
        (_, our_steps, our_updates), (_, their_steps, their_updates) = columns
        rows.append(["ratio", report.ratio(our_steps, their_steps)[1], report.ratio(our_updates, their_updates)[1]])
        rows.append(["bar", "≥ 2×", "≥ 2×, in the same seconds"])
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'cpprb', 'torch', 'gymnasium')}.",
        f"Two actor processes ({options.envs_per_actor} environments each in apexrl, one each in the skeleton), one "
        f"learner, batch 64; {options.rounds} rounds of {options.seconds:.0f} s in turn.\n",
        report.table(["", "env steps/s", "updates/s"], rows),
    ]
    data = {name: [measured._asdict() for measured in each] for name, each in results.items()}
    report.save("skeleton", "\n".join(lines), data, draw(results), options.out)


if __name__ == "__main__":
    main()
