"""Cells of the suite: one agent on one task with one seed, as a whole command, and their records, a JSON line each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.generality.tasks import KNOWN, Task
from benchmarks.lib import processes, report, runs

Record = dict[str, Any]

ROOT = Path(__file__).parents[2]
RECORDS = report.RECORDS / "generality"
VERSIONS = ("apexrl", "torch", "gymnasium", "mujoco", "minatar")
PEER_VERSIONS = ("stable-baselines3", "sb3-contrib", "torch", "gymnasium", "mujoco", "minatar")

# Agents of Stable-Baselines3 and sb3-contrib, by the name of ours; what actions they take, and whether they learn
# from a replay.
SB3: dict[str, tuple[tuple[str, ...], bool]] = {
    "dqn": (("discrete",), True),
    "qr_dqn": (("discrete",), True),
    "ppo": (("discrete", "switches", "box"), False),
    "a2c": (("discrete", "switches", "box"), False),
    "sac": (("box",), True),
    "td3": (("box",), True),
}
# Ours that learn from unrolls; others learn from a replay.
UNROLLS = ("a2c", "impala", "ppo", "appo", "pqn")
BOX = ("sac", "tqc", "redq", "droq", "simba_v2", "crossq", "ddpg", "bires_ddpg", "td3", "fast_td3", "fast_sac", "d4pg")
SHARES = (1.0, 0.3, 0.1)
"""Parts of a task's budget that a cell may have and that a table shows."""
EVALUATIONS = 20
"""On the way, at equal distances of steps, as the peer has them."""
# For agents whose own topology it is; else ``apex`` for a replay and ``impala`` for unrolls.
TOPOLOGIES = {"a2c": "a3c", "appo": "sample_factory"}


@dataclass(frozen=True)
class Cell:
    """What is run once and kept."""

    system: str
    """``apexrl`` or ``sb3``."""
    task: str
    agent: str
    topology: str
    """Empty: a peer's."""
    recipe: str
    """``default`` or ``paper``."""
    seed: int
    env_steps: int
    flags: str = ""
    """More flags of ``apexrl train``: a trial, which no table shows."""

    def of(self, record: Record) -> bool:
        """Whether the record is of this cell."""
        return all(record.get(name) == value for name, value in vars(self).items())


def takes(agent: str, task: Task, system: str = "apexrl") -> bool:
    """Whether the agent can act in the task's environment."""
    if system == "sb3":
        return task.actions in SB3[agent][0]
    if agent in UNROLLS or agent == "auto":
        return True
    return (task.actions == "box") == (agent in BOX)


def steps(agent: str, task: Task) -> int:
    """The task's budget for such an agent."""
    return task.unroll_steps if agent in (*UNROLLS, "auto") else task.replay_steps


def share(record: Record) -> float | None:
    """Which of ``SHARES`` of its task's budget a record has; None for another."""
    budget = steps(record["agent"], KNOWN[record["task"]])
    return next((part for part in SHARES if record["env_steps"] == round(part * budget)), None)


def topology(agent: str) -> str:
    """The topology that runs the agent where none is asked for; empty for ``auto``, which chooses it."""
    return "" if agent == "auto" else TOPOLOGIES.get(agent, "impala" if agent in UNROLLS else "apex")


def command(cell: Cell) -> list[str]:
    """The words behind ``apexrl train``."""
    words = ["--env", KNOWN[cell.task].env, "--agent", cell.agent]
    words += ["--topology", cell.topology] if cell.topology else []
    words += ["--env-steps", str(cell.env_steps), "--seed", str(cell.seed)]
    words += ["--recipe", cell.recipe] if cell.recipe != "default" else []
    return [*words, *cell.flags.split()]


def run(cell: Cell, minutes: float, python: str) -> Record:
    """Run it to its end; returns what was reached, or how it failed.

    Args:
        minutes: that it may take.
        python: the interpreter of a peer.
    """
    record: Record = {**vars(cell), "machine": report.machine(), "commit": commit(), "failure": ""}
    try:
        record |= _ours(cell, minutes) if cell.system == "apexrl" else _theirs(cell, minutes, python)
    except (runs.RunFailed, processes.Failed, subprocess.TimeoutExpired) as error:
        return record | {"failure": str(error)[-2000:]}
    if record["steps"] < 0.99 * cell.env_steps:
        record["failure"] = f"ended after {record['steps']:,} of {cell.env_steps:,} steps"
    return record


def _ours(cell: Cell, minutes: float) -> Record:
    name = "-".join(["generality", cell.task.replace("/", "-"), cell.agent, cell.topology or "auto", str(cell.seed)])
    as_often = ["--eval-period-steps", str(max(1, cell.env_steps // EVALUATIONS))]
    summary = runs.train("", name, [*command(cell), *as_often], 60 * minutes)
    return {
        "versions": {of: report.version(of) for of in VERSIONS},
        "ran": {"agent": summary["agent"], "topology": summary["topology"]},
        "steps": summary["env_steps"],
        "updates": summary["updates"],
        "seconds": summary["wall_seconds"],
        "startup_seconds": summary["startup_seconds"],
        "best": summary["best_eval_return"],
        "final": summary["final_eval_return"],
        "last": summary.get("last_weights_return"),
        "curve": [(row["env_steps"], row["wall_seconds"], row["mean"]) for row in runs.evaluations(runs.RUNS / name)],
    }


def _theirs(cell: Cell, minutes: float, python: str) -> Record:
    script = Path(__file__).parent / "sb3_run.py"
    words = [cell.task, cell.agent, "--env-steps", str(cell.env_steps), "--seed", str(cell.seed)]
    measured = processes.answer([python, str(script), *words], 60 * minutes)
    asked = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {PEER_VERSIONS}}}))"
    return {"versions": processes.answer([python, "-c", asked], 60), **measured}


def commit() -> str:
    """The commit that this checkout is on; empty outside of one."""
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip()


def kept(path: Path) -> list[Record]:
    """Every whole record of a file; the newest one of each cell."""
    if not path.is_file():
        return []
    newest = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):  # a line that was cut short
            record = json.loads(line)
            newest[tuple(record[name] for name in Cell.__dataclass_fields__)] = record
    return list(newest.values())


def keep(path: Path, record: Record) -> None:
    """Append a record; a line that was cut short, by a crash, is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.read_bytes() if path.is_file() else b""
    with path.open("a", encoding="utf-8") as file:
        file.write("" if written.endswith(b"\n") or not written else "\n")
        file.write(json.dumps(record) + "\n")


def missing(wanted: Iterable[Cell], records: Sequence[Record]) -> list[Cell]:
    """Those without a record that did not fail."""
    return [cell for cell in wanted if not any(cell.of(record) and not record["failure"] for record in records)]
