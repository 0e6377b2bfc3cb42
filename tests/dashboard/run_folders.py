"""Run folders as runs write them, without runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apexrl.config import Config
from apexrl.config.convert import override, to_toml
from apexrl.run import worker_list
from apexrl.run.metric_samples import status_scalars
from apexrl.run.status import RunStatus, Work, WorkerStatus


def status_row(step: int, **values: Any) -> dict[str, Any]:
    status = RunStatus("training", float(step), env_steps=100 * step, updates=step, train_return=float(step))
    return {"kind": "status", "phase": "training", **status_scalars(status), "agent/loss": 1.0 / (1 + step), **values}


def evaluation_row(step: int, mean: float, **values: Any) -> dict[str, Any]:
    at = {"wall_seconds": float(step), "env_steps": 100 * step, "updates": step}
    return {
        "kind": "evaluation",
        **at,
        "mean": mean,
        "std": 1.0,
        "returns": [mean - 1, mean + 1],
        "final": False,
        **values,
    }


def make_run(root: Path, name: str, rows: Iterable[dict[str, Any]] = (), ended: str = "", **settings: Any) -> Path:
    """A run folder; ``ended``: its reason in ``summary.json``, else the run goes on."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(override(Config(), settings)), encoding="utf-8")
    append(folder, rows)
    if ended:
        (folder / "summary.json").write_text(json.dumps({"stopped_by": ended, "seed": 1, "agent": "dqn"}), "utf-8")
    return folder


def append(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def rows(count: int, gain: float = 1.0) -> list[dict[str, Any]]:
    found = [status_row(step) for step in range(count)]
    return [*found, *(evaluation_row(step, gain * step) for step in range(0, count, 5))]


def write_workers(folder: Path, count: int) -> None:
    """``count`` actors, of which the second is dead and the third slow."""
    work = Work("env_steps", "steps/s", "acting")
    found = [WorkerStatus(f"actor-{i}", "actor", i, 1000 + i, "acting", 0, 50.0, 0.1, work) for i in range(count)]
    found[1].state, found[1].restarts = "failed", 3
    found[2].rate = 5.0
    worker_list.write(folder, found, lambda: None)


def age(folder: Path, seconds: float) -> None:
    """Let the files of a run be so old."""
    then = time.time() - seconds
    for path in folder.iterdir():
        os.utime(path, (then, then))
