"""Scores on the environments that papers report, beside what they have published.

    python benchmarks/scores/run.py --rows halfcheetah-v5-sac-apex --seeds 1 2     # one row: minutes to hours
    python benchmarks/scores/run.py                                                 # all rows, five seeds: days
    python benchmarks/scores/run.py --table                                         # table and pictures anew

A run is ``apexrl train --env … --agent … --topology … --env-steps … --seed …`` with the flags that the table shows. An
ended run is a line in ``benchmarks/records/scores/runs.jsonl`` and is not run again, unless ``--again`` or it failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from apexrl.evaluation.scores import bootstrapped_iqm
from benchmarks.generality.cells import ROOT, commit, keep
from benchmarks.lib import report, runs
from benchmarks.scores.rows import ROWS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
PATH = report.RECORDS / "scores" / "runs.jsonl"
VERSIONS = ("apexrl", "torch", "gymnasium", "mujoco", "minatar", "ale-py", "dm_control")


def words(row: Row, seed: int) -> list[str]:
    """The words behind ``apexrl train``."""
    given = [] if row.preset else ["--env", row.env]
    given += ["--agent", row.agent, "--topology", row.topology, "--env-steps", str(row.env_steps), "--seed", str(seed)]
    return [*given, *row.flags]


def run(row: Row, seed: int, options: argparse.Namespace) -> Record:
    """Run it to its end."""
    name = f"scores-{row.name}-{seed}"
    device = "cuda" if row.variant == "gpu" else "cpu"
    record: Record = {
        "row": row.name, "seed": seed, "command": " ".join(words(row, seed)), "machine": report.machine(device),
        "commit": commit(), "versions": {of: report.version(of) for of in VERSIONS}, "failure": "",
        "shared": options.shared or options.jobs > 1,
    }  # fmt: skip
    try:
        summary = runs.train(row.preset, name, words(row, seed), 60 * options.minutes)
    except (runs.RunFailed, subprocess.TimeoutExpired) as error:
        return record | {"failure": str(error)[-2000:]}
    return record | {
        "steps": summary["env_steps"],
        "updates": summary["updates"],
        "seconds": summary["wall_seconds"],
        "stopped_by": summary["stopped_by"],
        "best": summary["final_eval_return"],
        "last": summary.get("last_weights_return"),
        "curve": [
            (each["env_steps"], each["wall_seconds"], each["mean"]) for each in runs.evaluations(runs.RUNS / name)
        ],
    }


def kept(path: Path) -> list[Record]:
    """The newest record of each row and seed."""
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({(record["row"], record["seed"]): record for record in lines}.values())


def as_table(records: Sequence[Record]) -> str:
    """A line for each row that was run, failures with it."""
    lines = []
    for row in ROWS:
        each = sorted((record for record in records if record["row"] == row.name), key=lambda one: one["seed"])
        ran = [record for record in each if not record["failure"]]
        if not each:
            continue
        hours = [record["seconds"] / 3600 for record in ran]
        beside = ", beside other work" if any(record["shared"] for record in ran) else ""
        lines.append(
            [
                f"`{row.env}`",
                f"`{row.agent}`, `{row.topology}`" + (f" `{' '.join(row.flags)}`" if row.flags else ""),
                report.spread([record["steps"] for record in ran]) if ran else "–",
                f"{len(ran)}" + (f" and {len(each) - len(ran)} failed" if len(ran) < len(each) else ""),
                _interval(ran, "best"),
                _interval(ran, "last"),
                ", ".join(f"{record['best']:.4g}" for record in ran),
                "; ".join(
                    f"{of.name}: {of.points[-1][1]:g} at {report.short(of.points[-1][0])}" for of in row.published
                ),
                (report.spread(hours) if hours else "–") + beside,
            ]
        )
    head = ["environment", "agent, topology", "env steps", "seeds", "best weights, IQM", "last weights, IQM",
            "best weights, each seed", "published", "hours"]  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def _interval(records: Sequence[Record], what: str) -> str:
    values = [record[what] for record in records if record.get(what) is not None]
    if not values:
        return "–"
    found = bootstrapped_iqm([values])
    return f"**{found.value:.4g}**" + (f" ({found.low:.4g}–{found.high:.4g})" if len(values) > 1 else "")


def draw(rows: Sequence[Row], records: Sequence[Record]) -> Figure:
    """A line of panels for each environment: return over steps, and over hours; published returns are marks."""
    report.style()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(rows), 2, figsize=(9, 0.6 + 2.4 * len(rows)), squeeze=False, layout="constrained")
    for row, (by_steps, by_hours) in zip(rows, axes, strict=True):
        for record in (one for one in records if one["row"] == row.name and not one["failure"] and one["curve"]):
            steps, seconds, returns = zip(*record["curve"], strict=True)
            by_steps.plot(steps, returns, color=report.OURS, linewidth=1, alpha=0.8)
            by_hours.plot([second / 3600 for second in seconds], returns, color=report.OURS, linewidth=1, alpha=0.8)
        for number, of in enumerate(row.published):
            by_steps.plot(*zip(*of.points, strict=True), "sD^"[number] + "--", color=report.THEIRS, label=of.name)
        by_steps.set_title(f"{row.env}: {row.agent} in {row.topology} {row.variant.upper()}".rstrip(), fontsize=9)
        by_steps.set_xlabel("environment steps", fontsize=8)
        by_hours.set_xlabel("hours", fontsize=8)
        by_steps.xaxis.set_major_formatter(lambda value, _: report.short(value) if value else "0")
        if row.published:
            by_steps.legend(loc="lower right", fontsize=7)
    return figure


def write(records: Sequence[Record], out: Path) -> None:
    """``scores.md`` and ``scores.png``."""
    out.mkdir(parents=True, exist_ok=True)
    text = f"{report.made_with(records)}.\n\n{as_table(records)}\n"
    rows = [row for row in ROWS if any(record["row"] == row.name and not record["failure"] for record in records)]
    if rows:
        draw(rows, records).savefig(out / "scores.png", dpi=110, facecolor="white")
        text += "\n![Return over environment steps and over hours](images/scores.png)\n"
    (out / "scores.md").write_text(text, encoding="utf-8")


def main() -> None:
    names, usual = [row.name for row in ROWS], [row.name for row in ROWS if not row.variant]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=names, default=usual, metavar="ROW", help="; ".join(names))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--minutes", type=float, default=600.0, help="that one run may take (default: 600)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; their hours are marked as shared")
    parser.add_argument("--shared", action="store_true", help="the machine does other work: mark the hours so, too")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing; make table and pictures of what there is")
    parser.add_argument("--records", type=Path, default=PATH)
    parser.add_argument("--out", type=Path, default=report.OUT)
    options = parser.parse_args()
    # Workers of a run find the environments of this folder there, wherever they start.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    if not options.table:
        done = {(record["row"], record["seed"]) for record in kept(options.records) if not record["failure"]}
        todo = [(row, seed) for seed in options.seeds for row in ROWS if row.name in options.rows]
        lock = Lock()

        def one(row: Row, seed: int) -> None:
            record = run(row, seed, options)
            with lock:
                keep(options.records, record)
                said = (
                    record["failure"] or f"{record['best']} after {record['steps']:,} steps, {record['seconds']:.0f} s"
                )
                print(row.name, seed, said, flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda each: one(*each), [e for e in todo if options.again or (e[0].name, e[1]) not in done]))
    if records := kept(options.records):
        write(records, options.out)


if __name__ == "__main__":
    main()
