"""Learning runs: ``apexrl train`` until a bar or a budget, kept as records, their table and their curves."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.lib import report, runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from apexrl.config import Config

Record = dict[str, Any]
Points = Sequence[tuple[str, float, float]]  # name, mean return at 1M env steps, standard deviation (0: not given)

VERSIONS = ("apexrl", "torch", "gymnasium", "mujoco", "minatar")
SLACK = 1.01  # the steps under way when the budget is spent are still made
SEEDS = ("#0b6e99", "#c26a3d", "#5a8f3c", "#7a4f9a", "#b23a48")

# Published means at 1M env steps, each on the HalfCheetah of its time: benchmark.md of DLR-RM/rl-baselines3-zoo,
# docs/rl-algorithms of CleanRL, examples/mujoco of Tianshou.
PUBLISHED: dict[tuple[str, str], Points] = {
    ("halfcheetah", "sac"): (("rl-zoo (v3)", 9535, 100), ("Tianshou", 12139, 1049)),
    ("halfcheetah", "td3"): (("rl-zoo (v3)", 9656, 970), ("CleanRL (v4)", 9583, 0), ("Tianshou", 10201, 0)),
}
PUBLISHED_AT = 1_000_000


def digest(config: Config, flags: Sequence[str]) -> str:
    """A hash that changes with any setting of a run."""
    from apexrl.config import convert

    return hashlib.sha256((convert.to_toml(config) + " ".join(flags)).encode()).hexdigest()[:16]


def kept(folder: Path) -> list[Record]:
    """Every record so far."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


class Planned(NamedTuple):
    """One run: its record, but for what it reaches, and how it is started."""

    record: Record
    config: Config
    preset: str
    flags: Sequence[str]
    limit: float
    """Seconds."""


def add_flags(parser: argparse.ArgumentParser, records: str) -> None:
    """The flags of every benchmark of learning runs, whose records are in the folder ``records``."""
    parser.add_argument("--env-steps", type=int, default=0, help="another budget; use other --records, too")
    parser.add_argument("--minutes", type=float, default=0.0, help="limit of one run (default: the part's)")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing; make table and pictures of what there is")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and pictures")
    parser.add_argument("--records", type=Path, default=report.RECORDS / records, help="folder for ended runs")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl train")


