"""The table and the pictures of ``agents.py``, from the records that it keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def solved(record: Record) -> bool:
    """The final evaluation reached the bar, and the budget was kept."""
    return not record["failure"] and _reached(record) and bool(record["env_steps"] <= SLACK * record["budget"])


def in_words(record: Record) -> str:
    """One run, for a person who watches."""
    if record["failure"]:
        return f"FAILED: {record['failure'].strip().splitlines()[-1]}"
    end = f"{_return(record)} after {record['env_steps']:,} steps, {record['minutes']:.1f} min ({record['stopped_by']})"
    return end if record["bar"] is None else f"{'solved' if solved(record) else 'NOT solved'}: {end}"


def write(table: str, records: Sequence[Record], order: Mapping[str, Sequence[str]], out: Path) -> None:
    """``TABLE.md``, ``TABLE.json`` and a picture for each part that has runs."""
    cells = {(part, agent): _of(records, part, agent) for part, agents in order.items() for agent in agents}
    parts = [part for part in order if any(cells[part, agent] for agent in order[part])]
    rows = [_row(cells[part, a], part) for part in parts for a in order[part] if cells[part, a]]
    lines = [_head(records), report.table(HEADER, rows), *_failures(records)]
    out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        drawn = {agent: cells[part, agent] for agent in order[part] if cells[part, agent]}
        picture = out / f"agents-{part}.png"
        draw(part, drawn).savefig(picture, dpi=130, facecolor="white")
        lines.append(f"![Return against environment steps: {part}](images/{picture.name})\n")
    report.save(table, "\n".join(lines), list(records), None, out)


HEADER = (
    "environment, bar, budget", "agent", "solved", "final return, each seed", "env steps to the bar", "env steps",
    "updates", "minutes",
)  # fmt: skip


def _head(records: Sequence[Record]) -> str:
    machines = sorted({record["machine"] for record in records})
    used = {name: sorted({r["versions"].get(name) or "–" for r in records}) for name in VERSIONS}
    versions = ", ".join(f"{name} {'/'.join(numbers)}" for name, numbers in used.items() if numbers != ["–"])
    return (
        f"{'; '.join(machines)}; {versions}.\n"
        "Final return: mean of 20 greedy episodes on seeds never used before, with the weights that did best in the "
        "run's own evaluations. Solved: it reaches the bar within the budget; ✗ did not. Steps, updates and minutes "
        "are medians over seeds (least–greatest); minutes count from the first step, evaluations alongside.\n"
    )


def _row(each: Sequence[Record], part: str) -> list[str]:
    first = each[0]
    done = [record for record in each if not record["failure"]]
    bar, budget = first["bar"], round_steps(max(record["budget"] for record in each))
    reached = [record["to_bar"] for record in done if record["to_bar"] is not None]
    shared = max(record["jobs"] for record in each)
    minutes = _spread([record["minutes"] for record in done])
    return [
        f"{first['env']}, {budget} steps" if bar is None else f"{first['env']}, ≥ {bar:g} in {budget}",
        f"`{first['agent']}`",
        "–" if bar is None else f"{sum(map(solved, each))} of {len(each)}",
        ", ".join(_return(record) for record in each),
        "–" if not reached else _spread(reached),
        _spread([record["env_steps"] for record in done]),
        _spread([record["updates"] for record in done]),
        minutes + (f", {shared} runs at once" if shared > 1 else ""),
    ]


def _failures(records: Sequence[Record]) -> list[str]:
    """What did not work, by name."""
    lines = []
    for record in records:
        who = f"`{record['agent']}` on {record['env']}, seed {record['seed']}"
        if record["failure"]:
            lines.append(f"- {who}: the run failed: {record['failure'].strip().splitlines()[-1]}")
        elif record["bar"] is not None and not solved(record):
            best = "never evaluated" if record["best"] is None else f"its best evaluation was {record['best']:.4g}"
            over = "" if record["env_steps"] <= SLACK * record["budget"] else ", beyond its budget"
            lines.append(
                f"- {who}: {_return(record)} after {record['env_steps']:,} steps{over} (ended by "
                f"`{record['stopped_by']}`); {best}"
            )
    return ["Not solved:\n", *lines, ""] if lines else []


def draw(part: str, agents: Mapping[str, Sequence[Record]]) -> Figure:
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
        steps, returns = _columns(record["curve"])
        axis.plot(steps, returns, color=color, linewidth=1.2, alpha=0.85, label=f"seed {record['seed']}")
        if record["final"] is not None:
            axis.plot(record["env_steps"], record["final"], "*", color=color, markersize=9, markeredgecolor="white")
    for place, (name, mean, deviation) in enumerate(published):
        axis.errorbar(
            PUBLISHED_AT, mean, deviation or None, fmt="sD^"[place], color=report.FAINT, capsize=3, markersize=5,
            label=f"{name}: {mean:,.0f}",
        )  # fmt: skip
    axis.xaxis.set_major_formatter(lambda value, _: round_steps(value))
    axis.locator_params(axis="x", nbins=4)
    if legend or published:
        axis.legend(loc="lower right", fontsize=7)


def _of(records: Iterable[Record], part: str, agent: str) -> list[Record]:
    return sorted((r for r in records if r["part"] == part and r["agent"] == agent), key=lambda r: int(r["seed"]))


def _reached(record: Record) -> bool:
    return record["bar"] is not None and record["final"] is not None and bool(record["final"] >= record["bar"])


def _return(record: Record) -> str:
    if record["failure"]:
        return "failed ✗"
    if record["final"] is None:
        return "none ✗"
    text = f"{record['final']:.1f}" if abs(record["final"]) < 1000 else f"{record['final']:.0f}"
    return text if record["bar"] is None or solved(record) else f"{text} ✗"


def round_steps(steps: float) -> str:
    """200k, 1M."""
    return f"{steps / 1e6:g}M" if steps >= 1e6 else f"{steps / 1e3:g}k" if steps else "0"


def _spread(values: Sequence[float]) -> str:
    return report.spread(values) if values else "–"


def _columns(curve: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in curve], [point[1] for point in curve]
