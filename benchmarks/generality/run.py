"""How well do defaults learn on environments that nobody tuned, beside Stable-Baselines3's defaults?

    python benchmarks/generality/run.py --tasks CartPole-v1 --agents c51 rainbow --seeds 1 2
    python benchmarks/generality/run.py --peer sb3 --python sb3=peers-sb3/bin/python
    python benchmarks/generality/run.py --table                    # tables anew, from the records that there are

A cell is one agent on one task with one seed: a whole ``apexrl train --env … --agent … --topology … --env-steps …
--seed …`` and no other flag of learning, or the peer's agent with its defaults and as many environment steps. Both are
evaluated 20 times on the way. Each ended cell is a line in ``benchmarks/records/generality/`` and is not run again,
unless ``--again`` or it failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.generality import cells, tables
from benchmarks.generality.cells import Cell
from benchmarks.generality.scores import normalised
from benchmarks.generality.tasks import TASKS
from benchmarks.lib import processes, report

AGENTS = ("dqn", "qr_dqn", "ppo", "a2c", "sac", "td3")


def wanted(options: argparse.Namespace) -> list[Cell]:
    """The first seed of all comes first."""
    system, found = options.peer or "apexrl", []
    for seed in options.seeds:
        for name in chosen_tasks(options.tasks):
            task = TASKS[name]
            for agent in options.agents:
                if not cells.takes(agent, task, system):
                    continue
                steps = options.env_steps or round(options.share * cells.steps(agent, task))
                topologies = [""] if options.peer else options.topologies or [cells.topology(agent)]
                recipe, flags = ("default", "") if options.peer else (options.recipe, " ".join(options.flags))
                found += [Cell(system, name, agent, of, recipe, seed, steps, flags) for of in topologies]
    return found


def chosen_tasks(names: Sequence[str]) -> list[str]:
    """``tune`` and ``report`` stand for the tasks of a half."""
    return [name for name, task in TASKS.items() if not names or name in names or task.half in names]


def run_all(todo: Sequence[Cell], options: argparse.Namespace, path: Path) -> None:
    """Run them, ``--jobs`` at a time; each is kept as soon as it has ended, unless all of this is interrupted."""
    lock, interrupted, python = Lock(), Event(), options.python.get(options.peer, sys.executable)

    def one(cell: Cell) -> None:
        record = cells.run(cell, options.minutes, python)
        record["shared"] = options.shared or options.jobs > 1
        with lock:
            if not interrupted.is_set():  # then the cell may have been, too
                cells.keep(path, record)
                print(in_words(record), flush=True)

    if options.jobs == 1:  # in this thread, which signals interrupt
        for cell in todo:
            one(cell)
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for done in [pool.submit(one, cell) for cell in todo]:
                done.result()
        except BaseException:
            interrupted.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def in_words(record: cells.Record) -> str:
    """One ended cell on one line."""
    who = f"{record['system']:<7}{record['task']:<32}{record['agent']:<15}{record['topology']:<15}{record['recipe']:<8}"
    if record["failure"]:
        return f"{who} {record['seed']:>3}  FAILED: {record['failure'].strip().splitlines()[-1][:120]}"
    returns = "".join(f"{'–' if value is None else f'{value:.5g}':>11}" for value in (record["final"], record["last"]))
    score = normalised(TASKS[record["task"]], record["final"])
    return f"{who} {record['seed']:>3}{returns}{score:>8.2f}{record['steps']:>11,}{record['seconds']:>8.0f} s"


def head() -> str:
    """The columns of these lines."""
    return (
        f"{'system':<7}{'task':<32}{'agent':<15}{'topology':<15}{'recipe':<8}seed{'best':>11}{'last':>11}{'score':>8}"
        f"{'steps':>11}{'seconds':>10}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, "tune", "report"], default=[], help="default: all")
    parser.add_argument(
        "--agents", nargs="+", default=list(AGENTS), help="default: those that Stable-Baselines3 has too"
    )
    parser.add_argument("--topologies", nargs="+", default=[], help="default: one that suits each agent")
    parser.add_argument("--recipe", choices=["default", "paper"], default="default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--env-steps", type=int, default=0, help="another budget than the tasks'; no table shows it")
    parser.add_argument(
        "--share", type=float, choices=cells.SHARES, default=1.0, help="of the tasks' budgets (default: all)"
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="that one cell may take (default: 120)")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once; their seconds are marked as shared")
    parser.add_argument("--shared", action="store_true", help="the machine does other work: mark the seconds so, too")
    parser.add_argument("--peer", choices=["sb3"], default="", help="run this peer's agents, not apexrl's")
    parser.add_argument("--python", nargs="+", default=[], metavar="PEER=PATH", help="interpreter that has the peer")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing; make the tables of what there is")
    parser.add_argument("--records", type=Path, default=cells.RECORDS, help="folder of the records")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder of the tables")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl train")
    options = parser.parse_args()
    options.python = dict(word.split("=", 1) for word in options.python)
    if options.peer and (unknown := [agent for agent in options.agents if agent not in cells.SB3]):
        parser.error(f"{options.peer} has no agent {', '.join(unknown)}; it has {', '.join(cells.SB3)}")
    if options.table:
        files = [options.records / f"{system}.jsonl" for system in ("apexrl", "sb3")]
        tables.write([record for file in files for record in cells.kept(file)], options.out)
        return
    # Workers of a run find the suite's environments there, wherever they start.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(cells.ROOT), os.environ.get("PYTHONPATH", "")]))
    processes.end_in_order()
    path = options.records / f"{options.peer or 'apexrl'}.jsonl"
    asked = wanted(options)
    todo = asked if options.again else cells.missing(asked, cells.kept(path))
    print(f"{len(todo)} of {len(asked)} cells to run; the others have ended before\n{head()}", flush=True)
    run_all(todo, options, path)


if __name__ == "__main__":
    main()
