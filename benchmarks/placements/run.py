"""CartPole-v1 in every cell of topologies × placements, with one role killed on the way.

    python benchmarks/placements/run.py
    python benchmarks/placements/run.py --cells impala-redis learners-ray --seeds 1
    python benchmarks/placements/run.py --table                  # the table anew, from the records that there are

A cell of ``apexrl list topologies`` that says yes is run with its default settings until 20 greedy episodes of the
run's own evaluator have a mean return of 475. Over Redis and TCP a second host brings one actor process; on Ray there
are two nodes; all of them are on this machine. When ``KILL_AT`` steps are made, one worker of the role that the table
names is killed with -9. Each ended cell is a line in ``benchmarks/records/placements/runs.jsonl`` and is not run again,
unless ``--again``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.generality.cells import Record, commit, keep
from benchmarks.lib import processes, report
from benchmarks.placements import cells
from benchmarks.placements.cells import Cell

GOAL, KILL_AT = 475.0, 5_000
PATH = report.RECORDS / "placements" / "runs.jsonl"


def name_of(cell: Cell) -> str:
    """As ``--cells`` has it: ``apex-redis``, ``learners-ray``."""
    row, placement = cell
    return f"{'learners' if row == cells.LEARNERS else row}-{placement}"


NAMES = {name_of(cell): cell for cell in cells.RUNNING}


def run(name: str, seed: int, options: argparse.Namespace) -> Record:
    """Run it until it is solved, or its minutes are over."""
    record: Record = {"cell": name, "seed": seed, "machine": report.machine(), "commit": commit(), "failure": ""}
    record |= {"shared": options.shared, "role": cells.killed_role(NAMES[name])}
    more = {"seed": seed, "stop_at_return": GOAL, "minutes": options.minutes}
    with tempfile.TemporaryDirectory() as folder:
        try:
            summary = cells.run(NAMES[name], more, Path(folder), KILL_AT, 60 * options.minutes + 300)
        except processes.Failed as error:
            return record | {"failure": str(error)[-2000:], "solved": False}
    kept = ("env_steps", "updates", "wall_seconds", "startup_seconds", "final_eval_return", "agent", "killed")
    solved = summary["stopped_by"] == "stop_at_return"
    return record | {"solved": solved} | {one: summary[one] for one in (*kept, "restarts", "dropped")}


def kept(path: Path) -> list[Record]:
    """The newest record of each cell and seed."""
    import json

    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return list({(record["cell"], record["seed"]): record for record in map(json.loads, lines)}.values())


def as_table(records: list[Record]) -> str:
    """A row for each cell that was run, in the order of the table of cells."""
    lines = []
    for name, (row, placement) in NAMES.items():
        each = sorted((record for record in records if record["cell"] == name), key=lambda record: record["seed"])
        if not each:
            continue
        ran = [record for record in each if not record["failure"]]
        lines.append(
            [
                f"`{row}`",
                cells.PLACEMENTS[placement],
                f"`{ran[0]['agent']}`" if ran else "–",
                f"`{each[0]['role']}`" + ("" if all(record["killed"] for record in ran) else " (too late)"),
                f"{sum(record['solved'] for record in each)} of {len(each)}",
                report.spread([record["env_steps"] for record in ran]) if ran else "–",
                report.spread([record["wall_seconds"] for record in ran]) if ran else "–",
                " ".join(f"{record['final_eval_return']:.4g}" for record in ran),
            ]
        )
    head = ["topology", "placement", "agent", "killed", "solved", "env steps", "seconds", "final return, each seed"]
    return report.table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=list(NAMES), default=list(NAMES), metavar="CELL",
                        help="; ".join(NAMES))  # fmt: skip
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=15.0, help="that one run may take (default: 15)")
    parser.add_argument("--shared", action="store_true", help="the machine does other work: its seconds say little")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing; make the table of what there is")
    parser.add_argument("--records", type=Path, default=PATH)
    options = parser.parse_args()
    processes.end_in_order()
    done = {(record["cell"], record["seed"]) for record in kept(options.records) if not record["failure"]}
    for seed in options.seeds if not options.table else []:
        for name in options.cells:
            if options.again or (name, seed) not in done:
                record = run(name, seed, options)
                keep(options.records, record)
                print(name, seed, record["solved"], record["failure"] or f"{record['wall_seconds']:.0f} s", flush=True)
    report.OUT.mkdir(parents=True, exist_ok=True)
    (report.OUT / "placements-runs.md").write_text(as_table(kept(options.records)), encoding="utf-8")


if __name__ == "__main__":
    main()
