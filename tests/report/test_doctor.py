"""``apexrl doctor`` on runs that were spoilt on purpose, and on healthy ones. ``spoilt_runs.py`` made the folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args, get_type_hints

import pytest
from spoilt_runs import CASES, RUNS, shorten, train

from apexrl.agents import unread, with_agent
from apexrl.cli.main import main
from apexrl.config import AgentConfig, Config
from apexrl.config.convert import flat, override
from apexrl.report.diagnosis import diagnose
from apexrl.report.diagnosis.finding import LISTED, Cause
from apexrl.report.diagnosis.recorded_run import Evaluation, RunRecord

SPOILT = [name for name, case in CASES.items() if case.causes]
HEALTHY = [name for name, case in CASES.items() if not case.causes]


def check(name: str, causes: list[Cause]) -> None:
    """That a spoilt run's cause is named, and of a healthy run no likely one."""
    if right := CASES[name].causes:
        assert any(cause.name in right for cause in causes), causes
    else:
        assert not any(cause.likely for cause in causes), causes


def record(name: str = "healthy-dqn", **settings: Any) -> RunRecord:
    """A run's record without metrics, with some settings changed."""
    return RunRecord(flat(override(Config(), settings)))


def evaluation(length: int, terminated: float = 1.0, mean: float = 1.0) -> Evaluation:
    return Evaluation(mean, (mean,) * 10, (length,) * 10, terminated, None, None)


@pytest.mark.parametrize("name", CASES)
def test_spoilt_runs_have_their_cause_named_and_healthy_ones_none(name: str) -> None:
    check(name, diagnose(RunRecord.of(RUNS / name)))


@pytest.mark.parametrize("name", SPOILT)
def test_a_cause_has_evidence_of_the_run_and_something_to_change(name: str) -> None:
    causes = diagnose(RunRecord.of(RUNS / name))
    assert 1 <= len(causes) <= 3
    assert [cause.confidence for cause in causes] == sorted((c.confidence for c in causes), reverse=True)
    for cause in causes:
        assert LISTED <= cause.confidence <= 1.0
        assert cause.change
        assert {one.where for one in cause.evidence} <= {"config.toml", "metrics.jsonl", "summary.json"}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_trained_again_they_are_told_apart_as_well(name: str, tmp_path: Path) -> None:
    shorten(train(name, tmp_path), tmp_path / "short")
    check(name, diagnose(RunRecord.of(tmp_path / "short")))


