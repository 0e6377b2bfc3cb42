"""What a study has found: a table of its trials, the best settings, and how much each setting matters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from apexrl.config.convert import to_toml
from apexrl.report.number_format import clock, count
from apexrl.run.atomic_files import replace_text
from apexrl.sweep.plan import Plan
from apexrl.sweep.population import best_member, rounds_of
from apexrl.sweep.study import Study

BEST_FILE: Final = "best.toml"

_WIDTHS: Final = {"trial": 5, "state": 8, "steps": 5, "time": 5}

_WORDS: Final = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.WAITING: "waiting",
}


def best(study: Study) -> FrozenTrial | None:
    """The best trial that came to its end; of equals the one whose curve rose fastest."""
    ended = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    return max(ended, key=lambda trial: (trial.value, trial.user_attrs.get("area", 0.0)), default=None)


def write_best(study: Study) -> Path | None:
    """Write the best trial's settings as a configuration for ``apexrl train``; None: no trial has come to its end."""
    trial = best(study)
    if trial is None:
        return None
    config = study.plan.runs(trial.number, study.settings(trial), study.folder)[0]
    comment = f"Trial {trial.number} of {study.folder.name}: {study.plan.objective} {trial.value:.6g}."
    path = study.folder / BEST_FILE
    replace_text(path, to_toml(replace(config, name="", out="runs"), comment))
    return path


def show(study: Study, console: Console) -> None:
    """Print the table of trials, the best settings and what matters."""
    plan = study.plan
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("trial", "state", plan.objective, *(one.setting for one in plan.space), "steps", "time"):
        _add_column(table, name)
    winner = best(study)
    for trial in study.trials:
        style = "green" if winner is not None and trial.number == winner.number else ""
        table.add_row(*_row(study, trial), style=style)
    console.print(table)
    for trial in study.trials:
        if why := trial.user_attrs.get("why"):
            console.print(f"trial {trial.number} failed: {why}", style="red", markup=False)
    if shares := study.importances():
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        console.print(f"what matters: {told}", markup=False)
    if (path := write_best(study)) is not None and winner is not None:
        console.print(f"best: trial {winner.number}. Train with its settings: apexrl train {path}", markup=False)


def show_population(folder: Path, plan: Plan, console: Console) -> None:
    """Print what each member was worth after each round, whose state it took over, and its settings now."""
    rounds = rounds_of(folder)
    table = Table(box=None, pad_edge=False, header_style="bold")
    ended = [one for one in rounds if one.number]
    for name in ("member", *(f"round {one.number}" for one in ended), *(one.setting for one in plan.space)):
        _add_column(table, name)
    winner = best_member(folder)
    for member in range(plan.trials):
        cells = []
        for one in ended:
            was = one.members[member]
            score = "failed" if was.score is None else f"{was.score:.4g}"
            cells.append(score if was.takes_over is None else f"{score} → {was.takes_over}")
        now = rounds[-1].members[member].next if rounds else {}
        style = "green" if winner is not None and winner.name == f"member-{member}" else ""
        table.add_row(str(member), *cells, *(_shown(now.get(one.setting)) for one in plan.space), style=style)
    console.print(table)
    if any(one.takes_over is not None for each in ended for one in each.members):
        console.print("→ N: it went on with the state of member N")
    if winner is not None:
        words = f"best, by its last weights: {winner.name}. Measure them: apexrl eval {winner} --checkpoint latest"
        console.print(words, markup=False)


def _add_column(table: Table, name: str) -> None:
    """A column that is no narrower than its values; long names are broken between their words."""
    table.add_column(
        name.replace("_", " "), justify="left" if name == "state" else "right", min_width=_WIDTHS.get(name, 6)
    )


def _row(study: Study, trial: FrozenTrial) -> list[str]:
    try:
        settings = study.settings(trial)
    except KeyError:  # it has only just begun
        settings = {}
    value = trial.value if trial.state == TrialState.COMPLETE else _last(trial)
    return [
        str(trial.number),
        _WORDS[trial.state],
        "" if value is None else f"{value:.4g}",
        *(_shown(settings.get(one.setting)) for one in study.plan.space),
        count(trial.user_attrs.get("env_steps", 0)),
        clock(trial.user_attrs.get("seconds", 0.0)),
    ]


def _last(trial: FrozenTrial) -> float | None:
    """What it was worth at the last rung."""
    return trial.intermediate_values[trial.last_step] if trial.last_step is not None else None


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
