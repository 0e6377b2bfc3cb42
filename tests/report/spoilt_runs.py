"""Runs that are spoilt on purpose, each by one setting or one fault of the environment, and healthy ones beside them.

python tests/report/spoilt_runs.py            train all of them and write tests/report/recorded/NAME
python tests/report/spoilt_runs.py NAME …     those alone
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

RUNS = Path(__file__).parent / "recorded"
KEPT = ("config.toml", "env_spec.json")
MOST_ROWS = 8  # of each kind that a fixture keeps


class Case(NamedTuple):
    """A run, and the cause that is to be named."""

    causes: tuple[str, ...]  # any of which is right; empty: it is healthy
    changes: Mapping[str, Any]
    env: Mapping[str, Any] = {}


VALUES: dict[str, Any] = {"start": "cartpole", "env_steps": 20_000}
POLICY: dict[str, Any] = {"start": "cartpole", "agent": "ppo", "topology": "impala", "env_steps": 40_000}
OFTEN: dict[str, Any] = {"updates_per_step": 0.25, "target_period_updates": 50}
CATEGORIES: dict[str, Any] = {**VALUES, "agent": "c51"}

CASES: dict[str, Case] = {
    "healthy-dqn": Case((), VALUES),
    "healthy-c51": Case((), CATEGORIES),
    "healthy-ppo": Case((), POLICY),
    "learning-rate-x100": Case(("learning_rate_large",), {**VALUES, "learning_rate": 0.23}),
    "learning-rate-x100-ppo": Case(("learning_rate_large",), {**POLICY, "learning_rate": 0.1}),
    "learning-rate-1000th": Case(("learning_rate_small",), {**VALUES, "learning_rate": 2.3e-6}),
    "learning-rate-1000th-ppo": Case(("learning_rate_small",), {**POLICY, "learning_rate": 1e-6}),
    "gamma-0.1": Case(("gamma_small",), {**VALUES, "gamma": 0.1}),
    "gamma-0.5-ppo": Case(("gamma_small",), {**POLICY, "gamma": 0.5}),
    "gamma-1": Case(("gamma_large",), {**VALUES, "gamma": 1.0, **OFTEN}, {"limit": 50}),
    "rewards-x10000": Case(("rewards_large",), VALUES, {"reward": 1e4}),
    "rewards-x10000-ppo": Case(("rewards_large",), POLICY, {"reward": 1e4}),
    "rewards-10000th": Case(("rewards_small",), VALUES, {"reward": 1e-4}),
    "replay-small": Case(("replay_small",), {**VALUES, "capacity": 150, "min_size": 100}),
    "ends-never": Case(("ends_never",), VALUES, {"ends": "never", "limit": 200}),
    "ends-always": Case(("ends_at_once",), VALUES, {"ends": "always"}),
    "ends-at-limit": Case(("limit_as_end",), VALUES, {"ends": "limit", "limit": 25}),
    "no-exploration": Case(("exploration_none",), {**VALUES, "epsilon": 0.0}),
    "clip-tiny": Case(("gradient_clip_small",), {**VALUES, "gradient_clip": 1e-9}),
    "target-never": Case(("target_rare",), {**VALUES, "target_period_updates": 1_000_000}),
    "support-narrow": Case(("support_narrow",), {**CATEGORIES, "v_min": -1.0, "v_max": 1.0}),
    "policy-lag": Case(("policy_lag_large",), {**POLICY, "publish_period_updates": 200}),
    "updates-few": Case(("updates_few",), {**VALUES, "updates_per_step": 0.002}),
    "observations-x10000": Case(("observations_large",), VALUES, {"observation": 1e4}),
    "observations-x10000-ppo": Case(("observations_large",), POLICY, {"observation": 1e4}),
    "entropy-large": Case(("entropy_large",), {**POLICY, "entropy_coefficient": 10.0}),
}


def train(name: str, out: Path, seed: int = 1) -> Path:
    """The run's folder, below ``out``."""
    import apexrl

    case = CASES[name]
    changes = dict(case.changes)
    start = changes.pop("start")
    if case.env:
        changes |= {"env": "spoilt_envs:SpoiltCartPole-v0", "env_kwargs": dict(case.env)}
    run = apexrl.train(
        start,
        serial=True,
        show=False,
        out=str(out),
        name=name,
        seed=seed,
        eval_episodes=10,
        stop_at_return=None,
        **changes,
    )
    return run.path


def shorten(folder: Path, to: Path) -> None:
    """What ``apexrl doctor`` reads of a run, with few rows of metrics."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for file in KEPT:
        shutil.copy(folder / file, to / file)
    summary = json.loads((folder / "summary.json").read_text())
    short = {name: value for name, value in summary.items() if not isinstance(value, dict)}
    (to / "summary.json").write_text(json.dumps(short) + "\n")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = []
    for kind in ("status", "evaluation"):
        those = [row for row in rows if row["kind"] == kind]
        step = max(1, -(-len(those) // MOST_ROWS))
        kept += [*those[:-1:step], *those[-1:]]
    for row in kept:
        row.pop("policy_lag_histogram", None)
        row |= {name: float(f"{value:.5g}") for name, value in row.items() if isinstance(value, float)}
    kept.sort(key=lambda row: row["wall_seconds"])
    (to / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))


def main(names: list[str]) -> None:
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as out:
            shorten(train(name, Path(out)), RUNS / name)


if __name__ == "__main__":
    main(sys.argv[1:])
