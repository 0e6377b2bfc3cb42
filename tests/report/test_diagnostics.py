"""The table of diagnostics, and which of them panel and plain lines mention."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from apexrl.agents import AGENTS
from apexrl.config import AgentConfig, Config
from apexrl.config.convert import flat
from apexrl.config.settings import flag
from apexrl.report.diagnostic_watch import PATIENCE, DiagnosticWatch
from apexrl.report.live_panel import View
from apexrl.report.metric_ranges import DIAGNOSTICS, diagnostic, family, outside, overestimation
from apexrl.report.plain_lines import PlainLines
from apexrl.run.status import RunStatus

CONFIG = Config(agent=AgentConfig(agent="dqn"))


def test_the_farthest_from_its_range_comes_first() -> None:
    found = outside({"dead_units": 0.7, "reward_size": 1e5, "gradient_norm": 3.0, "kl": 9.0, "loss": 1e9}, "replay")
    assert [one.diagnostic.name for one in found] == ["reward_size", "dead_units"]
    assert outside({"dead_units": 0.6, "relative_update": math.nan}, "replay") == []
    (low,) = outside({"relative_update": 1e-6}, "unrolls")
    assert low.diagnostic.advice(low.value) == "a larger --learning-rate"


@pytest.mark.parametrize("entry", DIAGNOSTICS, ids=lambda entry: f"{entry.name}-{entry.families[0]}")
def test_advice_names_settings_that_exist(entry: object) -> None:
    assert isinstance(entry, type(DIAGNOSTICS[0]))
    flags = {flag(name) for name in flat(Config())}
    for end, advice in ((entry.low, entry.if_low), (entry.high, entry.if_high)):
        named = {word.strip(",;.") for word in advice.split() if word.startswith("--")}
        assert named <= flags
        assert bool(named) == (math.isfinite(end) and entry != diagnostic("clipped_gradients", "unrolls"))


def test_every_shipped_agent_has_a_family() -> None:
    assert {name for name in AGENTS if family(name) == "unrolls"} == {"a2c", "impala", "ppo", "appo", "pqn"}


def test_overestimation_is_relative_to_the_larger_return() -> None:
    assert overestimation(10.0, 5.0) == 0.5
    assert overestimation(-5.0, -10.0) == 0.5
    assert overestimation(5.0, 10.0) == -0.5
    assert overestimation(10.0, -10.0) == 2.0
    assert overestimation(0.0, 0.0) == 0.0


def status(updates: int, dead: float) -> RunStatus:
    return RunStatus(phase="training", updates=updates, metrics={"dead_units": dead, "loss": float(updates)})


def test_a_metric_is_mentioned_after_some_reports_in_a_row() -> None:
    watch = DiagnosticWatch(CONFIG.agent)
    for report in range(PATIENCE - 1):
        watch.update(status(report, 0.9))
        watch.update(status(report, 0.9))  # the same report again
    assert watch.line() == ""
    watch.update(status(99, 0.9))
    assert watch.line() == (
        "try a smaller --learning-rate, or --normalize-observations: dead_units is 0.90 (healthy: at most 0.6)"
    )
    watch.update(status(100, 0.1))
    assert watch.line() == ""


def test_advice_leaves_out_what_is_set_already_and_tells_small_rewards_from_none() -> None:
    watch = DiagnosticWatch(AgentConfig(agent="dqn", normalize_returns=True, double=True))
    for size, advice in ((1e6, "try --reward-scale: "), (0.0, "try rewards on the way to the goal, or more ex")):
        for report in range(PATIENCE):
            watch.update(RunStatus(metrics={"reward_size": size, "loss": float(report)}))
        assert watch.line().startswith(advice)
    over = diagnostic("overestimation", "replay")
    assert over is not None
    assert over.advice(2.0, ["--double"]) == "a smaller --learning-rate, or a slower target"
    assert over.advice(2.0) == over.if_high


@pytest.mark.parametrize(
    ("share", "update", "advice"),
    [
        (1.0, 1e-5, "try a larger --l"),
        (0.1, 1e-5, ""),
        (0.999, 1e-9, "try a larger --l"),
        (0.1, 0.5, "try a smaller --l"),
    ],
)
def test_a_step_size_that_falls_may_make_small_updates(share: float, update: float, advice: str) -> None:
    config = AgentConfig(agent="ppo")
    watch = DiagnosticWatch(config)
    for report in range(PATIENCE):
        metrics = {
            "relative_update": update,
            "learning_rate": share * config.learning_rate,
            "loss": float(report),
        }
        watch.update(RunStatus(metrics=metrics))
    assert watch.line().partition("earning")[0] == advice


def test_evaluations_tell_of_overestimation() -> None:
    watch = DiagnosticWatch(CONFIG.agent)
    for report in range(PATIENCE):
        watch.evaluated({"mean": 1.0, "expected_return": 100.0, "discounted_return": 1.0})
        watch.evaluated({"mean": 1.0, "expected_return": 1.0, "discounted_return": 1.0, "final": True})
        watch.update(status(report, 0.1))
    assert watch.line().endswith("overestimation is 0.99 (healthy: at most 0.5)")


def test_clipped_gradients_are_no_matter_while_evaluations_get_better() -> None:
    watch = DiagnosticWatch(CONFIG.agent)
    watch.evaluated({"mean": 1.0})  # of untrained weights
    for report in range(PATIENCE):
        metrics = {"clipped_gradients": 1.0, "gradient_norm": 1e6, "loss": float(report)}
        watch.update(RunStatus(metrics=metrics))
    assert "clipped_gradients is 1" in watch.line()
    watch.evaluated({"mean": 2.0})
    assert "clipped_gradients" not in watch.line()
    assert "gradient_norm is" in watch.line()
    for _ in range(PATIENCE):
        watch.evaluated({"mean": 2.0})
    assert "clipped_gradients is 1" in watch.line()


@pytest.mark.parametrize(
    ("reached", "grows", "mentioned"), [(0.0, 0.0, False), (0.1, 0.0, True), (0.1, 0.02, False), (0.4, 0.0, False)]
)
def test_the_replay_ratio_that_is_reached_is_watched_unless_it_rises(
    reached: float, grows: float, mentioned: bool
) -> None:
    watch = DiagnosticWatch(CONFIG.agent)
    for report in range(PATIENCE + 1):
        watch.update(RunStatus(samples_per_insert=reached + grows * report, metrics={"loss": float(report)}))
    advice = "try a larger --updates-per-step, or fewer actors: samples_per_insert is 0.10 (healthy: at least 0.3)"
    assert watch.line() == advice * mentioned


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_has_one_line_of_them(width: int) -> None:
    view = View()
    view.began(CONFIG, Path("runs/x"))
    for report in range(PATIENCE):
        view.status = status(report, 0.9)
        view.status.metrics |= {"reward_size": 1e6, "gradient_norm": 1e9}
        view.note_training()
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view.render(width))
    lines = [line for line in console.file.getvalue().splitlines() if "│  try " in line]  # type: ignore[attr-defined]
    assert len(lines) == 1
    assert "try --normalize-returns, or --reward-scale: reward_size is 1.00M" in lines[0]
    assert ("dead_units is 0.90" in lines[0]) == (width == 120)
    assert "gradient_norm" not in lines[0]  # it is no wonder with such rewards


def test_plain_lines_mention_each_once() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    lines = PlainLines(console)
    lines.started(CONFIG, Path("runs/x"))
    for report in range(3 * PATIENCE):
        lines.update(status(report, 0.9))
    assert console.file.getvalue().count("dead_units is") == 1  # type: ignore[attr-defined]
