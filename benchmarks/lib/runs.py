"""``apexrl train`` as a user runs it, and what its run folder says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lib import report

RUNS = report.OUT / "runs"


class RunFailed(RuntimeError):
    """``apexrl train`` ended without a summary."""


class Rates(NamedTuple):
    """Of a stretch of a run."""

    env_steps_per_second: float
    updates_per_second: float
    seconds: float


def command(preset: str, name: str, flags: Sequence[str], python: str = sys.executable) -> list[str]:
    """The command line, of a preset or (empty) none; the folder of an earlier run of that name is removed."""
    shutil.rmtree(RUNS / name, ignore_errors=True)
    start = [preset] if preset else []
    return [python, "-m", "apexrl.cli", "train", *start, "--out", str(RUNS), "--name", name, *flags]


def train(preset: str, name: str, flags: Sequence[str], timeout: float, python: str = sys.executable) -> dict[str, Any]:
    """Run it to its end; returns ``summary.json``.

    Args:
        python: the interpreter in which it is installed.

    Raises:
        RunFailed: it left no summary; the message holds the end of its output.
    """
    words = command(preset, name, flags, python)
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    summary = RUNS / name / "summary.json"
    if done.returncode or not summary.is_file():
        raise RunFailed(f"{name} ended with exit code {done.returncode}:\n{done.stdout[-3000:]}")
    result: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8"))
    return result


def statuses(folder: Path) -> list[dict[str, Any]]:
    """The periodic samples of a run, oldest first: ``wall_seconds, env_steps, updates`` and more."""
    return [row for row in _rows(folder) if row["kind"] == "status"]


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """The greedy evaluations of a run but the final one: ``mean``, and the ``env_steps, updates`` of its weights."""
    return [row for row in _rows(folder) if row["kind"] == "evaluation" and not row["final"]]


def rates(folder: Path, skip: float) -> Rates:
    """Steady rates: from ``skip`` seconds after the first update to the last sample while training."""
    rows = [row for row in statuses(folder) if row["phase"] == "training" and row["updates"] > 0]
    rows = [row for row in rows if row["wall_seconds"] >= rows[0]["wall_seconds"] + skip]
    if len(rows) < 2:
        raise RunFailed(f"{folder.name} is too short to tell rates: {len(rows)} samples after {skip} s")
    first, last = rows[0], rows[-1]
    seconds = last["wall_seconds"] - first["wall_seconds"]
    return Rates(
        (last["env_steps"] - first["env_steps"]) / seconds, (last["updates"] - first["updates"]) / seconds, seconds
    )


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole]
