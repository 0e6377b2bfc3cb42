"""What becomes of a run when what is around it fails, in one command.

    python benchmarks/faults/run.py                      # all cases; an hour and a half
    python benchmarks/faults/run.py --cases disk,resumes --again
    python benchmarks/faults/run.py --stop-seconds 10 --kill-minutes 2      # a rehearsal

Every case is a CartPole run (``apexrl train … --resume-or-start``, or ``apexrl learner`` and ``apexrl actor``) that an
observer outside of it watches. A fault, then its end; then the run must make steps and write checkpoints again, end
with Ctrl-C and a summary, and leave nothing behind. A checkpoint counts as lost when it was complete once and neither
it nor a newer one is there, or when a later generation began behind it. Needs root: it mounts small disks and makes a
memory group.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.faults import cases
from benchmarks.faults.cases import Outcome
from benchmarks.lib import processes, report

Row = dict[str, Any]
Body = Callable[[Path, Outcome], Outcome]

STOPPED: dict[str, tuple[str, ...]] = {
    "apex": (),
    "impala": (),
    "gorila": ("--learners", "2", "--parameter-servers", "2"),
    "a3c": (),
    "ga3c": (),
    "seed": (),
    "sample_factory": (),
}
"""Topologies whose roles are stopped, and what makes them have all of their roles."""

KILLED = ("apex", "impala", "gorila", "seed", "sample_factory")
"""Topologies that share the minutes of random kills."""


def every(options: argparse.Namespace) -> Iterator[tuple[str, str, Body]]:
    """All cases: a short name for ``--cases``, what it does in words, and the case."""
    yield "terminal", "terminal closed, under nohup", partial(cases.hung_up, nohup=True, terminal=True)
    yield "terminal", "terminal closed", partial(cases.hung_up, nohup=False, terminal=True)
    yield "sighup", "SIGHUP, under nohup", partial(cases.hung_up, nohup=True, terminal=False)
    yield "sighup", "SIGHUP", partial(cases.hung_up, nohup=False, terminal=False)
    yield "disk", "disk full for 20 s", partial(cases.disk_full, at_the_end=False)
    yield "disk", "disk full until the end", partial(cases.disk_full, at_the_end=True)
    yield "folder", "folder unmounted for 20 s", cases.unmounted
    yield "resumes", "two resumes of one folder", cases.two_resumes
    yield "memory", "memory group too small for the replay", cases.memory_group_too_small
    yield "partition", "learner cut off from Redis and replaced", cases.learner_replaced
    yield "redis", "Redis out of memory for 15 s, three times", cases.redis_out_of_memory
    for topology, flags in STOPPED.items():
        what = f"SIGSTOP for {options.stop_seconds:g} s, {topology}"
        yield (
            f"stop-{topology}",
            what,
            partial(cases.stopped, topology=topology, seconds=options.stop_seconds, flags=flags),
        )
    share = 60.0 * options.kill_minutes / len(KILLED)
    for number, topology in enumerate(KILLED):
        what = f"SIGKILL at random for {share / 60:g} min, {topology}"
        yield f"kill-{topology}", what, partial(cases.killed_at_random, topology=topology, seconds=share, seed=number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="only these: disk,resumes,stop-seed; stop: all of stop-…")
    parser.add_argument("--stop-seconds", type=float, default=60.0, help="how long a role is stopped")
    parser.add_argument("--kill-minutes", type=float, default=20.0, help="of random kills, all topologies together")
    parser.add_argument("--again", action="store_true", help="also what a previous call has measured")
    parser.add_argument("--table", action="store_true", help="only write the table of what there is")
    parser.add_argument("--out", type=Path, default=report.OUT)
    options = parser.parse_args()
    processes.end_in_order()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "run-faults-state.json"
    rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    wanted = list(filter(None, options.cases.split(",")))
    known = list(every(options))
    for word in wanted:
        if not any(_means(word, short) for short, _, _ in known):
            parser.error(f"unknown case {word}; there are {', '.join(dict.fromkeys(short for short, _, _ in known))}")
    for short, what, body in [] if options.table else known:
        chosen = not wanted or any(_means(word, short) for word in wanted)
        if not chosen or (what in rows and not options.again):
            continue
        rows[what] = one(what, body)
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    write([rows[what] for _, what, _ in known if what in rows], options.out)
    sys.exit(any(not row["good"] for row in rows.values()))


def _means(word: str, short: str) -> bool:
    return short == word or short.startswith(f"{word}-")


def one(what: str, body: Body) -> Row:
    """Run one case in a folder of its own, which is kept when something went wrong."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="apexrl-faults-"))
    outcome = Outcome(what, "")
    try:
        outcome = body(folder, outcome)
    except Exception as error:  # the campaign goes on with the next case
        outcome.wrong.append(f"{type(error).__name__}: {error}")
        outcome.lost_runs = 1
    outcome.seconds = time.monotonic() - began
    row = {**asdict(outcome), "good": outcome.good}
    if outcome.good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"  kept: {folder}", flush=True)
    troubles = [*outcome.hangs, *outcome.lost_checkpoints, *outcome.left, *outcome.wrong]
    print(f"{what}: {'good' if outcome.good else '; '.join(troubles)} ({outcome.seconds:.0f} s)", flush=True)
    return row


def write(rows: list[Row], out: Path) -> None:
    table = [
        [
            row["case"],
            f"{row['kills']}" if row["kills"] else "–",
            f"{row['starts']}",
            *(
                f"{count}"
                for count in (row["lost_runs"], *map(len, (row["lost_checkpoints"], row["hangs"], row["left"])))
            ),
            "; ".join([*row["hangs"], *row["lost_checkpoints"], *row["wrong"]]) or "as it should",
        ]
        for row in rows
    ]
    total = [sum(len(row[key]) for row in rows) for key in ("lost_checkpoints", "hangs", "left")]
    lost = sum(row["lost_runs"] for row in rows)
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'torch', 'redis')}.\n"
        f"{len(rows)} runs, {sum(row['kills'] for row in rows)} signals: {lost} runs lost, "
        f"{total[0]} checkpoints lost, {total[1]} hangs, {total[2]} left behind.\n\n"
    )
    header = ["fault", "signals", "starts", "runs lost", "checkpoints lost", "hangs", "left behind", "outcome"]
    report.save("run-faults", text + report.table(header, table), rows, None, out)


if __name__ == "__main__":
    main()
