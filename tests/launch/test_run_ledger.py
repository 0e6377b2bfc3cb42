from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher

from apexrl.config import Config, StopConfig
from apexrl.config.metric_bounds import metric_bound
from apexrl.errors import ConfigError, FencedError
from apexrl.launch.resumed_from import Base, base_of, check_ahead
from apexrl.launch.run_ledger import Ledger
from apexrl.report.plain_lines import line
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.metric_samples import status_scalars
from apexrl.run.status import RunStatus
from apexrl.topologies.validation import validate
from new_folders import new_folder


def ledger_of(tmp_path: Path, stop: StopConfig | None = None, base: Base | None = None, **observing: Any) -> Any:
    config = Config(name="run", out=str(tmp_path), stop=stop or StopConfig())
    watcher = Watcher(**observing)
    return Ledger(config, new_folder(config), [watcher], base or Base(), began=100.0), watcher


def tick(ledger: Ledger, now: float, **totals: int) -> RunStatus:
    counts = {"env_steps": 0, "updates": 0, "episodes": 0, "lag_wait_ms": 0, **totals}
    return ledger.tick(
        now, totals=counts.__getitem__, replay={"size": 5}, version=3, workers=[], restarts={}, dropped={}
    )


def evaluation(mean: float, final: bool = False) -> dict[str, Any]:
    return {"mean": mean, "std": 0.0, "episodes": 20, "returns": [mean] * 20, "final": final}


