"""Evaluations after every so many environment steps: which weights, in which order, and when they wait."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evaluated_weights import CONFIG, Still, Trials, earlier, evaluate, publish, published

from apexrl.config import Config, EnvConfig, EvaluatorConfig, ReplayConfig
from apexrl.config.convert import check_values
from apexrl.envs.toy import Endless
from apexrl.errors import ConfigError
from apexrl.roles import Evaluator, weights_by_steps
from apexrl.roles.weights_by_steps import WeightsBySteps
from apexrl.shared.weights_board import InlineWeights

BY_STEPS = EvaluatorConfig(eval_episodes=2, eval_envs=2, eval_period_steps=1000)


def taken(waiting: WeightsBySteps) -> list[tuple[int, int]]:
    """Versions and environment steps of all that wait."""
    found = iter(waiting.take, None)
    return [(one.version, one.env_steps) for one in found]


def small(version: int, weights: InlineWeights) -> None:
    weights.publish({"weight": np.full(4, float(version), np.float32)}, version)


def test_weights_are_taken_once_in_a_period(stage: Any) -> None:
    weights, totals = InlineWeights(), stage.run.totals
    totals["env_steps"] = 2500  # of a resumed run
    waiting = WeightsBySteps(stage.context("evaluator"), weights, 1000)
    small(1, weights)
    for env_steps in (2999, 3000, 3400, 4800):
        totals["env_steps"] = env_steps
        small(env_steps, weights)
        waiting.look()
    totals["env_steps"] = 5100  # weights of 4,800 steps are still the newest
    waiting.look()
    small(5101, weights)
    waiting.look()  # this period is over
    totals["env_steps"] = 9200
    waiting.look()
    assert taken(waiting) == [(3000, 3000), (4800, 4800), (5101, 9200)]
    assert totals["missed_evaluations"] == 3  # of 6,000 to 8,000 steps


def test_weights_that_find_no_room_are_counted(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, totals = InlineWeights(), stage.run.totals
    waiting = WeightsBySteps(stage.context("evaluator"), weights, 10)
    monkeypatch.setattr(weights_by_steps, "MOST_BYTES", 40)  # two of 16 bytes each
    for version in range(1, 5):
        totals["env_steps"] += 10
        small(version, weights)
        waiting.look()
    assert [version for version, _ in taken(waiting)] == [1, 2]
    assert totals["missed_evaluations"] == 2
    monkeypatch.setattr(weights_by_steps, "MOST_BYTES", 4)
    totals["env_steps"] += 10
    small(5, weights)
    waiting.look()
    assert [version for version, _ in taken(waiting)] == [5]  # one may always wait


def run(stage: Any) -> tuple[Evaluator, Trials, InlineWeights, list[dict[str, Any]]]:
    """An evaluator of a run in which seven periods passed while it had time for the first evaluation alone."""
    spec, weights = published(1)
    config = replace(CONFIG, evaluator=BY_STEPS)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    trials, sent = Trials(evaluator), []
    send = evaluator._context.send
    evaluator._context.send = lambda kind, **values: (  # type: ignore[method-assign]
        sent.append(values) if kind == "evaluation" else None,
        send(kind, **values),
    )
    for version in range(2, 9):
        stage.run.totals["env_steps"] += 1000
        stage.run.totals["updates"] = version
        publish(weights, spec, version)
        evaluator.step()
    return evaluator, trials, weights, sent


def test_weights_that_wait_are_evaluated_in_order(stage: Any) -> None:
    evaluator, trials, _, sent = run(stage)
    evaluate(evaluator)
    assert [(one["version"], one["env_steps"]) for one in sent] == [(n, (n - 1) * 1000) for n in range(2, 9)]
    assert len(set(trials.seeds)) == 7
    assert evaluator._best is not None
    assert evaluator._best.version == max(sent, key=lambda one: (one["mean"], one["version"]))["version"]


def test_weights_that_still_wait_are_evaluated_after_training(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]  # only this test lets time pass
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    evaluator, _, _, sent = run(stage)
    assert not sent  # the first one is in progress
    now[0] = 130.0
    judge = evaluator._judge
    evaluator._judge = lambda trial: (now.append(now.pop() + 7.0), judge(trial))  # type: ignore[assignment]
    evaluator.close()
    assert {one.get("seconds_ago") for one in sent if not one["final"]} == {30.0}  # before training ended
    assert not any("seconds_ago" in one for one in sent if one["final"])
    assert [one["version"] for one in sent if not one["final"]] == list(range(2, 9))
    best = max((one for one in sent if not one["final"]), key=lambda one: (one["mean"], one["version"]))
    final = {one["weights"]: one["version"] for one in sent if one["final"]}
    assert final == {"best": best["version"], "last": 8}


def test_those_that_wait_end_with_the_goal(stage: Any) -> None:
    evaluator, _, _, sent = run(stage)
    evaluator._goal = 1.0
    evaluator.close()
    assert [one["version"] for one in sent if not one["final"]] == [2]
    assert stage.run.totals["missed_evaluations"] == 6


def test_haste_ends_those_that_wait(stage: Any) -> None:
    evaluator, _, _, sent = run(stage)
    judge = evaluator._judge
    evaluator._judge = lambda trial: (judge(trial), setattr(stage.run, "hurried", len(sent) == 3))  # type: ignore[assignment]
    evaluator.close()
    assert [one["version"] for one in sent] == [2, 3, 4]
    assert stage.run.totals["missed_evaluations"] == 4


def test_those_that_wait_play_what_their_time_limit_allows(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.envs.vector.VectorEnv.rests", True)
    evaluator, _, _, sent = run(stage)
    evaluator._time._serial, evaluator._time._timeout = False, 100.0
    judge = evaluator._judge
    evaluator._judge = lambda trial: (judge(trial), setattr(evaluator._time, "_seconds", 70.0))  # type: ignore[assignment]
    evaluator.close()
    assert [one["episodes"] for one in sent if not one["final"]] == [2, 1, 1, 1, 1, 1, 1]


def test_where_no_episode_ends_those_that_wait_are_given_up(stage: Any) -> None:
    spec, weights = published(1)
    config = replace(CONFIG, evaluator=BY_STEPS, env=EnvConfig(env=Endless), serial=False)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    evaluator._agent = Still()  # type: ignore[assignment]
    evaluator._agent.load = lambda weights: None  # type: ignore[method-assign]
    for version in range(2, 9):
        stage.run.totals["env_steps"] += 1000
        publish(weights, spec, version)
        evaluator.step()
    earlier(evaluator, 3600.0)
    evaluator.close()
    assert not stage.values("evaluation")
    assert stage.run.totals["missed_evaluations"] == 6


def test_nobody_waits_for_them_where_the_run_is_hurried(stage: Any) -> None:
    evaluator, _, _, sent = run(stage)
    stage.run.hurried = True
    evaluator.close()
    assert not sent
    assert stage.run.totals["missed_evaluations"] == 6  # and one is in progress


def test_no_steps_are_counted_without_an_environment() -> None:
    config = Config(topology="offline", replay=ReplayConfig(dataset="somewhere"), evaluator=BY_STEPS)
    with pytest.raises(ConfigError, match="--eval-period-steps counts environment steps"):
        check_values(config)
