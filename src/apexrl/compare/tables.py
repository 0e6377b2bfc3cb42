"""The table of a comparison as Markdown, as JSON and for a terminal."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from rich.table import Table
from rich.text import Text

from apexrl.compare.charts import PICTURES
from apexrl.compare.outcome import Outcome
from apexrl.compare.plan import EQUAL, Arm, differences, several_agents, terms, told
from apexrl.compare.report import Report
from apexrl.config import Config
from apexrl.config.convert import flat
from apexrl.config.settings import as_flag
from apexrl.report.number_format import clock, count, number
from apexrl.run.atomic_files import replace_text
from apexrl.run.folder import env_name, versions

NONE: Final = "–"


class Column(NamedTuple):
    """One column: a figure of an arm."""

    title: str
    cell: Callable[[Sequence[Outcome], Report], str]  # of the arm's finished runs
    width: int = 0  # least width of a terminal that shows it


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean_of(name: str, spell: Callable[[float], str] = count) -> Callable[[Sequence[Outcome], Report], str]:
    def cell(runs: Sequence[Outcome], report: Report) -> str:
        value = _mean(getattr(run, name) for run in runs)
        return NONE if value is None else spell(value)

    return cell


def _each_of(name: str) -> Callable[[Sequence[Outcome], Report], str]:
    def cell(runs: Sequence[Outcome], report: Report) -> str:
        values = [getattr(run, name) for run in runs]
        mean = _mean(values)
        return number(mean) if mean is None or len(runs) < 2 else f"{number(mean)} ({', '.join(map(number, values))})"

    return cell


def _goal(runs: Sequence[Outcome], report: Report) -> str:
    steps, time = _goal_steps(runs, report), _goal_time(runs, report)
    return _reached(runs, report) if time == NONE else f"{_reached(runs, report)}: {steps}, {time}"


def _reached(runs: Sequence[Outcome], report: Report) -> str:
    there = sum(run.goal_env_steps is not None for run in runs)
    return NONE if report.plan.goal is None else f"{there} of {len(runs)}"


def _goal_steps(runs: Sequence[Outcome], report: Report) -> str:
    steps = [run.goal_env_steps for run in runs if run.goal_env_steps is not None]
    return count(median(steps)) if steps else NONE


def _goal_time(runs: Sequence[Outcome], report: Report) -> str:
    seconds = [run.goal_seconds for run in runs if run.goal_seconds is not None]
    return NONE if not seconds else clock(median(seconds)) if median(seconds) >= 100 else f"{median(seconds):.1f} s"


def _lag_max(runs: Sequence[Outcome], report: Report) -> str:
    largest = max((run.lag_max for run in runs if run.lag_max is not None), default=None)
    return NONE if largest is None else count(largest)


def _lag(runs: Sequence[Outcome], report: Report) -> str:
    mean, p95 = _mean(run.lag_mean for run in runs), _mean(run.lag_p95 for run in runs)
    return f"{number(mean)} / {number(p95)} / {_lag_max(runs, report)}"


def _restarts(runs: Sequence[Outcome], report: Report) -> str:
    return str(sum(run.restarts for run in runs))


_minutes = _mean_of("seconds", lambda seconds: f"{seconds / 60:.2f}")

COLUMNS: Final = (
    Column("return, best weights (each seed)", _each_of("final_return")),
    Column("return, last weights (each seed)", _each_of("last_return")),
    Column("goal: reached, env steps, time", _goal),
    Column("env steps", _mean_of("env_steps")),
    Column("updates", _mean_of("updates")),
    Column("minutes", _minutes),
    Column("env steps/s", _mean_of("env_steps_per_second")),
    Column("learned steps/s", _mean_of("learned_steps_per_second")),
    Column("policy lag: mean / p95 / max", _lag),
    Column("restarts", _restarts),
)
SCREEN: Final = (
    Column("return: best", _mean_of("final_return", number)),
    Column("last", _mean_of("last_return", number)),
    Column("goal", _reached),
    Column("goal time", _goal_time),
    Column("goal steps", _goal_steps, 100),
    Column("env steps", _mean_of("env_steps"), 150),
    Column("updates", _mean_of("updates"), 150),
    Column("minutes", _minutes, 150),
    Column("steps/s", _mean_of("env_steps_per_second")),
    Column("learned/s", _mean_of("learned_steps_per_second"), 100),
    Column("lag", _mean_of("lag_mean", number)),
    Column("p95", _mean_of("lag_p95", number), 120),
    Column("max", _lag_max, 120),
    Column("restarts", _restarts, 150),
)
"""For a terminal: one figure a column. The lines above the table have each seed."""

_ALWAYS: Final = ("actors", "envs_per_actor", "hidden", "env_steps", "minutes")  # listed even with their defaults


def rows(report: Report, columns: Sequence[Column] = COLUMNS) -> list[list[str]]:
    """Topology, agent, seeds and ``columns``, of every arm that was run."""
    found = []
    for arm in report.plan.arms:
        each = report.of(arm)
        whole = [run for run in each if not run.failure]
        if each:
            seeds = f"{len(whole)}" + (f" ({len(each) - len(whole)} failed)" if len(whole) < len(each) else "")
            found.append([arm.topology, arm.agent, seeds, *(column.cell(whole, report) for column in columns)])
    return found


def _header(columns: Sequence[Column]) -> list[str]:
    return ["topology", "agent", "seeds", *(column.title for column in columns)]


def for_terminal(report: Report, width: int) -> Table:
    """As many columns as ``width`` characters have room for."""
    columns = [column for column in SCREEN if width >= column.width]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for place, title in enumerate(_header(columns)):
        table.add_column(title, justify="left" if place < 3 else "right", overflow="fold")
    for row in rows(report, columns):
        table.add_row(*(Text(cell) for cell in row))
    return table


def in_markdown(report: Report) -> str:
    """The table alone."""
    return _markdown(_header(COLUMNS), rows(report))


def in_words(run: Outcome) -> str:
    """One outcome in a line."""
    if run.failure:
        return f"failed: {_brief(run.failure)}"
    words = [
        f"return: best weights {number(run.final_return)}, last weights {number(run.last_return)}",
        f"{count(run.env_steps)} steps in {clock(run.seconds)} ({count(run.env_steps_per_second or 0.0)}/s)",
        f"{count(run.updates)} updates",
    ]
    if run.goal_seconds is not None and run.goal_env_steps is not None:
        words.append(f"goal after {count(run.goal_env_steps)} steps, {clock(run.goal_seconds)}")
    if run.lag_mean is not None:
        words.append(f"lag {number(run.lag_mean)}")
    if run.restarts:
        words.append(f"{run.restarts} restarts")
    return ", ".join(words)


def failure(run: Outcome) -> str:
    """A failed run, with its name and the reason."""
    where = f" ({run.run})" if run.run else ""
    return f"{run.topology} · {run.agent}, seed {run.seed}, failed: {_brief(run.failure)}{where}"


def put_aside(arm: Arm) -> str:
    """The agent's settings that an arm does not use, so that all arms are equal."""
    flags = " ".join(as_flag(name, value) for name, value in arm.put_aside.items())
    return f"own settings of {arm.agent} are not used: {flags}"