def test_time_counts_from_the_first_step_to_the_stop(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    assert tick(ledger, 103.0).startup_seconds == 3.0
    assert not ledger.started
    tick(ledger, 104.0, env_steps=1)
    status = tick(ledger, 110.0, env_steps=500)
    assert (status.startup_seconds, status.elapsed_seconds) == (3.0, 7.0)
    ledger.training_ends(112.0)
    status = tick(ledger, 150.0, env_steps=500)
    assert (status.elapsed_seconds, status.phase) == (9.0, "stopping")


def test_a_run_that_ends_within_one_look_took_time(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    tick(ledger, 103.0)
    ledger.training_ends(103.25)
    assert tick(ledger, 103.25, env_steps=500, updates=9).elapsed_seconds == 0.25


def test_a_clock_goes_on_while_a_run_ends(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    tick(ledger, 102.0, env_steps=5)
    assert tick(ledger, 104.0, env_steps=9).ending_seconds == 0.0
    ledger.training_ends(104.0)
    status = tick(ledger, 110.0, env_steps=9)
    assert (status.ending_seconds, status.shown_seconds - status.elapsed_seconds) == (6.0, 6.0)
    assert "left" not in line(replace(status, eta_seconds=0.0))


def test_phases_follow_the_counters(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    assert tick(ledger, 101.0).phase == "starting"
    assert tick(ledger, 102.0, env_steps=10).phase == "filling"
    assert tick(ledger, 103.0, env_steps=10, updates=1).phase == "training"


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, base=Base(env_steps=1000, updates=50, elapsed_seconds=60.0, best_eval_return=7.0))
    status = tick(ledger, 101.0, env_steps=1000, updates=50)
    assert (status.elapsed_seconds, status.phase, status.best_eval_return) == (60.0, "starting", 7.0)
    tick(ledger, 102.0, env_steps=1001, updates=50)
    status = tick(ledger, 104.0, env_steps=1200, updates=51)
    assert (status.elapsed_seconds, status.phase) == (63.0, "training")


def test_updates_per_step_are_counted_from_the_first_update_on(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, base=Base(env_steps=1000, updates=50))
    assert tick(ledger, 101.0, env_steps=1500, updates=50).updates_per_step == 0.0  # the replay is filled again
    assert tick(ledger, 102.0, env_steps=1600, updates=60).updates_per_step == 0.1  # a run may end here
    assert tick(ledger, 103.0, env_steps=2000, updates=160).updates_per_step == 0.25


def test_a_run_of_a_single_look_has_updates_per_step(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    assert tick(ledger, 101.0, env_steps=400, updates=100).updates_per_step == 0.25


@pytest.mark.parametrize(
    ("stop", "seconds", "steps", "reason"),
    [
        (StopConfig(env_steps=100), 1.0, 99, None),
        (StopConfig(env_steps=100), 1.0, 100, "env_steps"),
        (StopConfig(minutes=0.5), 29.0, 10, None),
        (StopConfig(minutes=0.5), 30.0, 10, "minutes"),
        (StopConfig(), 1e6, 10**9, None),
    ],
)
def test_stop_rules(tmp_path: Path, stop: StopConfig, seconds: float, steps: int, reason: str | None) -> None:
    ledger, _ = ledger_of(tmp_path, stop)
    tick(ledger, 101.0, env_steps=1)
    tick(ledger, 101.0 + seconds, env_steps=steps)
    assert ledger.stop_reason == reason


def test_an_evaluation_stops_the_run_but_a_final_one_is_only_noted(tmp_path: Path) -> None:
    ledger, watcher = ledger_of(tmp_path, StopConfig(stop_at_return=50.0))
    ledger.hear("evaluation", evaluation(90.0, final=True))
    ledger.hear("evaluation", evaluation(49.9))
    assert ledger.stop_reason is None
    ledger.hear("evaluation", evaluation(50.0))
    ledger.stop("env_steps")
    assert ledger.stop_reason == "stop_at_return"  # the first reason holds
    status = tick(ledger, 101.0, env_steps=1)
    assert (status.eval_return, status.best_eval_return) == (50.0, 50.0)
    assert len(watcher.said("evaluation")) == 3


def test_training_returns_are_averaged_over_the_latest_hundred(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    assert tick(ledger, 101.0).train_return is None
    ledger.hear("episodes", {"returns": [1000.0, 1.0, 3.0], "lengths": [1, 1, 1]})
    ledger.hear("episodes", {"returns": [2.0] * 98, "lengths": [1] * 98})
    assert tick(ledger, 102.0).train_return == pytest.approx(2.0)


def test_metrics_and_lag_with_null_for_nan(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    report = {"reporter": "learner-0", "generation": 0, "lag": [1.0, 2.0, 3.0], "run_lag": [4.0, 5.0, None]}
    report |= {"lag_histogram": {"1": 3}, "run_lag_histogram": {"1": 3, "4": 7}}
    ledger.hear("metrics", {"values": {"loss": 0.5, "q": None}, **report})
    status = tick(ledger, 101.0)
    assert status.metrics["loss"] == 0.5
    assert math.isnan(status.metrics["q"])
    assert status.policy_lag == (1.0, 2.0, 3.0)
    assert status.lag_histogram == {1: 3}
    summary = ledger.close()
    assert summary["policy_lag"]["mean"] == 4.0
    assert (summary["policy_lag"]["steps"], summary["policy_lag"]["histogram"]) == (10, {"1": 3, "4": 7})
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["policy_lag"]["max"] is None


def test_an_observer_that_answers_true_stops_the_run(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, act=lambda status: status.env_steps > 10)
    tick(ledger, 101.0, env_steps=10)
    ledger.show()
    assert ledger.stop_reason is None
    tick(ledger, 102.0, env_steps=11)
    ledger.show()
    assert ledger.stop_reason == "callback"


def test_the_summary_says_what_the_final_evaluation_found(tmp_path: Path) -> None:
    ledger, watcher = ledger_of(tmp_path)
    ledger.hear("evaluation", evaluation(80.0))
    ledger.hear("evaluation", {**evaluation(70.0, final=True), "weights": "best"})
    ledger.hear("evaluation", {**evaluation(60.0, final=True), "weights": "last"})
    ledger.stop("minutes")
    tick(ledger, 101.0, env_steps=1)
    summary = ledger.close()
    assert summary == watcher.summary
    assert (summary["best_eval_return"], summary["final_eval_return"], summary["final_eval_episodes"]) == (80, 70, 20)
    assert (summary["last_weights_return"], summary["last_weights_episodes"]) == (60, 20)
    assert summary["stopped_by"] == "minutes"


def test_a_failed_run_says_so(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    summary = ledger.close(error="EnvError: broken")
    assert (summary["stopped_by"], summary["error"]) == ("error", "EnvError: broken")


def test_untrained_weights_are_the_best_until_others_are_evaluated(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    for mean, updates, best in ((9.0, 0, 9.0), (8.0, 0, 9.0), (3.0, 5, 3.0), (2.0, 7, 3.0), (4.0, 9, 4.0)):
        ledger.hear("evaluation", {**evaluation(mean), "updates": updates})
        assert ledger.status.best_eval_return == best
    for best_updates, best in ((9, 4.0), (0, 3.0)):
        base = Base(updates=9, best_eval_return=4.0, best_updates=best_updates)
        resumed, _ = ledger_of(tmp_path / str(best), base=base)
        resumed.hear("evaluation", {**evaluation(3.0), "updates": 11})
        assert resumed.status.best_eval_return == best


def test_untrained_weights_are_no_measure_of_what_did_not_improve(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, StopConfig(stop_without_improvement=3))
    for mean, updates in ((9.0, 0), (3.0, 5), (4.0, 7), (5.0, 9), (4.0, 11), (4.0, 13)):
        ledger.hear("evaluation", {**evaluation(mean), "updates": updates})
        assert ledger.stop_reason is None
    ledger.hear("evaluation", {**evaluation(4.0), "updates": 15})
    assert ledger.stop_reason == "stop_without_improvement"


def test_what_a_run_had_reached_is_read_from_whatever_is_there(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    folder = ledger.folder
    assert base_of(folder) == Base()
    folder.metrics_path.write_text(
        '{"kind": "status", "env_steps": 500, "updates": 9, "episodes": 3, "wall_seconds": 12.5}\n{"kind": "stat'
    )
    assert base_of(folder) == Base(env_steps=500, updates=9, episodes=3, elapsed_seconds=12.5)
    folder.write_summary({"env_steps": 400, "updates": 20, "wall_seconds": 3.0, "best_eval_return": 5.0})
    assert base_of(folder) == Base(500, 20, 3, 12.5, 5.0, 20)
    best = checkpoint.save_best(folder.checkpoints, {"w": np.zeros(1, np.float32)}, {"eval_return": 4.0, "updates": 0})
    assert base_of(folder) == Base(500, 20, 3, 12.5, 4.0, 0), "the log has an evaluation of weights that are not kept"
    best.write_bytes(b"damaged")
    assert base_of(folder) == Base(500, 20, 3, 12.5, 5.0, 20)


def test_what_could_not_be_saved_is_in_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, _ = ledger_of(tmp_path)
    ledger.hear("not_saved", {"what": "a checkpoint"})
    assert ledger.close()["not_saved"] == ["a checkpoint"]
    assert ledger.folder.summary()["not_saved"] == ["a checkpoint"]

    def refused(self: RunFolder, summary: Any) -> None:
        raise OSError("the folder is gone")

    monkeypatch.setattr(RunFolder, "write_summary", refused)
    monkeypatch.setattr("apexrl.launch.run_ledger.SUMMARY_SECONDS", 0.0)
    assert ledger.close()["not_saved"] == ["a checkpoint", "the summary"]


@pytest.mark.parametrize(
    ("answer", "reason"), [(True, "callback"), ("lost slots", "lost slots"), (False, None), (1, None)]
)
def test_an_observer_may_stop_the_run_and_say_why(answer: Any, reason: str | None, tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path, act=lambda status: answer)
    ledger.show()
    assert ledger.stop_reason == reason


def test_what_goes_wrong_between_hosts_is_in_the_status_and_the_summary(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    told = {"weights_published": 1, "weights_trouble": "Redis is full"}
    ledger.hear("intake", told)
    status = tick(ledger, 101.0)  # weights version 3
    assert status.trouble == "Redis is full"
    assert status.hosts == {"weights_published": 1, "weights_behind": 2}
    assert status_scalars(status)["hosts/weights_behind"] == 2
    assert "weights of other hosts: 2 versions behind: Redis is full" in line(status)
    assert ledger.close()["hosts"] == told
    ledger.hear("intake", told | {"weights_trouble": ""})
    assert "versions behind" not in line(tick(ledger, 102.0))


@pytest.mark.parametrize(("kind", "lost"), [("intake", "missing"), ("uplink", "dropped_items")])
def test_what_went_between_hosts_is_in_status_and_summary(kind: str, lost: str, tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    assert "items" not in tick(ledger, 101.0).dropped
    ledger.hear(kind, {lost: 1, "waiting": 9})
    ledger.hear(kind, {lost: 3, "waiting": 0})
    assert tick(ledger, 102.0).dropped == {"items": 3}
    assert ledger.close()["hosts"] == {lost: 3, "waiting": 0}


def test_a_run_on_one_machine_has_nothing_to_say_of_hosts(tmp_path: Path) -> None:
    ledger, _ = ledger_of(tmp_path)
    assert "hosts" not in ledger.close()


@pytest.mark.parametrize(
    ("stop", "had", "told"),
    [
        (StopConfig(minutes=0.5), {"wall_seconds": 42.0}, r"has had 0\.7 of --minutes 0\.5: .*say more, or 0"),
        (StopConfig(minutes=0.7), {"wall_seconds": 42.0}, "--minutes"),
        (StopConfig(minutes=0.0, env_steps=1000), {"env_steps": 1003}, "has had 1,003 of --env-steps 1,000"),
        (StopConfig(updates=60), {"updates": 60}, "has had 60 of --updates 60"),
        (StopConfig(minutes=0.8, env_steps=1004), {"env_steps": 1003, "wall_seconds": 42.0}, ""),
        (StopConfig(minutes=0.0, env_steps=0), {"env_steps": 1003, "wall_seconds": 42.0}, ""),
        (StopConfig(minutes=0.5), {"wall_seconds": 42.0, "stopped_by": "error"}, ""),  # it may come to its end
    ],
)
def test_who_goes_on_with_a_run_says_for_longer_than_it_had(
    stop: StopConfig, had: dict[str, Any], told: str, tmp_path: Path
) -> None:
    folder = new_folder(Config(name="run", out=str(tmp_path)))
    check_ahead(stop, folder)  # there is no summary
    folder.summary_path.write_text(json.dumps({"stopped_by": "minutes", **had}))
    with pytest.raises(ConfigError, match=told) if told else nullcontext():
        check_ahead(stop, folder)


def test_numbers_of_lives_that_cannot_be_read_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.launch.run_ledger.SUMMARY_SECONDS", 0.0)
    ledger, watcher = ledger_of(tmp_path)
    ledger.folder.generations.begin()
    ledger.folder.generations.path.write_text("{")
    ledger.hear("checkpoint", {"path": "x", "updates": 1})
    assert ledger.number("learner-0") is None
    ledger.note("spec", ledger.folder.generations.check)
    ledger.show()
    assert ledger.close(error="EnvError: the real one")["error"] == watcher.summary["error"]
    assert any("generations.json cannot be read" in text and "The summary: " in text for text in watcher.texts)
    ledger.folder.generations.path.unlink()  # as it says
    assert ledger.number("learner-0") == 2


def test_a_run_that_was_taken_over_is_shown_no_more(tmp_path: Path) -> None:
    ledger, watcher = ledger_of(tmp_path)
    ledger.folder.generations.begin()
    ledger.show()
    RunFolder(ledger.folder.path).generations.begin()
    with pytest.raises(FencedError, match="has been taken over"):
        ledger.show()
    assert len(watcher.statuses) == 1
    ledger.note("hosts.json", ledger.folder.generations.check)
    ledger.close(error="FencedError")
    assert watcher.summary
    assert not ledger.folder.summary_path.exists()


def test_a_run_without_improvement_ends(tmp_path: Path) -> None:
    ledger, watcher = ledger_of(tmp_path, StopConfig(stop_without_improvement=2), Base(best_eval_return=5.0))
    for mean in (4.0, 6.0, 6.0):
        ledger.hear("evaluation", evaluation(mean))
    assert ledger.stop_reason is None
    ledger.hear("evaluation", evaluation(5.9))
    assert ledger.stop_reason == "stop_without_improvement"
    assert watcher.texts[-1] == "no evaluation of the last 2 was better than 6 (--stop-without-improvement)"


def test_a_metric_beyond_its_bound_ends_the_run(tmp_path: Path) -> None:
    ledger, watcher = ledger_of(tmp_path, StopConfig(stop_when=("agent/loss > 10", "train_return<-5")))
    ledger.status.metrics = {"loss": math.nan}
    tick(ledger, 101.0)
    assert ledger.stop_reason is None
    ledger.status.metrics = {"loss": 11.0}
    tick(ledger, 102.0)
    assert ledger.stop_reason == "stop_when"
    assert watcher.texts[-1] == "agent/loss is 11, > 10 (--stop-when)"


@pytest.mark.parametrize("text", ["loss", "loss>", "loss>x", "loss>nan", "loss=3", ">3", ""])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no bound: write NAME>NUMBER"):
        metric_bound(text)


@pytest.mark.parametrize(
    ("text", "near"),
    [("loss>1", "agent/loss"), ("train_retrun<0", "train_return"), ("agent/los>3", "agent/loss"),
     ("agnet/q>3", "agent/q"), ("inference/bacth>3", "inference/batch"), ("machine/cpus>3", "machine/cpu")],
)  # fmt: skip
def test_a_bound_of_no_metric_is_told_the_nearest(text: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no metric .* .did you mean '{near}'"):
        validate(Config(stop=StopConfig(env_steps=1, stop_when=("custom/mine>3", text))))


def test_a_bound_of_what_is_known_later_is_warned_of_once_when_the_run_does_not_report_it(tmp_path: Path) -> None:
    bounds = "custom/lvel>3", "agent/kl>1", "episode/won<0", "agent/loss>10"
    config = Config(stop=StopConfig(env_steps=10**9, stop_when=bounds))
    validate(config)
    ledger, watcher = ledger_of(tmp_path, config.stop)
    ledger.record({"level": 1.0})
    tick(ledger, 101.0, env_steps=100)
    ledger.status.metrics = {"loss": 1.0}
    for second in range(110, 160):  # no episode has ended: what environments tell may come yet
        tick(ledger, float(second), env_steps=100 * second)
    assert not any("--stop-when" in text for text in watcher.texts)
    for second in range(160, 180):
        tick(ledger, float(second), env_steps=100 * second, episodes=3)
    assert [text for text in watcher.texts if "--stop-when" in text] == [
        "--stop-when agent/kl: this run has reported no such metric so far",
        "--stop-when custom/lvel: this run has reported no such metric so far (did you mean 'custom/level'?)",
        "--stop-when episode/won: this run has reported no such metric so far",
    ]
    assert ledger.stop_reason is None
