"""After how many steps and seconds do defaults solve the well-known tasks?

    python benchmarks/generality/solved.py --tasks CartPole-v1 --agents dqn rainbow --seeds 1 2
    python benchmarks/generality/solved.py --tasks CartPole-v1 --agents a2c --topologies a3c ga3c
    python benchmarks/generality/solved.py --table                 # the table anew, from the records that there are

A cell is a whole ``apexrl train --env … --agent … --topology … --env-steps … --seed … --stop-at-return …`` and no other
flag. It is solved where 20 greedy episodes of the run's own evaluator have that mean return before the steps are made.
What the best weights then reach in 20 episodes on fresh seeds stands beside. Each ended cell is a line in
``benchmarks/records/generality/solved.jsonl`` and is not run again, unless ``--again``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.generality import cells
from benchmarks.generality.cells import Cell, Record
from benchmarks.generality.tasks import KNOWN
from benchmarks.lib import report, runs

GOALS = {
    "CartPole-v1": 475.0,
    "LunarLander-v3": 200.0,
    "LunarLanderRewards100-v0": 20_000.0,
    "LunarLanderRewards001-v0": 2.0,
    "LunarLanderRewards0001-v0": 0.2,
    "Acrobot-v1": -100.0,
    "MountainCarContinuous-v0": 90.0,
    "Pendulum-v1": -200.0,
    "MinAtar/Breakout-v1": 10.0,
    "MinAtar/Freeway-v1": 50.0,
    "MinAtar/Asterix-v1": 15.0,
    "MinAtar/Seaquest-v1": 20.0,
    "MinAtar/SpaceInvaders-v1": 45.0,
}
PATH = cells.RECORDS / "solved.jsonl"


def wanted(options: argparse.Namespace) -> list[Cell]:
    """The first seed of all comes first."""
    found = []
    for seed in options.seeds:
        for name in options.tasks:
            for agent in options.agents:
                if not cells.takes(agent, KNOWN[name]):
                    raise SystemExit(f"{agent} has no actions for {name}")
                steps = options.env_steps or cells.steps(agent, KNOWN[name])
                flags = f"--stop-at-return {GOALS[name]:g}"
                for topology in options.topologies or [cells.topology(agent)]:
                    found.append(Cell("apexrl", name, agent, topology, "default", seed, steps, flags))
    return found


def run(cell: Cell, options: argparse.Namespace) -> Record:
    """Run it until it is solved or its steps are made."""
    name = "-".join(["solved", cell.task.replace("/", "-"), cell.agent, cell.topology, str(cell.seed)])
    record: Record = {**vars(cell), "machine": report.machine(), "commit": cells.commit(), "failure": ""}
    try:
        summary = runs.train("", name, cells.command(cell), 60 * options.minutes)
    except (runs.RunFailed, subprocess.TimeoutExpired) as error:
        return record | {"failure": str(error)[-2000:], "solved": False}
    return record | {
        "solved": summary["stopped_by"] == "stop_at_return",
        "steps": summary["env_steps"],
        "seconds": summary["wall_seconds"],
        "startup_seconds": summary["startup_seconds"],
        "final": summary["final_eval_return"],
        "last": summary.get("last_weights_return"),
        "shared": options.shared or options.jobs > 1,
    }


def as_table(records: list[Record]) -> str:
    """A row for each task, agent and topology."""
    rows: dict[tuple[str, str, str, int], list[Record]] = {}
    for record in records:
        rows.setdefault((record["task"], record["agent"], record["topology"], record["env_steps"]), []).append(record)
    lines = []
    order = list(GOALS)
    for (task, agent, topology, steps), each in sorted(rows.items(), key=lambda row: (order.index(row[0][0]), row[0])):
        each.sort(key=lambda record: record["seed"])
        ran = [record for record in each if not record["failure"]]
        alone = [record["seconds"] for record in ran if record["solved"] and not record["shared"]]
        lines.append(
            [
                f"`{task}` ≥ {GOALS[task]:g}",
                f"`{agent}`",
                f"`{topology}`",
                f"{sum(record['solved'] for record in each)}/{len(each)}",
                report.spread([record["steps"] for record in ran]) if ran else "–",
                report.short(steps),
                report.spread(alone) if alone else "beside other work",
                " ".join(f"{record['final']:.4g}" for record in ran),
            ]
        )
    head = [
        "task",
        "agent",
        "topology",
        "solved",
        "steps until then",
        "of at most",
        "seconds",
        "best weights, fresh seeds",
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(GOALS), default=["CartPole-v1"])
    parser.add_argument("--agents", nargs="+", default=["dqn"])
    parser.add_argument("--topologies", nargs="+", default=[], help="default: one that suits each agent")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--env-steps", type=int, default=0, help="another budget than the tasks'")
    parser.add_argument("--minutes", type=float, default=60.0, help="that one cell may take (default: 60)")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once; their seconds are marked as shared")
    parser.add_argument("--shared", action="store_true", help="the machine does other work: mark the seconds so, too")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing; make the table of what there is")
    parser.add_argument("--records", type=Path, default=PATH)
    options = parser.parse_args()
    if not options.table:
        before, lock = cells.kept(options.records), Lock()
        todo = wanted(options) if options.again else cells.missing(wanted(options), before)

        def one(cell: Cell) -> None:
            record = run(cell, options)
            with lock:
                cells.keep(options.records, record)
                said = (
                    record["failure"] or f"{record['steps']:,} steps, {record['seconds']:.0f} s, {record['final']:.4g}"
                )
                print(cell.task, cell.agent, cell.topology, cell.seed, record["solved"], said, flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(one, todo))
    table = f"{report.machine()}.\n\n{as_table(cells.kept(options.records))}\n"
    report.OUT.mkdir(parents=True, exist_ok=True)
    (report.OUT / "solved.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