def test_exit_code_and_text_of_a_spoilt_and_of_a_healthy_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(RUNS / "learning-rate-x100")]) == 3
    text = capsys.readouterr().out
    assert "1. The learning rate is too large" in text
    assert "--learning-rate 0.23" in text
    assert "change: --learning-rate 0.001" in text
    assert main(["doctor", str(RUNS / "healthy-dqn")]) == 0
    assert "Nothing looks wrong." in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(RUNS / "support-narrow"), "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["causes"][0]["cause"] == "support_narrow"
    assert {"text": "--v-max 1", "where": "config.toml"} in said["causes"][0]["evidence"]
    assert main(["doctor", str(RUNS / "healthy-ppo"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["causes"] == []


def test_a_running_run_and_damaged_rows_are_read(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "learning-rate-1000th", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "env_spec.json").unlink()
    rows = tmp_path / "run" / "metrics.jsonl"
    bad = '{"kind": "status", "updates": "many", "agent/q": [1]}\n{"kind": "evaluation", "returns": 3}\n[]\n{"kind'
    rows.write_text(rows.read_text() + bad)
    assert diagnose(RunRecord.of(tmp_path / "run"))[0].name == "learning_rate_small"
    rows.unlink()
    assert [cause.likely for cause in diagnose(RunRecord.of(tmp_path / "run"))] == [False]  # the setting alone


def test_of_a_run_without_metrics_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(RUNS / "healthy-dqn", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"\x00\xff\n{}\n")
    assert main(["doctor", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().out
    assert "Nothing can be said" in told
    assert "looks wrong" not in told


def test_no_run_is_told_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_settings_that_the_agent_does_not_read_are_not_blamed() -> None:
    stands = record(epsilon=0.0, target_period_updates=10**6)
    assert stands.reads("target_period_updates")
    noisy = record(epsilon=0.0, noisy=True)
    names = {cause.name for cause in diagnose(noisy)}
    assert "exploration_none" not in names
    assert "exploration_none" in {cause.name for cause in diagnose(stands)}


@pytest.mark.parametrize("optimizer", get_args(get_type_hints(AgentConfig)["optimizer"]))
def test_steps_of_every_optimizer_are_judged(optimizer: str) -> None:
    rates = {100.0: "learning_rate_large", 1e-9: "learning_rate_small"}
    for rate, name in rates.items():
        causes = diagnose(record(optimizer=optimizer, learning_rate=rate))
        assert [cause.name for cause in causes if cause.name.startswith("learning_rate")] == [name]


@pytest.mark.parametrize(("polyak", "still"), [(1e-7, True), (1e-4, True), (0.005, False), (0.0, True)])
def test_a_target_that_follows_too_slowly_stands_still(polyak: float, still: bool) -> None:
    rows = [{"kind": "status", "updates": 2_000, "env_steps": 8_000}]
    settings = flat(override(Config(), {"polyak": polyak, "target_period_updates": 1_500}))
    found = [cause for cause in diagnose(RunRecord(settings, rows)) if cause.name == "target_rare"]
    assert bool(found) == still
    for cause in found:
        assert cause.change == ("--polyak 0.005" if polyak else "--target-period-updates 100")


@pytest.mark.parametrize(
    ("settings", "size", "change"),
    [
        ({"normalize_observations": True}, 0.0, "return from env.step()"),
        ({"normalize_observations": True, "observation_clip": 5e-4}, 5e-4, "--observation-clip 10"),
        ({}, 0.0, "return from env.step()"),
        ({}, 1e-4, "--normalize-observations"),
    ],
)
def test_observations_that_say_nothing_are_told_from_small_ones(settings: Any, size: float, change: str) -> None:
    rows = [{"kind": "status", "updates": updates, "agent/observation_size": size} for updates in (1, 2)]
    found = diagnose(RunRecord(flat(override(Config(), settings)), rows))
    assert [cause.change.startswith(change) for cause in found if cause.name == "observations_small"] == [True]


@pytest.mark.parametrize(
    ("agent", "entropy", "kl", "mean", "named"),
    [
        ("ppo", -4.0, 0.5, 100.0, True),  # σ = exp(-2 - 1.42) = 0.033; the policy jumps, though it had learned
        ("ppo", -4.0, 0.0, 1.0, True),
        ("ppo", -4.0, 0.0, 100.0, False),
        ("ppo", -2.0, 0.5, 1.0, False),  # σ = 0.089
        ("sac", -4.0, 0.5, 1.0, False),  # has no least deviation
    ],
)
def test_a_deviation_that_vanished_is_named(agent: str, entropy: float, kl: float, mean: float, named: bool) -> None:
    rows = [{"kind": "status", "updates": n, "agent/entropy": entropy, "agent/kl": kl} for n in (1, 2)]
    rows = [row | {"train_return": value} for row, value in zip(rows, (1.0, mean), strict=True)]
    seen = (evaluation(90), evaluation(90, mean=mean))
    settings, unused = flat(with_agent(Config(), agent)), frozenset(unread(agent))
    given = RunRecord(settings, rows, seen, unused=unused, numbers=2)
    found = [cause for cause in diagnose(given) if cause.name == "deviation_lost"]
    assert [cause.change for cause in found] == ["--least-std 0.1"] * named
    assert [cause for cause in diagnose(replace(given, numbers=0)) if cause.name == "deviation_lost"] == []


def test_a_game_of_fixed_length_is_no_time_limit() -> None:
    rounds = tuple(evaluation(8, mean=mean) for mean in (1.0, 2.0, 3.0))
    assert diagnose(RunRecord(flat(Config()), (), rounds)) == []
    limit = (evaluation(9), evaluation(200, mean=9.0), evaluation(200, mean=9.0))
    assert [cause.name for cause in diagnose(RunRecord(flat(Config()), (), limit))] == ["limit_as_end"]
    cut = tuple(replace(one, terminated=0.0) for one in limit)
    assert diagnose(RunRecord(flat(Config()), (), cut)) == []


def test_returns_that_rise_make_every_cause_less_likely() -> None:
    short = {"gamma": 0.5}
    flat_run = (evaluation(90), evaluation(90, mean=1.1))
    rising = (evaluation(90), evaluation(90, mean=50.0))
    (bad,), (good,) = (
        diagnose(RunRecord(flat(override(Config(), short)), (), evaluations)) for evaluations in (flat_run, rising)
    )
    assert bad.name == good.name == "gamma_small"
    assert bad.likely
    assert not good.likely


def test_a_support_of_scaled_returns_is_compared_with_no_raw_ones() -> None:
    rows = [{"kind": "status", "updates": updates, "agent/support_edges": 0.9} for updates in (1, 2)]
    seen = tuple(replace(evaluation(100, mean=1e5), expected=1e4, observed=1e4) for _ in range(2))
    wanted = {
        (): "--v-min 0 --v-max 100000",
        (("reward_scale", 1e-4),): "--v-min 0 --v-max 10",
        (("normalize_returns", True),): "--v-min -10 --v-max 10",
    }
    for given, change in wanted.items():
        settings = {"distribution": "categorical", "v_min": -5.0, "v_max": 5.0, **dict(given)}
        found = diagnose(RunRecord(flat(override(Config(), settings)), rows, seen))
        assert [cause.change for cause in found if cause.name == "support_narrow"] == [change]


def test_episodes_of_one_step_are_a_cause_only_where_nothing_is_learned() -> None:
    flat_run = (evaluation(1, mean=1.0), evaluation(1, mean=1.0))
    rising = (evaluation(1, mean=1.0), evaluation(1, mean=2.0))
    for seen, named in ((flat_run, True), (rising, False)):
        causes = diagnose(RunRecord(flat(Config()), (), seen))
        assert ("ends_at_once" in {cause.name for cause in causes}) == named


@pytest.mark.parametrize(
    ("before", "after", "rose"),
    [
        ([10.0, 38.0] * 10, 47.0, True),  # 24 ± 14 of at most 50
        ([10.0, 38.0] * 10, 27.0, False),
        ([24.0] * 20, 25.0, False),
        ([24.0] * 20, 27.0, True),
        ([24.0], 25.0, False),  # one episode has no deviation
    ],
)
def test_returns_rose_by_more_than_chance(before: list[float], after: float, rose: bool) -> None:
    first, last = (replace(evaluation(90, mean=fmean(one)), returns=tuple(one)) for one in (before, [after] * 20))
    record = RunRecord(flat(Config()), (), (first, last))
    assert record.risen < 0.5
    assert record.rose == rose


def test_a_policy_that_explores_in_training_has_risen_by_its_evaluations() -> None:
    rows = [{"train_return": value} for value in (10.0, 11.0)]
    seen = (evaluation(90, mean=10.0), evaluation(90, mean=20.0))
    record = RunRecord(flat(override(Config(), {"agent": "ppo"})), rows, seen)
    assert record.risen == 1.0
    assert record.learned < 0.5


def test_a_first_evaluation_of_trained_weights_is_no_start() -> None:
    def learned(updates: int, first_return: float) -> float:
        at_goal = Evaluation(500.0, (500.0,) * 10, (500,) * 10, 0.0, None, None, updates)
        rows = [{"train_return": first_return}, {"train_return": 400.0}]
        return RunRecord(flat(override(Config(), {"agent": "dqn"})), rows, [at_goal, at_goal]).learned

    assert learned(0, 20.0) == 0.0
    assert learned(1000, 20.0) == 1.0
    assert learned(1000, 500.0) == 0.0