def write(report: Report, out: Path) -> list[Path]:
    """Write ``compare.md`` and ``compare.json`` with the outcomes so far; returns their paths."""
    table, data = out / "compare.md", out / "compare.json"
    replace_text(table, _page(report, out))
    replace_text(data, json.dumps(_data(report), indent=1, allow_nan=False) + "\n")
    return [table, data]


def _page(report: Report, out: Path) -> str:
    plan = report.plan
    parts = [
        f"# {plan.env}: {', '.join(arm.label for arm in plan.arms)}",
        f"{terms(plan)}  ·  one run after another, seed by seed",
        *filter(None, [several_agents(plan)]),
        _machine(),
        in_markdown(report).rstrip(),
        "Means over the seeds; steps and time to the goal are medians of those that reached it. Return: mean of "
        f"{plan.config.evaluator.eval_episodes} episodes on fresh seeds, with the weights that did best in the run's "
        "own evaluations, and with the last ones. Goal: environment steps before, and time until, the first evaluation "
        "that reached it. Time counts from the first environment step, evaluations alongside. Learned steps: "
        "environment steps in the learner's batches, each as often as it was in one. Policy lag: in learner updates.",
    ]
    parts += ["\n".join(f"- {failure(run)}" for run in report.failed)] * bool(report.failed)
    if plan.left_out:
        parts.append(f"Left out: {'; '.join(told(label, why) for label, why in plan.left_out.items())}.")
    if report.missing:
        missing = ", ".join(f"{arm.label} seed {seed}" for arm, seed in report.missing)
        parts.append(f"Not run yet: {missing}. The same command resumes.")
    parts += [f"![{title}]({name})" for name, title in PICTURES.items() if (out / name).exists()]
    return "\n\n".join([*parts, *_settings(report)]) + "\n"


def _settings(report: Report) -> list[str]:
    """Settings that are equal, settings that are not used for that, and settings that differ."""
    plan = report.plan
    config, defaults = flat(plan.config), flat(Config())
    told = [name for name in EQUAL if name in _ALWAYS or config[name] != defaults[name]]
    same = [as_flag(name, config[name]) for name in told if name not in ("env", "env_kwargs")]
    parts = ["## Settings", f"The same for all, beside defaults: `--env {env_name(plan.config)} {' '.join(same)}`"]
    parts += [f"{arm.label}: {put_aside(arm)}." for arm in plan.arms if arm.put_aside]
    if different := differences(plan):
        header = ["differs", *(arm.label for arm in plan.arms)]
        lines = [[f"`{name}`", *(_spell(value) for value in values)] for name, values in different.items()]
        parts.append(_markdown(header, lines).rstrip())
        parts.append(f"{NONE}: not read by that arm. All settings are in each run's `config.toml`.")
    return parts


def _data(report: Report) -> dict[str, Any]:
    plan = report.plan
    stop = plan.config.stop
    return {
        "env": plan.env,
        "goal": plan.goal,
        "budget": {"minutes": stop.minutes, "env_steps": stop.env_steps},
        "seeds": list(plan.seeds),
        "arms": [{"topology": arm.topology, "agent": arm.agent} for arm in plan.arms],
        "recipe": plan.config.recipe,
        "left_out": dict(plan.left_out),
        "machine": _machine(),
        "runs": [run.to_json() for run in report.ordered],
        "missing": [{"topology": arm.topology, "agent": arm.agent, "seed": seed} for arm, seed in report.missing],
        "differences": {name: [_spell(value) for value in values] for name, values in differences(plan).items()},
    }


def _machine() -> str:
    known = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}; {known}"


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    text = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in text) + "\n"


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NONE if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)


def _brief(text: str) -> str:
    return text.strip().splitlines()[0][:300]
