"""Short runs of cells of the table, in which a worker is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apexrl.topologies.placements import LEARNERS
from benchmarks.placements import cells

SMALL: dict[str, Any] = {"hidden": [16], "envs_per_actor": 4, "actors": 2, "eval_episodes": 2, "eval_envs": 2}
REPLAYED = {"min_size": 100, "batch_size": 16, "updates_per_step": 0.1}
UNROLLS = {"unroll_length": 5}
OWN = {"apex": REPLAYED, "gorila": REPLAYED, LEARNERS: REPLAYED}
STEPS, KILL_AT = 6_000, 500


def run(cell: cells.Cell, folder: Path) -> None:
    """It makes its steps and learns, though a worker of a role is killed on the way."""
    more = {**SMALL, **OWN.get(cell[0], UNROLLS), "env_steps": STEPS}
    summary = cells.run(cell, more, folder, KILL_AT, 480.0)
    role = cells.killed_role(cell)
    assert summary["stopped_by"] == "env_steps"
    assert summary["killed"], f"no {role} was at work"
    assert summary["restarts"][role] >= 1
    assert summary["updates"] > 50
    assert [summary.get("hosts", {}).get(lost, 0) for lost in ("missing", "refused")] == [0, 0]
