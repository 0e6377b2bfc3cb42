"""Fewer episodes where these are slow: at the end of a run, and on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evaluated_weights import CONFIG, Round, earlier, evaluate, publish, published

from apexrl.config import ActorConfig, EnvConfig, StopConfig
from apexrl.roles import Evaluator


@pytest.mark.parametrize(
    ("ended", "serial", "rests", "played"),
    [(100, False, True, 2), (0, False, True, 1), (100, False, False, 4), (100, True, True, 6)],
)
def test_final_evaluations_play_fewer_episodes_where_they_are_slow(
    stage: Any, monkeypatch: pytest.MonkeyPatch, ended: int, serial: bool, rests: bool, played: int
) -> None:
    monkeypatch.setattr("apexrl.envs.vector.VectorEnv.rests", rests)
    spec, weights = published(1)
    config = replace(CONFIG, serial=serial)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    evaluator.step()
    assert evaluator._trial is not None
    earlier(evaluator, 39.0)  # nearly ten seconds for a step of each of the four environments
    stage.run.totals.update(episodes=ended, env_steps=ended)  # of one step each; none: the limit of 500 is expected
    publish(weights, spec, 2, seed=9)
    evaluator.close()
    assert evaluator._trial is None  # whose time goes on
    lengths = [len(values["returns"]) for values in stage.values("evaluation")]
    assert lengths
    assert set(lengths) == {played}
    said = [values["text"] for values in stage.values("log")]
    assert [f"play {played} of 6" in text for text in said] == [True] * (not serial)


TWELVE = replace(CONFIG.evaluator, eval_episodes=12)


@pytest.mark.parametrize(
    ("lasted", "changed", "rests", "played"),
    [
        (0, {}, True, 5),  # 2 in a minute, and no fewer than 5
        (1800, {}, True, 6),  # in a tenth of the run, of 30 s each
        (0, {}, False, 8),  # all four environments are stepped, anyway
        (0, {"evaluator": replace(TWELVE, eval_timeout=100.0)}, True, 2),
        (0, {"serial": True}, True, 12),
        (0, {"stop": StopConfig(stop_at_return=500.0)}, True, 12),
        (0, {"stop": StopConfig(stop_without_improvement=3)}, True, 12),
        (0, {"evaluator": replace(TWELVE, eval_period_steps=1)}, True, 12),
        (0, {"evaluator": replace(TWELVE, eval_period_steps=1, eval_timeout=150.0)}, True, 4),
    ],
)
def test_evaluations_on_the_way_play_fewer_episodes_where_they_are_slow(
    stage: Any, monkeypatch: pytest.MonkeyPatch, lasted: int, changed: dict[str, Any], rests: bool, played: int
) -> None:
    monkeypatch.setattr("apexrl.envs.vector.VectorEnv.rests", rests)
    spec, weights = published(1)
    config = replace(CONFIG, serial=False, evaluator=TWELVE)
    evaluator = Evaluator(stage.context("evaluator"), config=replace(config, **changed), spec=spec, weights=weights)
    evaluator._time._seconds = 30.0
    evaluator._time._began -= lasted
    stage.run.totals.update(updates=1, env_steps=1)
    evaluate(evaluator)
    assert [len(values["returns"]) for values in stage.values("evaluation")] == [played]
    said = [values["text"] for values in stage.values("log")]
    assert [f"play {played} of 12" in text for text in said] == [True] * (played < 12)


def test_where_no_episode_has_ended_one_is_as_long_as_training(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, weights = published(1)
    config = replace(CONFIG, serial=False, env=EnvConfig(env=Round), actor=ActorConfig(actors=2, envs_per_actor=5))
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    evaluator.step()
    trial = evaluator._trial
    assert trial is not None
    monkeypatch.setattr("apexrl.roles.trial.Trial.seconds", 8.0)  # of four environments: two a step
    stage.run.totals.update(env_steps=300)
    assert evaluator._time.expected(trial) == 60.0
    stage.run.totals.update(episodes=30)
    assert evaluator._time.expected(trial) == 20.0
    evaluator._time._acting = 0  # other hosts act: an episode is as long as the trial at least
    stage.run.totals.update(episodes=0)
    trial.returns.clear()
    assert evaluator._time.expected(trial) == 2.0


@pytest.mark.parametrize(("known", "played"), [(True, [1, 1]), (False, [6, 1, 1])])
def test_few_episodes_do_not_choose_the_best_weights(
    stage: Any, monkeypatch: pytest.MonkeyPatch, known: bool, played: list[int]
) -> None:
    monkeypatch.setattr("apexrl.envs.vector.VectorEnv.rests", True)
    spec, weights = published(1)
    evaluator = Evaluator(stage.context("evaluator"), config=replace(CONFIG, serial=False), spec=spec, weights=weights)
    stage.run.totals.update(updates=1, env_steps=1000)
    evaluate(evaluator)
    assert [len(values["returns"]) for values in stage.values("evaluation")] == [6]
    evaluator._time._seconds = 25.0 * known
    evaluator._judge = lambda trial, judge=evaluator._judge: (judge(trial), slow(evaluator))  # type: ignore[assignment]
    publish(weights, spec, 2, seed=9)
    evaluator.close()
    assert [len(values["returns"]) for values in stage.values("evaluation")][1:] == played


def slow(evaluator: Evaluator) -> None:
    """The trial that was judged took long."""
    evaluator._time._seconds = 25.0
