"""Comparisons: what is equal, in which order, what is kept, what is told. Runs are made up, except where said."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from apexrl import cli, compare, settings, topologies
from apexrl.agents import AGENTS
from apexrl.api import Run
from apexrl.compare import pictures, tables
from apexrl.compare.outcome import Outcome
from apexrl.compare.plan import EQUAL, Arm, Plan, differences
from apexrl.config import Config
from apexrl.errors import EnvError, WorkerError
from apexrl.presets import PRESETS, with_agent
from apexrl.run_folder import RunFolder, make_summary
from apexrl.status import Observer, PolicyLag, RunStatus

LEARNED = 640  # env steps in the learner's batches of a made-up run


class FakeRuns:
    """Stands for ``api.run``: every run takes 10 s, makes 1000 steps and reaches a return of 100 × its seed."""

    def __init__(self, fail: Sequence[str] = (), interrupt: str = "", before_folder: bool = False) -> None:
        self.made: list[str] = []
        self.fail, self.interrupt, self.before_folder = fail, interrupt, before_folder

    def __call__(
        self, config: Config, *, observers: Sequence[Observer] = (), on_folder: Callable[[Path], None] | None = None
    ) -> Run:
        assert on_folder is not None
        self.made.append(config.name)
        if config.name in self.fail and self.before_folder:
            raise EnvError("the licence server is away\nand more")
        folder = RunFolder.create(config)
        on_folder(folder.path)
        status = RunStatus(phase="training", elapsed_seconds=10.0, env_steps=1000, updates=20, eval_return=1.0,
                           policy_lag=PolicyLag(1.5, 3.0, 8.0), env_steps_per_second=100.0,
                           restarts={"actor": 1})  # fmt: skip
        for observer in observers:
            observer.started(config, folder.path)
            observer.update(status)
        with folder.metrics_path.open("w", encoding="utf-8") as file:
            for step in (1, 2, 3, 4):
                row = {"kind": "evaluation", "env_steps": 250 * step, "wall_seconds": 2.5 * step}
                file.write(json.dumps({**row, "mean": 25.0 * step * config.seed, "final": step == 4}) + "\n")
        stopped_by = "interrupted" if config.name == self.interrupt else "minutes"
        failed = config.name in self.fail
        summary = make_summary(
            config, status, stopped_by="error" if failed else stopped_by, final_eval_return=100.0 * config.seed
        )
        summary["policy_lag"]["steps"] = LEARNED
        folder.write_summary(summary)
        if failed:
            raise WorkerError("actor-0 failed 100 times\nTraceback …")
        return Run(folder.path, summary)


def a_plan(agents: Sequence[str] = ("dqn", "c51"), seeds: int = 2, **more: Any) -> Plan:
    return compare.plan("cartpole", ["apex"], agents, seeds=seeds, minutes=1.0, **more)


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def told(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def nothing(config: Config) -> None: ...


# --- the plan


def test_terms_are_equal_and_the_rest_is_the_presets() -> None:
    plan = compare.plan("cartpole", ["apex"], ["dqn", "c51", "r2d2"], seeds=2, minutes=1.0, env_steps=5000)
    flats = [settings.flat(arm.config) for arm in plan.arms]
    for name in EQUAL:
        assert flats[0][name] == flats[1][name] == flats[2][name], name
    tuned = with_agent(PRESETS["cartpole"].config, "r2d2")
    assert dict(plan.arms[2].put_aside) == {"hidden": tuned.agent.hidden}
    assert not plan.arms[0].put_aside
    r2d2 = plan.arms[2].config
    assert r2d2.agent.hidden == PRESETS["cartpole"].config.agent.hidden != tuned.agent.hidden
    assert (r2d2.agent.sequence_length, r2d2.replay.capacity) == (tuned.agent.sequence_length, tuned.replay.capacity)
    assert (plan.arms[1].config.agent.v_max, plan.arms[0].config.agent.distribution) == (100.0, "expected")
    assert (plan.config.stop.minutes, plan.config.stop.env_steps, plan.config.stop.stop_at_return) == (1.0, 5000, None)
    assert plan.goal == PRESETS["cartpole"].config.stop.stop_at_return


def test_the_goal_is_one_for_all() -> None:
    """The preset has another one for TD3."""
    plan = compare.plan("pendulum", (), ["sac", "td3"], until_goal=True)
    assert plan.goal == -160.0
    assert [arm.config.stop.stop_at_return for arm in plan.arms] == [-160.0, -160.0]
    assert plan.arms[1].put_aside["stop_at_return"] == -150.0
    assert plan.config.stop.env_steps == 30_000  # the preset's own, as no budget was given
    shorter = compare.plan("pendulum", (), ["sac"], minutes=2.0)
    assert (shorter.config.stop.env_steps, shorter.config.stop.minutes) == (0, 2.0)


def test_a_persons_own_settings_hold_for_all() -> None:
    def change(config: Config) -> Config:
        return settings.override(config, {"hidden": (32,), "stop_at_return": 50.0, "minutes": 99.0})

    plan = a_plan(("dqn", "r2d2"), change=change)
    assert [arm.config.agent.hidden for arm in plan.arms] == [(32,), (32,)]
    assert plan.goal == 50.0
    assert plan.config.stop.minutes == 1.0


def test_seeds_take_turns() -> None:
    plan = a_plan(seeds=3)
    order = [(seed, arm.agent) for arm, seed in plan.order()]
    assert order == list(itertools.product((1, 2, 3), ("dqn", "c51")))
    config = plan.arms[1].run(3, Path("there"))
    assert (config.seed, config.name, config.out) == (3, "apex-c51-seed3", "there")
    own = Arm(settings.override(plan.config, {"agent": "my.agents:Mine"}))
    assert own.run(1, Path()).name == "apex-my.agents-Mine-seed1"


def test_without_agents_every_topology_takes_one_that_it_runs() -> None:
    plan = compare.plan("cartpole", [",".join(topologies.TOPOLOGIES), "apex"], seeds=1, env_steps=100)
    assert [arm.topology for arm in plan.arms] == list(topologies.TOPOLOGIES)  # each once
    for arm in plan.arms:
        topologies.check_agent(arm.topology, arm.agent)
        settings.check(arm.config)


def test_what_differs_is_told() -> None:
    plan = a_plan(("dqn", "c51"))
    found = differences(plan)
    assert found["distribution"] == ["expected", "categorical"]
    assert found["v_max"] == [None, 100.0]  # means nothing to dqn
    assert "atoms" not in found
    assert "huber" not in found  # c51 never reads it, and dqn has the default
    assert "quantiles" not in found
    assert "hidden" not in found
    assert "agent" not in found


UNSUITED = [
    (name, agent) for name in topologies.TOPOLOGIES for agent in AGENTS if not topologies.runs(name, agent)
][:1]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topologies", "apex", "--minutes", "1"], "say on what to compare: --env PRESET (cartpole, "),
        (["--env", "cartpole", "--minutes", "1"], "say what to compare: --topologies a,b,c, or --agents x,y"),
        (["--env", "cartpole", "--topologies", "apx", "--minutes", "1"], "--topologies: there is no topology 'apx'"),
        (["--env", "cartpole", "--agents", "dqn,c15", "--minutes", "1"], "--agents: there is no agent 'c15'"),
        (["--env", "cartpole", "--agents", "dqn"], "--minutes M, --env-steps N or both; cartpole has no limit of its"),
        (["--env", "cartpole", "--agents", "dqn", "--minutes", "0"], "--minutes must be more than 0, not 0"),
        (["--env", "cartpole", "--agents", "dqn", "--minutes", "nan"], "--minutes must be more than 0, not nan"),
        (["--env", "cartpole", "--agents", "dqn", "--env-steps", "-5"], "--env-steps must be more than 0, not -5"),
        (["--env", "cartpole", "--agents", "dqn", "--minutes", "1", "--seeds", "0"], "--seeds must be at least 1"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--seed", "4"], "--seed means nothing to apexrl compare"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--topology=apex"], "say --topologies"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--redis", "redis://h"], "compared on one machine"),
        (["cartpole", "--agents", "dqn,c51", "--minutes", "1", "--actors", "0"], "--actors must be at least 1, not 0"),
        (["cartpole", "--agents", "dqn,c51", "--minutes", "1", "--atoms", "21"], "--atoms means nothing with"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--actorz", "3"], "--actors"),
        (["cartpole", "--agents", "dqn", "catch", "--minutes", "1"], "there is no agent 'catch'"),
        (["--env", "CartPole-v1", "--agents", "dqn", "--minutes", "1", "--until-goal"], "give one with --stop-at-retu"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--out", "taken/x"], "cannot write to --out "),
        *(
            (["--env", "cartpole", "--topologies", name, "--agents", agent, "--minutes", "1"], "cannot run agent")
            for name, agent in UNSUITED
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("taken").touch()
    assert cli.main(["compare", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_an_environment_that_is_not_there_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real check, in a process of its own."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", "cartpol", "--agents", "dqn", "--minutes", "1"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "--env cartpol (did you mean 'cartpole'?): " in told
    assert not list(tmp_path.iterdir())


def test_an_agent_that_the_environment_does_not_suit_is_named(tmp_path: Path) -> None:
    """The real check: actions of CartPole are no box."""
    with pytest.raises(Exception, match=r"apex · sac: .*[Bb]ox"):
        compare.compare(a_plan(("sac",)), tmp_path, quiet(), run=FakeRuns())


# --- running


def test_runs_tables_and_pictures(tmp_path: Path) -> None:
    runs, console = FakeRuns(), quiet()
    report = compare.compare(a_plan(), tmp_path, console, run=runs, check=nothing)
    assert runs.made == ["apex-dqn-seed1", "apex-c51-seed1", "apex-dqn-seed2", "apex-c51-seed2"]
    assert not report.failed
    assert not report.missing
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["compare.json", "compare.md", "runs", *pictures.PICTURES]
    )
    for name in pictures.PICTURES:
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"

    page = (tmp_path / "compare.md").read_text(encoding="utf-8")
    header, _, *lines = [line for line in page.splitlines() if line.startswith("| ")][:4]
    first = dict(zip(header.split(" | "), lines[0].split(" | "), strict=True))
    assert (first["| topology"], first["agent"], first["seeds"]) == ("| apex", "dqn", "2")
    assert first["final return (each seed)"] == "150.0 (100.0, 200.0)"
    assert first["goal: reached, env steps, time"] == "0 of 2"
    assert (first["env steps"], first["updates"], first["minutes"]) == ("1000", "20", "0.17")
    assert (first["env steps/s"], first["learned steps/s"]) == ("100", "64")
    assert first["policy lag: mean / p95 / max"] == "1.50 / 3.00 / 8"
    assert first["restarts |"] == "2 |"
    assert all(f"]({name})" in page for name in pictures.PICTURES)
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
    assert lines[1] == "1/4  apex · dqn  seed 1  return 100.0, 1000 steps in 00:10 (100/s), 20 updates, lag 1.50, " + (
        "1 restarts"
    )
    assert [line.split("  ")[0] for line in lines[1:5]] == ["1/4", "2/4", "3/4", "4/4"]
    assert tables.in_markdown(report).strip() in told(console)
    assert lines[-1] == str(tmp_path / "throughput.png")
    assert "\x1b" not in told(console)


def test_what_equal_terms_put_aside_is_told(tmp_path: Path) -> None:
    console = quiet()
    compare.compare(a_plan(("dqn", "r2d2"), 1), tmp_path, console, run=FakeRuns(), check=nothing)
    words = "what the preset has for r2d2 is put aside: --hidden 64"
    assert f"\nequal terms: {words}\n" in told(console)
    page = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert f"Of apex · r2d2, {words}." in page
    assert " --hidden 128 128 " in page


def test_the_way_to_the_goal_is_measured(tmp_path: Path) -> None:
    def change(config: Config) -> Config:
        return settings.override(config, {"stop_at_return": 75.0})

    report = compare.compare(a_plan(("dqn",), 3, change=change), tmp_path, quiet(), run=FakeRuns(), check=nothing)
    each = report.of(report.plan.arms[0])
    assert [(run.goal_env_steps, run.goal_seconds) for run in each] == [(750, 7.5), (500, 5.0), (250, 2.5)]
    assert tables.rows(report)[0][4] == "3 of 3: 500, 5.0 s"


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
    assert "interrupted; the same command goes on" in told(console)
    page = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert "Not run yet: apex · dqn seed 2, apex · c51 seed 2. The same command goes on." in page
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


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (SimpleNamespace(interrupted=False, failed=[]), 0),
        (SimpleNamespace(interrupted=False, failed=[1]), 1),
        (SimpleNamespace(interrupted=True, failed=[1]), 130),
    ],
)
def test_exit_codes_and_every_flag(report: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Plan, Any]] = []

    def fake(plan: Plan, out: Any) -> Any:
        seen.append((plan, out))
        return report

    monkeypatch.setattr("apexrl.compare.compare", fake)
    words = ["--env", "cartpole", "--topologies", "apex", "--agents", "dqn,c51", "iqn", "--seeds", "2", "--minutes",
             "0.5", "--env-steps", "900", "--until-goal", "--stop-at-return", "40", "--actors", "3", "--hidden", "8",
             "4", "--env-kwargs", "a", "1", "--serial"]  # fmt: skip
    assert cli.main(["compare", *words, "--out", "there"]) == code
    plan, out = seen[0]
    assert out == "there"
    assert [arm.label for arm in plan.arms] == ["apex · dqn", "apex · c51", "apex · iqn"]
    assert list(plan.seeds) == [1, 2]
    assert plan.goal == 40.0
    for arm in plan.arms:
        config = arm.config
        assert dataclasses.astuple(config.stop) == (900, 0.5, 40.0)
        assert (config.actor.actors, config.agent.hidden, config.env.env_kwargs) == (3, (8, 4), {"a": 1})
        assert config.serial
    assert cli.main(["compare", "cartpole", "--agents", "dqn", "--minutes", "1"]) == code
    assert seen[1][1] == Path("comparisons/cartpole")
    assert compare.default_out(dataclasses.replace(plan, env="my.sim:Plant-v0")) == Path("comparisons/plant-v0")


# --- pictures


def an_outcome(seed: int, **more: Any) -> Outcome:
    curve = tuple((100 * i, 1.0 * i, 10.0 * i * seed) for i in range(5))
    return dataclasses.replace(
        Outcome("apex", "dqn", seed, seconds=4.0, env_steps_per_second=100.0 * seed, updates_per_second=5.0,
                lag_mean=2.0, lag_p95=3.0, lag_max=90.0, curve=curve), **more
    )  # fmt: skip


def test_the_mean_goes_as_far_as_all_go() -> None:
    short_one = (np.array([0.0, 2.0]), np.array([0.0, 4.0]))
    long_one = (np.array([1.0, 3.0, 4.0]), np.array([10.0, 10.0, 99.0]))
    x, y = pictures.mean_line([short_one, long_one])
    assert x.tolist() == [1.0, 2.0]
    assert y.tolist() == [6.0, 7.0]
    x, y = pictures.mean_line([long_one])
    assert x.tolist() == [1.0, 3.0, 4.0]


@pytest.mark.parametrize(("arms", "seeds"), [(1, 1), (2, 3), (7, 3), (16, 2)])
def test_what_is_drawn_of_returns(arms: int, seeds: int) -> None:
    plan = a_plan(seeds=seeds)
    runs = {f"apex · agent{i}": [an_outcome(seed) for seed in range(1, seeds + 1)] for i in range(arms)}
    for by_time in (False, True):
        figure = pictures.returns(runs, plan, by_time)
        assert figure is not None
        (axes,) = figure.axes
        bold = [line for line in axes.lines if line.get_linewidth() == 2.2]
        assert [line.get_label() for line in bold] == list(runs)
        thin = [line for line in axes.lines if line.get_linewidth() == 0.9]
        assert len(thin) == (arms * seeds if seeds > 1 else 0)
        looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in bold}  # type: ignore[attr-defined]
        assert len(looks) == arms
        mean = (seeds + 1) / 2
        assert list(bold[0].get_ydata()) == [0.0, 10 * mean, 20 * mean, 30 * mean, 40 * mean]  # type: ignore[arg-type]
        assert list(bold[0].get_xdata())[-1] == (4.0 if by_time else 400.0)  # type: ignore[arg-type]
        assert axes.get_xlabel() == ("seconds of training" if by_time else "environment steps")
        assert any("goal 499" in text.get_text() for text in axes.texts)
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
        (legend,) = figure.legends
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())
        assert legend.get_window_extent().y0 >= 0


def test_what_is_drawn_of_lag_and_throughput() -> None:
    plan = a_plan()
    runs = {"a": [an_outcome(1), an_outcome(3)], "b": [an_outcome(1, lag_mean=None, learned_steps_per_second=7.0)]}
    figure = pictures.lag(runs, plan)
    assert figure is not None
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a"]  # nothing is known of b
    assert [bar.get_width() for bar in axes.patches] == [2.0]  # type: ignore[attr-defined]
    assert [list(line.get_xdata()) for line in axes.lines] == [[3.0, 3.0], [90.0, 90.0]]  # type: ignore[arg-type]
    figure = pictures.throughput(runs, plan)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == [
        "environment steps per second", "learned steps per second", "updates per second"
    ]  # fmt: skip
    widths = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]  # type: ignore[attr-defined]
    assert widths == [[200.0, 100.0], [0.0, 7.0], [5.0, 5.0]]
    texts = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert texts == [["200", "100"], ["not known", "7.00"], ["5.00", "5.00"]]


def test_only_what_is_known_is_drawn(tmp_path: Path) -> None:
    plan = a_plan()
    failed = {"a": [an_outcome(1, failure="WorkerError: x")], "b": []}
    assert pictures.draw(failed, plan, tmp_path) == []
    bare = an_outcome(1, curve=(), lag_mean=None)
    assert [path.name for path in pictures.draw({"a": [bare]}, plan, tmp_path)] == ["throughput.png"]
    once = an_outcome(1, curve=((5, 1.0, 3.0),))
    assert len(pictures.draw({"a": [once, once]}, plan, tmp_path)) == 4


# --- with real runs

SMALL = ["--env", "CartPole-v1", "--agents", "dqn,c51", "--seeds", "1", "--hidden", "16", "--min-size", "200",
         "--capacity", "5000", "--batch-size", "16", "--eval-episodes", "4", "--eval-envs", "4", "--envs-per-actor",
         "4", "--samples-per-insert", "1", "--out", "c"]  # fmt: skip


def started(cwd: Path, *words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "apexrl.cli", "compare", *words]
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.Popen(line, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_two_agents_compared_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    words = [*SMALL, "--env-steps", "3000"]
    first = started(tmp_path, *words)
    try:
        until = time.monotonic() + 240
        while not (tmp_path / "c/runs/apex-c51-seed1/metrics.jsonl").exists() and time.monotonic() < until:
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.02)
        first.send_signal(signal.SIGINT)
        text, _ = first.communicate(timeout=100)
    finally:
        first.kill()
    assert first.returncode == 130, text
    assert "Traceback" not in text
    data = json.loads((tmp_path / "c/compare.json").read_text())
    assert [(run["agent"], run["stopped_by"]) for run in data["runs"]] == [("dqn", "env_steps")]
    assert [one["agent"] for one in data["missing"]] == ["c51"]

    second = started(tmp_path, *words)
    text, _ = second.communicate(timeout=240)
    assert second.returncode == 0, text
    data = json.loads((tmp_path / "c/compare.json").read_text())
    assert [(run["agent"], run["run"]) for run in data["runs"]] == [
        ("dqn", "runs/apex-dqn-seed1"), ("c51", "runs/apex-c51-seed1-2")
    ]  # fmt: skip
    for run in data["runs"]:
        assert run["env_steps"] >= 3000
        assert run["updates"] > 0
        assert 1 <= run["final_return"] <= 500
        assert run["learned_steps_per_second"] == pytest.approx(16 * run["updates"] / run["seconds"], rel=0.3)
    assert "1 of 2 runs are in " in text
    for name in ("compare.md", *pictures.PICTURES):
        assert (tmp_path / "c" / name).stat().st_size > 500
