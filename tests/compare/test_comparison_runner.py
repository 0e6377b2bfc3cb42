"""Comparisons that run: what is kept, what is told, and how they go on. Runs are made up, except in the last test."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fake_runs import LEARNED, FakeRuns, a_plan, nothing, quiet, told
from rich.console import Console

from apexrl import api, compare
from apexrl.api import Run
from apexrl.compare import charts, tables
from apexrl.compare.plan import Plan
from apexrl.config import Config, convert
from apexrl.run.status import RunStatus


def test_runs_tables_and_pictures(tmp_path: Path) -> None:
    runs, console = FakeRuns(), quiet()
    report = compare.compare(a_plan(), tmp_path, console, run=runs, check=nothing)
    assert runs.made == ["apex-dqn-seed1", "apex-c51-seed1", "apex-dqn-seed2", "apex-c51-seed2"]
    assert not report.failed
    assert not report.missing
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["compare.json", "compare.md", "runs", *charts.PICTURES]
    )
    for name in charts.PICTURES:
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"

    page = (tmp_path / "compare.md").read_text(encoding="utf-8")
    header, _, *lines = [line for line in page.splitlines() if line.startswith("| ")][:4]
    first = dict(zip(header.split(" | "), lines[0].split(" | "), strict=True))
    assert (first["| topology"], first["agent"], first["seeds"]) == ("| apex", "dqn", "2")
    assert first["return, best weights (each seed)"] == "150.0 (100.0, 200.0)"
    assert first["return, last weights (each seed)"] == "135.0 (90.0, 180.0)"
    assert first["goal: reached, env steps, time"] == "0 of 2"
    assert (first["env steps"], first["updates"], first["minutes"]) == ("1000", "20", "0.17")
    assert (first["env steps/s"], first["learned steps/s"]) == ("100", "64")
    assert first["policy lag: mean / p95 / max"] == "1.50 / 3.00 / 8"
    assert first["restarts |"] == "2 |"
    assert all(f"]({name})" in page for name in charts.PICTURES)
    assert "| `distribution` | expected | categorical |" in page
    assert "--env CartPole-v1" in page

    data = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))
    assert (data["goal"], data["budget"], data["missing"]) == (499.0, {"minutes": 1.0, "env_steps": 0}, [])
    assert [(run["agent"], run["seed"], run["final_return"]) for run in data["runs"]][:2] == [
        ("dqn", 1, 100.0), ("c51", 1, 100.0)
    ]  # fmt: skip
    assert data["runs"][0]["curve"] == [[250, 2.5, 25.0], [500, 5.0, 50.0], [750, 7.5, 75.0]]  # not the final one
    assert data["runs"][0]["run"] == "runs/apex-dqn-seed1"
    assert data["runs"][0]["learned_steps_per_second"] == LEARNED / 10.0

    lines = told(console).splitlines()
    assert lines[0].startswith("apexrl compare  CartPole-v1  ·  2 × 16 environments  ·  hidden 128 128  ·  2 seeds")
    assert lines[1] == (
        "1/4  apex · dqn  seed 1  return: best weights 100.0, last weights 90.0, 1000 steps in 00:10 (100/s), "
        "20 updates, lag 1.50, 1 restarts"
    )
    assert [line.split("  ")[0] for line in lines[1:5]] == ["1/4", "2/4", "3/4", "4/4"]
    assert tables.in_markdown(report).strip() in told(console)
    assert lines[-1] == str(tmp_path / "throughput.png")
    assert "\x1b" not in told(console)


def test_what_equal_terms_put_aside_is_told(tmp_path: Path) -> None:
    console = quiet()
    compare.compare(a_plan(("dqn", "r2d2"), 1), tmp_path, console, run=FakeRuns(), check=nothing)
    words = "own settings of r2d2 are not used: --hidden 64"
    assert f"\nequal terms: {words}\n" in told(console)
    page = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert f"apex · r2d2: {words}." in page
    assert " --hidden 128 128 " in page


def test_the_way_to_the_goal_is_measured(tmp_path: Path) -> None:
    def change(config: Config) -> Config:
        return convert.override(config, {"stop_at_return": 75.0})

    report = compare.compare(a_plan(("dqn",), 3, change=change), tmp_path, quiet(), run=FakeRuns(), check=nothing)
    each = report.of(report.plan.arms[0])
    assert [(run.goal_env_steps, run.goal_seconds) for run in each] == [(750, 7.5), (500, 5.0), (250, 2.5)]
    assert tables.rows(report)[0][5] == "3 of 3: 500, 5.0 s"


def test_what_came_to_its_end_is_not_run_again(tmp_path: Path) -> None:
    plan = a_plan()
    compare.compare(plan, tmp_path, quiet(), run=FakeRuns(), check=nothing)
    checked: list[str] = []

    def check(config: Config) -> None:
        checked.append(config.agent.agent)

    again, console = FakeRuns(), quiet()
    report = compare.compare(a_plan(("dqn", "c51", "iqn")), tmp_path, console, run=again, check=check)
    assert again.made == ["apex-iqn-seed1", "apex-iqn-seed2"]
    assert checked == ["iqn"]
    assert len(report.outcomes) == 6
    assert [row[1] for row in tables.rows(report)] == ["dqn", "c51", "iqn"]
    assert "4 of 6 runs are in " in told(console)
    assert "\n5/6  apex · iqn  seed 1  return" in told(console)

    longer = FakeRuns()
    compare.compare(compare.plan("cartpole", (), ["dqn"], seeds=1, minutes=2.0), tmp_path, quiet(), longer, nothing)
    assert longer.made == ["apex-dqn-seed1"]
    assert (tmp_path / "runs" / "apex-dqn-seed1-2" / "summary.json").exists()


def test_a_damaged_run_is_made_again(tmp_path: Path) -> None:
    compare.compare(a_plan(), tmp_path, quiet(), run=FakeRuns(), check=nothing)
    (tmp_path / "runs" / "apex-dqn-seed1" / "summary.json").write_text('{"stopped')
    (tmp_path / "runs" / "apex-c51-seed2" / "config.toml").write_text("bogus = 3")
    again = FakeRuns()
    compare.compare(a_plan(), tmp_path, quiet(), run=again, check=nothing)
    assert again.made == ["apex-dqn-seed1", "apex-c51-seed2"]


@pytest.mark.parametrize("before_folder", [False, True])
def test_a_run_that_fails_is_named_and_the_others_go_on(before_folder: bool, tmp_path: Path) -> None:
    runs, console = FakeRuns(fail=["apex-dqn-seed1"], before_folder=before_folder), quiet()
    report = compare.compare(a_plan(), tmp_path, console, run=runs, check=nothing)
    assert len(runs.made) == 4
    assert len(report.failed) == 1
    words = "EnvError: the licence server is away" if before_folder else "WorkerError: actor-0 failed 100 times"
    where = "" if before_folder else " (runs/apex-dqn-seed1)"
    line = f"apex · dqn, seed 1, failed: {words}{where}"
    assert line in told(console)
    page = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert f"- {line}" in page
    assert "| apex | dqn | 1 (1 failed) | 200.0 |" in page
    again = FakeRuns()
    assert not compare.compare(a_plan(), tmp_path, quiet(), run=again, check=nothing).failed
    assert again.made == ["apex-dqn-seed1"]


def test_an_interrupted_comparison_goes_on(tmp_path: Path) -> None:
    runs, console = FakeRuns(interrupt="apex-dqn-seed2"), quiet()
    report = compare.compare(a_plan(), tmp_path, console, run=runs, check=nothing)
    assert report.interrupted
    assert [(arm.agent, seed) for arm, seed in report.missing] == [("dqn", 2), ("c51", 2)]
    assert "interrupted; the same command resumes" in told(console)
    page = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert "Not run yet: apex · dqn seed 2, apex · c51 seed 2. The same command resumes." in page
    assert "| apex | dqn | 1 | 100.0 |" in page
    again = FakeRuns()
    report = compare.compare(a_plan(), tmp_path, quiet(), run=again, check=nothing)
    assert again.made == ["apex-dqn-seed2", "apex-c51-seed2"]
    assert not report.interrupted
    assert "Not run yet" not in (tmp_path / "compare.md").read_text(encoding="utf-8")


def test_ctrl_c_before_a_run_has_a_folder(tmp_path: Path) -> None:
    class Interrupted(FakeRuns):
        def __call__(self, config: Config, **more: Any) -> Run:
            if config.name == "apex-c51-seed1":
                raise KeyboardInterrupt
            return super().__call__(config, **more)

    report = compare.compare(a_plan(), tmp_path, quiet(), run=Interrupted(), check=nothing)
    assert report.interrupted
    assert len(report.outcomes) == 1
    assert (tmp_path / "throughput.png").exists()


def test_a_terminal_gets_a_live_line_and_a_table_that_fits(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None, legacy_windows=False)
    report = compare.compare(a_plan(), tmp_path, console, run=FakeRuns(), check=nothing)
    assert "starting" in told(console)
    assert "| ---" not in told(console)
    for width in (80, 100, 200):
        screen = Console(file=io.StringIO(), width=width, legacy_windows=False)
        screen.print(tables.for_terminal(report, width))
        lines = told(screen).splitlines()
        assert max(map(len, lines)) <= width
        assert ("restarts" in told(screen)) == (width == 200)
        assert "150.0" in told(screen)
        assert len(lines) == 3  # nothing is folded


SMALL = {
    "hidden": (16,),
    "min_size": 200,
    "capacity": 5000,
    "batch_size": 16,
    "eval_episodes": 4,
    "eval_envs": 4,
    "envs_per_actor": 4,
    "updates_per_step": 0.0625,
}


class Stops:
    """An observer that presses Ctrl-C once learning has begun."""

    def started(self, config: Config, folder: Path) -> None: ...

    def update(self, status: RunStatus) -> None:
        if status.updates:
            os.kill(os.getpid(), signal.SIGINT)

    def event(self, kind: str, values: dict[str, Any]) -> None: ...

    def message(self, text: str, level: str = "info") -> None: ...

    def finished(self, summary: dict[str, Any]) -> None: ...


@pytest.mark.long
def test_two_agents_compared_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    def interrupted(config: Config, *, observers: Any = (), on_folder: Any = None) -> Run:
        stops = []
        if config.agent.agent == "c51":
            config = convert.override(config, {"env_steps": 1_000_000})  # it shall not end before
            stops = [Stops()]
        return api.run(config, observers=[*observers, *stops], on_folder=on_folder)

    def plan() -> Plan:
        def change(config: Config) -> Config:
            return convert.override(config, SMALL)

        return compare.plan("CartPole-v1", (), ["dqn", "c51"], seeds=1, env_steps=3000, change=change)

    first = compare.compare(plan(), tmp_path, quiet(), run=interrupted)
    assert first.interrupted
    data = json.loads((tmp_path / "compare.json").read_text())
    assert [(run["agent"], run["stopped_by"]) for run in data["runs"]] == [("dqn", "env_steps")]
    assert [one["agent"] for one in data["missing"]] == ["c51"]

    console = quiet()
    second = compare.compare(plan(), tmp_path, console)
    assert not second.interrupted
    assert not second.failed
    data = json.loads((tmp_path / "compare.json").read_text())
    assert [(run["agent"], run["run"]) for run in data["runs"]] == [
        ("dqn", "runs/apex-dqn-seed1"), ("c51", "runs/apex-c51-seed1-2")
    ]  # fmt: skip
    for run in data["runs"]:
        assert run["env_steps"] >= 3000
        assert run["updates"] > 0
        assert 1 <= run["final_return"] <= 500
        assert run["learned_steps_per_second"] == pytest.approx(16 * run["updates"] / run["seconds"], rel=0.3)
    assert "1 of 2 runs are in " in told(console)
    for name in ("compare.md", *charts.PICTURES):
        assert (tmp_path / name).stat().st_size > 500