def run_missing(planned: Iterable[Planned], by: str, title: str, options: argparse.Namespace, jobs: int = 1) -> None:
    """Run what has no record with the same settings, ``jobs`` at a time; each is kept as soon as it has ended.

    Args:
        by: what the records compare: ``agent`` or ``topology``.
        title: of the benchmark, with which the names of its runs begin.
    """
    folder = options.records
    folder.mkdir(parents=True, exist_ok=True)
    have = [] if options.again else [tuple(record[key] for key in _key(by)) for record in kept(folder)]
    wanted = [plan for plan in planned if tuple(plan.record[key] for key in _key(by)) not in have]
    interrupted = threading.Event()

    def one(plan: Planned) -> None:
        name = "-".join(str(plan.record[key]) for key in ("part", by, "seed"))
        record = measure(plan.record, plan.config, plan.preset, f"{title}-{name}", plan.flags, plan.limit)
        if interrupted.is_set():  # then the run was, too
            return
        (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
        print(f"{name}, agent {record['agent']}: {in_words(record)}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for done in [pool.submit(one, plan) for plan in wanted]:
                done.result()
        except BaseException:
            interrupted.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _key(by: str) -> tuple[str, ...]:
    return ("part", by, "seed", "settings")


def measure(record: Record, config: Config, preset: str, run_name: str, flags: Sequence[str], limit: float) -> Record:
    """Run to the end; returns ``record`` with what was reached, or with how the run failed."""
    record |= {
        "env": str(config.env.env).rpartition(":")[2],
        "machine": report.machine(),
        "versions": {of: report.version(of) for of in VERSIONS},
    }
    try:
        summary = runs.train(preset, run_name, flags, limit)
    except (runs.RunFailed, subprocess.TimeoutExpired) as error:
        return record | {"failure": str(error)[-2000:]}
    curve = [(row["env_steps"], row["mean"]) for row in runs.evaluations(runs.RUNS / run_name)]
    reached = [steps for steps, mean in curve if record["bar"] is not None and mean >= record["bar"]]
    return record | {
        "failure": "",
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "minutes": summary["wall_seconds"] / 60,
        "startup_seconds": summary["startup_seconds"],
        "stopped_by": summary["stopped_by"],
        "final": summary["final_eval_return"],
        "best": summary["best_eval_return"],
        "lag": summary["policy_lag"]["mean"],
        "to_bar": reached[0] if reached else None,
        "curve": curve,
    }


def solved(record: Record) -> bool:
    """The final evaluation reached the bar, and the budget was kept."""
    if record["failure"] or record["bar"] is None or record["final"] is None:
        return False
    return bool(record["final"] >= record["bar"] and record["env_steps"] <= SLACK * record["budget"])


def in_words(record: Record) -> str:
    """One run, for a person who watches."""
    if record["failure"]:
        return f"FAILED: {record['failure'].strip().splitlines()[-1]}"
    end = f"{_return(record)} after {record['env_steps']:,} steps, {record['minutes']:.1f} min ({record['stopped_by']})"
    return end if record["bar"] is None else f"{'solved' if solved(record) else 'NOT solved'}: {end}"


def write(
    table: str,
    kind: str,
    records: Sequence[Record],
    order: Mapping[str, Sequence[str]],
    out: Path,
    minutes: Mapping[str, float] | None = None,
) -> None:
    """``TABLE.md``, ``TABLE.json`` and a picture for each part that has runs.

    Args:
        table: name of the table.
        kind: ``agent`` or ``topology``: what a row is about.
        records: runs of all parts.
        order: rows of each part.
        out: folder.
        minutes: that runs of a part may take.
    """
    lags = kind == "topology"
    rows, pictures = [], []
    for part, names in order.items():
        of_part = [record for record in records if record["part"] == part]
        drawn = {}
        for name in names:
            each = sorted((r for r in of_part if r[kind] == name), key=lambda record: int(record["seed"]))
            if each:
                rows.append(_row(each, lags))
                drawn[f"{name}, {each[0]['agent']}" if lags else name] = each
        if drawn:
            out.mkdir(parents=True, exist_ok=True)
            picture = out / f"{'topologies' if lags else 'agents'}-{part}.png"
            _draw(part, drawn).savefig(picture, dpi=130, facecolor="white")
            pictures.append(f"![Return against environment steps: {part}](images/{picture.name})\n")
    header = [
        "environment, bar, budget", "topology, agent" if lags else "agent", "solved", "final return, each seed",
        "env steps to the bar", "env steps", "updates", *(["policy lag, updates"] if lags else []), "minutes",
    ]  # fmt: skip
    lines = [_head(records, lags), report.table(header, rows), *_failures(records, minutes or {}), *pictures]
    report.save(table, "\n".join(lines), list(records), None, out)


def _head(records: Sequence[Record], lags: bool) -> str:
    return (
        f"{report.made_with(records)}.\n"
        "Final return: mean of 20 greedy episodes on seeds never used before, with the weights that did best in the "
        "run's own evaluations. Solved: it reaches the bar within the budget of environment steps; ✗ did not. Steps, "
        f"updates{', lag' if lags else ''} and minutes are medians over seeds (least–greatest); "
        f"{'lag: mean over all steps learned from; ' if lags else ''}"
        "minutes count from the first step, evaluations alongside.\n"
    )


def _row(each: Sequence[Record], lags: bool) -> list[str]:
    first = each[0]
    done = [record for record in each if not record["failure"]]
    bar, budget = first["bar"], _round_steps(max(record["budget"] for record in each))
    shared = max(record.get("jobs", 1) for record in each)

    def spread(what: str) -> str:
        values = [record[what] for record in done if record[what] is not None]
        return report.spread(values) if values else "–"

    return [
        f"{first['env']}, {budget} steps" if bar is None else f"{first['env']}, ≥ {bar:g} in {budget}",
        f"`{first['topology']}`, `{first['agent']}`" if lags else f"`{first['agent']}`",
        "–" if bar is None else f"{sum(map(solved, each))} of {len(each)}",
        ", ".join(_return(record) for record in each),
        *map(spread, ("to_bar", "env_steps", "updates", *(["lag"] if lags else []))),
        spread("minutes") + (f", {shared} runs at once" if shared > 1 else ""),
    ]


def _failures(records: Sequence[Record], minutes: Mapping[str, float]) -> list[str]:
    """Runs that missed the bar or took too long, by name."""
    lines = []
    for record in records:
        with_topology = f"`{record['topology']}` with " if "topology" in record else ""
        who = f"- {with_topology}`{record['agent']}` on {record['env']}, seed {record['seed']}"
        allowed = minutes.get(record["part"], math.inf)
        if record["failure"]:
            lines.append(f"{who}: the run failed: {record['failure'].strip().splitlines()[-1]}")
        elif record["bar"] is not None and not solved(record):
            best = "never evaluated" if record["best"] is None else f"its best evaluation was {record['best']:.4g}"
            over = "" if record["env_steps"] <= SLACK * record["budget"] else ", beyond its budget"
            lines.append(
                f"{who}: {_return(record)} after {record['env_steps']:,} steps{over} (ended by "
                f"`{record['stopped_by']}`); {best}"
            )
        elif record["minutes"] > allowed:
            lines.append(f"{who}: took {record['minutes']:.1f} minutes, and {allowed:g} are allowed")
    return ["Not solved, or not in time:\n", *lines, ""] if lines else []


def _return(record: Record) -> str:
    if record["failure"]:
        return "failed ✗"
    if record["final"] is None:
        return "none ✗"
    text = f"{record['final']:.1f}" if abs(record["final"]) < 1000 else f"{record['final']:.0f}"
    return text if record["bar"] is None or solved(record) else f"{text} ✗"


def _round_steps(steps: float) -> str:
    """200k, 1M."""
    return f"{steps / 1e6:g}M" if steps >= 1e6 else f"{steps / 1e3:g}k" if steps else "0"


def _draw(part: str, agents: Mapping[str, Sequence[Record]]) -> Figure:
    """A panel an agent, a line a seed, a star the final evaluation on fresh seeds."""
    report.style()
    import matplotlib.pyplot as plt

    rows = math.ceil(len(agents) / 5)
    columns = math.ceil(len(agents) / rows)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.0 + 2.5 * max(columns, 2), 0.5 + 2.2 * rows), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis in axes.flat[len(agents) :]:
        axis.remove()
    for axis, (agent, each) in zip(axes.flat, agents.items(), strict=False):
        _panel(axis, each, PUBLISHED.get((part, agent), ()), legend=axis is axes.flat[0])
        axis.set_title(agent if each[0]["bar"] is None else f"{agent}: {sum(map(solved, each))} of {len(each)}")
    first = next(iter(agents.values()))[0]
    ends = [record["env_steps"] for each in agents.values() for record in each if not record["failure"]]
    if first["part"] in {of for of, _ in PUBLISHED}:
        ends.append(PUBLISHED_AT)
    axes.flat[0].set_xlim(0, 1.04 * max(ends, default=first["budget"]))
    figure.supxlabel(f"environment steps of {first['env']}", fontsize=9)
    figure.supylabel("greedy return", fontsize=9)
    return figure


def _panel(axis: Axes, each: Sequence[Record], published: Points, legend: bool) -> None:
    bar = each[0]["bar"]
    if bar is not None:
        axis.axhline(bar, color=report.FAINT, linewidth=1, linestyle="--")
    for record in each:
        color = SEEDS[(record["seed"] - 1) % len(SEEDS)]
        if record["failure"]:
            continue
        steps, returns = zip(*record["curve"], strict=True) if record["curve"] else ((), ())
        axis.plot(steps, returns, color=color, linewidth=1.2, alpha=0.85, label=f"seed {record['seed']}")
        if record["final"] is not None:
            axis.plot(record["env_steps"], record["final"], "*", color=color, markersize=9, markeredgecolor="white")
    for place, (name, mean, deviation) in enumerate(published):
        axis.errorbar(
            PUBLISHED_AT, mean, deviation or None, fmt="sD^"[place], color=report.FAINT, capsize=3, markersize=5,
            label=f"{name}: {mean:,.0f}",
        )  # fmt: skip
    axis.xaxis.set_major_formatter(lambda value, _: _round_steps(value))
    axis.locator_params(axis="x", nbins=4)
    if legend or published:
        axis.legend(loc="lower right", fontsize=7)
