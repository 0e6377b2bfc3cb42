"""The outcome of one run of a comparison, read from its run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from apexrl.config import Config, convert
from apexrl.errors import ApexrlError
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows

WHOLE: Final = frozenset(("env_steps", "minutes", "stop_at_return"))
"""Stop reasons of a finished run; runs that stopped for another reason are repeated."""

LONGEST_FAILURE: Final = 2000  # characters


@dataclass(frozen=True)
class Outcome:
    """One run. Rates are averages over its seconds of training; None: unknown."""

    topology: str
    agent: str
    seed: int
    run: str = ""
    """Its folder, relative to the comparison's; empty: it failed before it had one."""
    failure: str = ""
    """Why it failed; empty: it did not."""
    stopped_by: str = ""
    env_steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    """Seconds of training, from the first environment step to the stop."""
    startup_seconds: float = 0.0
    final_return: float | None = None
    """Mean of episodes on fresh seeds at the end, with the weights of the best evaluation."""
    last_return: float | None = None
    """The same with the last weights, on the same seeds."""
    best_return: float | None = None
    """Return of the best evaluation."""
    goal_env_steps: int | None = None
    """Environment steps before the first evaluation that reached the goal."""
    goal_seconds: float | None = None
    """Seconds of training until that evaluation was over."""
    env_steps_per_second: float | None = None
    updates_per_second: float | None = None
    learned_steps_per_second: float | None = None
    """Environment steps in the learner's batches, each as often as it was in one."""
    lag_mean: float | None = None
    lag_p95: float | None = None
    lag_max: float | None = None
    restarts: int = 0
    dropped: int = 0
    curve: tuple[tuple[int, float, float], ...] = ()
    """(environment steps, seconds, mean return) of every evaluation."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def finished(runs: Path) -> dict[str, RunFolder]:
    """The finished runs in a folder, by their settings (``what``)."""
    found = {}
    for path in sorted(runs.glob("*/config.toml")):
        folder = RunFolder(path.parent)
        try:
            if folder.summary().get("stopped_by") in WHOLE:
                found[what(folder.config())] = folder
        except ApexrlError:  # of another version, or damaged: it is repeated
            continue
    return found


def what(config: Config) -> str:
    """A text that is equal for runs with equal settings, whatever their folders."""
    return convert.to_toml(replace(config, name="", out=""))


def outcome(config: Config, folder: RunFolder, out: Path, goal: float | None, failure: str = "") -> Outcome:
    """Read a run.

    Args:
        out: the comparison's folder.
        goal: the return for ``goal_env_steps`` and ``goal_seconds``.
        failure: why it failed, if it did.
    """
    try:
        summary = folder.summary()
    except ApexrlError as error:
        summary, failure = {}, failure or str(error)
    rows = read_rows(folder.metrics_path) if folder.metrics_path.exists() else []
    evaluations = [row for row in rows if row.get("kind") == "evaluation" and not row.get("final")]
    curve = tuple((e["env_steps"], e["wall_seconds"], e["mean"]) for e in evaluations if e.get("mean") is not None)
    reached = next((point for point in curve if goal is not None and point[2] >= goal), None)
    seconds, lag = float(summary.get("wall_seconds") or 0.0), summary.get("policy_lag") or {}
    return Outcome(
        topology=config.topology,
        agent=config.agent.agent,
        seed=config.seed,
        run=str(folder.path.relative_to(out)),
        failure=failure[:LONGEST_FAILURE],
        stopped_by=str(summary.get("stopped_by", "")),
        env_steps=int(summary.get("env_steps") or 0),
        updates=int(summary.get("updates") or 0),
        seconds=seconds,
        startup_seconds=float(summary.get("startup_seconds") or 0.0),
        final_return=summary.get("final_eval_return"),
        last_return=summary.get("last_weights_return"),
        best_return=summary.get("best_eval_return"),
        goal_env_steps=None if reached is None else reached[0],
        goal_seconds=None if reached is None else reached[1],
        env_steps_per_second=summary.get("env_steps_per_second"),
        updates_per_second=summary.get("updates_per_second"),
        learned_steps_per_second=lag["steps"] / seconds if lag.get("steps") and seconds > 0 else None,
        lag_mean=_known(lag, "mean"),
        lag_p95=_known(lag, "p95"),
        lag_max=_known(lag, "max"),
        restarts=sum((summary.get("restarts") or {}).values()),
        dropped=sum((summary.get("dropped") or {}).values()),
        curve=curve,
    )


def _known(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return value if value is not None and math.isfinite(value) else None
