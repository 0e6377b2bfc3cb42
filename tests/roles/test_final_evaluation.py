"""What an evaluator measures at the end of a run: the best and the last weights, on seeds that chose neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evaluated_weights import CONFIG, Still, evaluate, make, measured, publish, published

from apexrl.config import EnvConfig
from apexrl.envs.toy import Endless
from apexrl.errors import SnapshotError
from apexrl.roles import Evaluator
from apexrl.roles.trial import Trial
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.shared.weights_board import InlineWeights
from apexrl.spec import EnvSpec


def test_the_best_is_kept_on_disk_and_measured_at_the_end(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, weights, spec = make(stage, 1)
    scores = [10.0, 30.0, 20.0, 5.0]
    monkeypatch.setattr(Trial, "mean", property(lambda self: scores[len(stage.said)]))
    monkeypatch.setattr(Trial, "step", lambda self: False)
    monkeypatch.setattr(Evaluator, "_send", lambda self, trial, candidate, weights="": stage.said.append((
        weights or "evaluation", candidate.version)))  # fmt: skip
    for version in (2, 3):
        evaluate(evaluator)
        publish(weights, spec, version)
        stage.run.totals["env_steps"] += 1000
    evaluate(evaluator)
    evaluator.close()
    assert stage.said == [("evaluation", 1), ("evaluation", 2), ("evaluation", 3), ("best", 2), ("last", 3)]
    folder = RunFolder(stage.context("x").folder).checkpoints
    path = checkpoint.best(folder)
    assert path is not None
    found = checkpoint.load(path)
    assert found.metadata["version"] == 2
    assert found.metadata["eval_return"] == 30.0


def test_weights_without_an_update_are_the_best_only_until_others_are_measured(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator, weights, spec = make(stage, 1)
    scores = [30.0, 10.0, 9.0, 10.0, 10.0]
    monkeypatch.setattr(Trial, "mean", property(lambda self: scores[len(stage.said)]))
    monkeypatch.setattr(Trial, "step", lambda self: False)
    monkeypatch.setattr(Evaluator, "_send", lambda self, trial, candidate, weights="": stage.said.append(
        (weights, candidate.version)))  # fmt: skip
    for version in (2, 3):
        evaluate(evaluator)
        publish(weights, spec, version)
        stage.run.totals["env_steps"] += 1000
        stage.run.totals["updates"] += 10
    evaluate(evaluator)
    evaluator.close()
    assert stage.said == [("", 1), ("", 2), ("", 3), ("best", 2), ("last", 3)]


def test_a_successor_remembers_the_best(stage: Any) -> None:
    evaluator, _, spec = make(stage, 4)
    evaluate(evaluator)
    best = stage.values("evaluation")[0]["mean"]
    successor = Evaluator(stage.context("evaluator"), config=CONFIG, spec=spec, weights=InlineWeights())
    successor.close()
    final = stage.values("evaluation")[-1]
    assert (final["final"], final["version"], final["episodes"]) == (True, 4, 6)
    assert successor._best_return == best


def test_a_successor_of_a_damaged_file_chooses_the_best_anew(stage: Any) -> None:
    evaluator, _, spec = make(stage, 4)
    evaluate(evaluator)
    path = checkpoint.best(RunFolder(stage.context("x").folder).checkpoints)
    assert path is not None
    path.write_bytes(path.read_bytes()[:500])
    weights = InlineWeights()
    publish(weights, spec, 5)
    successor = Evaluator(stage.context("evaluator"), config=CONFIG, spec=spec, weights=weights)
    (said,) = stage.values("log")
    assert said["level"] == "warning"
    assert said["text"].startswith("the best weights are chosen anew")
    assert "best.safetensors: it is truncated or corrupt" in said["text"]
    successor.close()
    assert checkpoint.load(path).metadata["version"] == 5


def test_a_file_that_cannot_be_read_now_is_not_given_up(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, weights, spec = make(stage, 4)
    evaluate(evaluator)

    def fails(*words: Any, **more: Any) -> Any:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("safetensors.safe_open", fails)
    with pytest.raises(SnapshotError, match="Stale file handle"):
        Evaluator(stage.context("evaluator"), config=CONFIG, spec=spec, weights=weights)


def test_a_hurried_stop_skips_the_final_evaluation(stage: Any) -> None:
    evaluator, _, _ = make(stage, 1)
    evaluate(evaluator)
    stage.run.stopping = stage.run.hurried = True
    evaluator.close()
    assert [values["final"] for values in stage.values("evaluation")] == [False]


def test_the_best_and_the_last_weights_are_measured_on_the_same_fresh_seeds(stage: Any) -> None:
    trials = measured(stage, CONFIG.evaluator, 3)
    *earlier, best, last = stage.values("evaluation")
    assert [values["version"] for values in earlier] == [1, 2, 3]
    assert [(values["final"], values["weights"], values["version"]) for values in (best, last)] == [
        (True, "best", 1),
        (True, "last", 3),
    ]
    assert trials.seeds[-1] == trials.seeds[-2]
    assert len(set(trials.seeds)) == 4
    assert all((trials.weights[-2][name] == array).all() for name, array in trials.weights[0].items())
    assert all((trials.weights[-1][name] == array).all() for name, array in trials.weights[2].items())


def test_where_the_best_weights_are_the_last_they_are_measured_once(stage: Any) -> None:
    trials = measured(stage, CONFIG.evaluator, 1)
    _, best, last = stage.values("evaluation")
    assert len(trials.seeds) == 2
    assert best["returns"] == last["returns"]
    assert (best["weights"], last["weights"], best["version"], last["version"]) == ("best", "last", 1, 1)


def test_haste_skips_the_last_weights(stage: Any) -> None:
    trials = measured(stage, CONFIG.evaluator, 2, hurry=True)
    assert len(trials.seeds) == 3  # two on the way, and the best


def test_a_final_evaluation_ends_at_its_time_limit(stage: Any) -> None:
    settings = replace(CONFIG.evaluator, eval_timeout=1e-9)
    measured(stage, settings, 2)
    assert stage.values("evaluation") == []
    assert all("an evaluation was given up" in values["text"] for values in stage.values("log"))


def _end_with_an_update(stage: Any, evaluator: Evaluator, weights: InlineWeights, spec: EnvSpec) -> None:
    """The learner publishes once more while the final measurements go on."""
    measure, updates = evaluator._measure, stage.run.totals["updates"]

    def measured_meanwhile(*asked: Any) -> Any:
        if stage.run.totals["updates"] == updates:
            stage.run.totals["updates"] += 1
            publish(weights, spec, 2)
        return measure(*asked)

    evaluator._measure = measured_meanwhile  # type: ignore[method-assign]
    evaluator.close()


@pytest.mark.parametrize("looked", [True, False])
def test_weights_of_the_only_update_at_the_end_are_the_best(stage: Any, looked: bool) -> None:
    evaluator, weights, spec = make(stage, 1)
    if looked:
        evaluate(evaluator)
        evaluator._best_return = 1000.0  # of weights that have learned nothing
    else:
        evaluator.step()  # its only evaluation has yet to end
    _end_with_an_update(stage, evaluator, weights, spec)
    told = [(values.get("weights"), values["version"]) for values in stage.values("evaluation")]
    assert told == [(None, 1), (None, 2), ("best", 2), ("last", 2)][not looked :]
    path = checkpoint.best(evaluator._folder)
    assert path is not None
    assert checkpoint.load(path).metadata["version"] == 2


@pytest.mark.parametrize("better", [True, False])
def test_weights_of_the_last_update_are_judged_though_all_evaluations_have_ended(stage: Any, better: bool) -> None:
    evaluator, weights, spec = make(stage, 1)
    stage.run.totals["updates"] = 1
    evaluate(evaluator)
    evaluator._best_return = 0.0 if better else 1000.0
    _end_with_an_update(stage, evaluator, weights, spec)
    told = [(values.get("weights"), values["version"]) for values in stage.values("evaluation")]
    assert told == [(None, 1), (None, 2), ("best", 2 if better else 1), ("last", 2)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("patience", [0.02, 3600.0])
@pytest.mark.parametrize("warned", [False, True])
def test_where_no_episode_ends_the_final_evaluation_lasts_no_longer_than_the_run_did(
    stage: Any, monkeypatch: pytest.MonkeyPatch, patience: float, warned: bool
) -> None:
    monkeypatch.setattr("apexrl.roles.evaluation_time._LEAST_SECONDS", 0.1)
    monkeypatch.setattr("apexrl.roles.evaluator._FINAL_PATIENCE_SECONDS", patience)
    spec, weights = published(1)
    env = EnvConfig(env=Endless)  # without the time limit that it is registered with
    settings = replace(CONFIG.evaluator, eval_timeout=3600.0)
    config = replace(CONFIG, evaluator=settings, env=env)
    evaluator = Evaluator(stage.context("evaluator"), config=config, spec=spec, weights=weights)
    evaluator._agent = Still()  # type: ignore[assignment]
    evaluator._agent.load = lambda weights: None  # type: ignore[method-assign]
    assert evaluator.step()
    evaluator._warned = warned
    evaluator.close()
    assert stage.values("evaluation") == []
    *told, given_up = (values["text"] for values in stage.values("log"))
    assert ["This evaluation is given up after" in text for text in told] == [True] * (patience < 1.0)
    assert "0 episodes ended" in given_up
