"""The table and the pictures of the learning runs of ``topologies.py``, from the records that it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import agents_report

import report

Record = dict[str, Any]
MINUTES = 3.0  # that CartPole may take on two cores
HEADER = (
    "environment, bar, budget", "topology, agent", "solved", "final return, each seed", "env steps to the bar",
    "env steps", "updates", "policy lag, updates", "minutes",
)  # fmt: skip


def write(records: Sequence[Record], order: Mapping[str, Sequence[str]], out: Path) -> None:
    """``topologies.md``, ``topologies.json`` and a picture for each part that has runs."""
    rows, pictures = [], []
    for part, topologies in order.items():
        drawn = {}
        for topology in topologies:
            each = [r for r in records if r["part"] == part and r["topology"] == topology]
            if each:
                each.sort(key=lambda record: int(record["seed"]))
                rows.append(_row(each))
                drawn[f"{topology}, {each[0]['agent']}"] = each
        if drawn:
            out.mkdir(parents=True, exist_ok=True)
            picture = out / f"topologies-{part}.png"
            agents_report.draw(part, drawn).savefig(picture, dpi=130, facecolor="white")
            pictures.append(f"![Return against environment steps: {part}](images/{picture.name})\n")
    lines = [_head(records), report.table(HEADER, rows), *_failures(records), *pictures]
    report.save("topologies", "\n".join(lines), list(records), None, out)


def _head(records: Sequence[Record]) -> str:
    machines = sorted({record["machine"] for record in records})
    used = {
        name: sorted({r["versions"].get(name) or "–" for r in records}) for name in ("apexrl", "torch", "gymnasium")
    }
    versions = ", ".join(f"{name} {'/'.join(numbers)}" for name, numbers in used.items())
    return (
        f"{'; '.join(machines)}; {versions}.\n"
        "Final return: mean of 20 greedy episodes on seeds never used before, with the weights that did best in the "
        "run's own evaluations. Solved: it reaches the bar within the budget of environment steps; ✗ did not. Steps, "
        "updates, lag and minutes are medians over seeds (least–greatest); lag: mean over all steps learned from; "
        "minutes count from the first step, evaluations alongside.\n"
    )


def _row(each: Sequence[Record]) -> list[str]:
    first = each[0]
    done = [record for record in each if not record["failure"]]
    reached = [record["to_bar"] for record in done if record["to_bar"] is not None]
    lags = [record["lag"] for record in done if record["lag"] is not None]
    return [
        f"{first['env']}, ≥ {first['bar']:g} in {agents_report.round_steps(max(r['budget'] for r in each))}",
        f"`{first['topology']}`, `{first['agent']}`",
        f"{sum(map(agents_report.solved, each))} of {len(each)}",
        ", ".join(_final(record) for record in each),
        _spread(reached),
        _spread([record["env_steps"] for record in done]),
        _spread([record["updates"] for record in done]),
        _spread(lags),
        _spread([record["minutes"] for record in done]),
    ]


def _failures(records: Sequence[Record]) -> list[str]:
    """What did not work, or took too long, by name."""
    lines = []
    for record in records:
        who = f"`{record['topology']}` with `{record['agent']}` on {record['env']}, seed {record['seed']}"
        if record["failure"]:
            lines.append(f"- {who}: the run failed: {record['failure'].strip().splitlines()[-1]}")
        elif not agents_report.solved(record):
            lines.append(f"- {who}: {agents_report.in_words(record)}; its best evaluation was {record['best']}")
        elif record["part"] == "cartpole" and record["minutes"] > MINUTES:
            lines.append(f"- {who}: took {record['minutes']:.1f} minutes, and {MINUTES:g} are allowed")
    return ["Not as it should be:\n", *lines, ""] if lines else []


def _final(record: Record) -> str:
    if record["failure"] or record["final"] is None:
        return "failed ✗"
    return f"{record['final']:.1f}" + ("" if agents_report.solved(record) else " ✗")


def _spread(values: Sequence[float]) -> str:
    return report.spread(values) if values else "–"
