"""Callbacks watch and steer a run, and their errors end it cleanly; what environments tell arrives everywhere."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, small
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from apexrl.config import Config, StopConfig
from apexrl.errors import CallbackError, ConfigError
from apexrl.launch import launch, worker_slots
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.run import callback_observer, checkpoint
from apexrl.run.callback_observer import CallbackObserver, callback_observers
from apexrl.run.callbacks import Callback, CheckpointReport, EndedEpisodes, EvaluationReport
from apexrl.run.episode_metrics import MOST_NAMES
from apexrl.run.folder import RunFolder
from apexrl.run.metric_samples import samples, status_scalars
from apexrl.run.metrics import read_rows
from apexrl.run.status import RunStatus
from new_folders import new_folder
from telling_envs import Telling


class Remembering(Callback):
    """Remembers what it was called with, and records a metric of its own."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.where: set[tuple[int, bool]] = set()

    def _note(self, name: str, value: Any = None) -> None:
        self.calls.append((name, value))
        self.where.add((os.getpid(), threading.current_thread() is threading.main_thread()))

    def on_start(self) -> None:
        self._note("start", self.run.folder)
        self.run.record(answer=42)
        self.run.tell("a callback speaks")

    def on_status(self, status: RunStatus) -> None:
        self._note("status", status)

    def on_episodes(self, episodes: EndedEpisodes) -> None:
        self._note("episodes", episodes)

    def on_evaluation(self, evaluation: EvaluationReport) -> None:
        self._note("evaluation", evaluation)

    def on_checkpoint(self, checkpoint: CheckpointReport) -> bool:
        self._note("checkpoint", checkpoint)
        return any(name == "evaluation" for name, _ in self.calls)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._note("end", summary)

    def of(self, name: str) -> list[Any]:
        return [value for called, value in self.calls if called == name]


def telling(tmp_path: Path, **changes: Any) -> Config:
    config = small(tmp_path, env=Telling, stop=StopConfig(minutes=1.0))
    return replace(config, env=replace(config.env, info_metrics=("won",)), **changes)


def test_a_run_with_a_callback(tmp_path: Path) -> None:
    seen = Remembering()
    config = telling(tmp_path)
    summary = launch(replace(config, learner=replace(config.learner, checkpoint_seconds=0.2)), [CallbackObserver(seen)])
    assert summary["stopped_by"] == "callback"
    assert seen.where == {(os.getpid(), True)}
    assert seen.calls[0] == ("start", tmp_path / "run")
    assert seen.calls[-1] == ("end", seen.of("end")[0])
    assert seen.of("end")[0]["stopped_by"] == "callback"
    told = seen.of("episodes")[-1]
    assert told.count == len(told.returns) == len(told.lengths) == told.metrics["won"].episodes
    assert told.metrics["steps"][1:] == (3.0, 3.0, 3.0)
    measured = seen.of("evaluation")
    assert measured[0].metrics["level"] == (4, 1.0, 1.0, 1.0)
    assert {one.weights for one in measured} == {"", "best", "last"}
    assert seen.of("checkpoint")[-1].path.name.startswith("generation-")

    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    last = [row for row in rows if row["kind"] == "status"][-1]
    assert (last["episode/steps_mean"], last["episode/won_min"], last["episode/level_max"]) == (3.0, 1.0, 1.0)
    assert last["custom/answer"] == 42.0
    assert not {name for name in last if "text" in name or "bad" in name}
    evaluated = next(row for row in rows if row["kind"] == "evaluation")
    assert evaluated["metrics"]["won"] == {"episodes": 4, "mean": 1.0, "least": 1.0, "most": 1.0}
    assert any(row.get("text") == "a callback speaks" for row in rows)
    events = EventAccumulator(str(tmp_path / "run")).Reload()  # type: ignore[no-untyped-call]
    assert {"episode/steps_mean", "custom/answer", "eval/won_max"} <= set(events.Tags()["scalars"])


class Failing(Callback):
    """Raises in one method."""

    def __init__(self, method: str, error: type[BaseException] = ValueError) -> None:
        self.error = error
        setattr(self, method, self._fail)

    def _fail(self, *args: Any) -> None:
        raise self.error("the callback's own words")


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_of_a_callback_stops_the_run_after_a_checkpoint(tmp_path: Path, error: type[BaseException]) -> None:
    raised = rf"on_evaluation raised {error.__name__}: the callback's own words \(.*test_callbacks.py:\d+\)"
    with pytest.raises(CallbackError, match=f"callback Failing: {raised}") as caught:
        launch(telling(tmp_path), [CallbackObserver(Failing("on_evaluation", error))])
    assert isinstance(caught.value.__cause__, error)
    folder = RunFolder(tmp_path / "run")
    assert folder.summary()["stopped_by"] == "error"
    assert "the callback's own words" in folder.summary()["error"]
    assert folder.summary()["final_eval_return"] is None  # such a run ends quickly
    assert checkpoint.latest(folder.checkpoints) is not None


def test_nobody_is_killed_for_the_time_of_a_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grace = 6.0
    monkeypatch.setattr(worker_slots, "_HURRIED_SECONDS", grace)
    monkeypatch.setattr(worker_slots, "_HURRIED_CHECKPOINT_SECONDS", grace)
    watcher, began = Watcher(), time.monotonic()

    def stuck(status: RunStatus) -> None:
        if status.updates:
            time.sleep(grace + 1.0)
            raise TimeoutError("the server did not answer")

    with pytest.raises(CallbackError, match="the server did not answer"):
        launch(telling(tmp_path), [CallbackObserver(stuck), watcher])
    assert not [text for text in watcher.texts if "was killed" in text]
    folder = RunFolder(tmp_path / "run")
    assert checkpoint.latest(folder.checkpoints) is not None
    assert grace < folder.summary()["wall_seconds"] < time.monotonic() - began


@pytest.mark.parametrize("method", ["on_start", "on_episodes"])
def test_an_error_anywhere_ends_a_serial_run(tmp_path: Path, method: str) -> None:
    with pytest.raises(CallbackError, match=f"{method} raised ValueError"):
        launch(telling(tmp_path, serial=True), [CallbackObserver(Failing(method))])


def test_an_error_at_the_end_leaves_the_summary_of_a_run_that_ended_well(tmp_path: Path) -> None:
    config = telling(tmp_path, serial=True, stop=StopConfig(env_steps=300))
    with pytest.raises(CallbackError, match="on_end raised ValueError"):
        launch(config, [CallbackObserver(Failing("on_end"))])
    assert RunFolder(tmp_path / "run").summary()["stopped_by"] == "env_steps"


def ledger_of(tmp_path: Path, *callbacks: Any) -> Ledger:
    config = Config(name="run", out=str(tmp_path))
    ledger = Ledger(config, new_folder(config), [CallbackObserver(one) for one in callbacks], Base(), 0.0)
    ledger.open()
    return ledger


def test_names_are_bounded_and_what_has_none_is_counted(tmp_path: Path) -> None:
    class Recording(Callback):
        def on_status(self, status: RunStatus) -> None:
            self.run.record(**{f"own{number}": number for number in range(MOST_NAMES + 6)})

    ledger = ledger_of(tmp_path, Recording())
    told = {f"m{number}": [2, 1.0, 0.0, 2.0] for number in range(MOST_NAMES)}
    for values in (told, {"one more": [3, 1.0, 1.0, 1.0], "bad": "x"}, {"m0": [200, 5.0, 4.0, 6.0]}):
        ledger.hear("episodes", {"returns": [1.0], "lengths": [1], "metrics": values})
    ledger.show()
    status = ledger.tick(
        1.0, totals=lambda name: 0, replay={}, version=0, workers=[], restarts={}, dropped={"messages": 0}
    )
    assert status.dropped == {"messages": 0, "episode_metrics": 3, "custom_metrics": 6}
    scalars = status_scalars(status)
    assert (scalars["episode/m0_mean"], scalars["episode/m0_min"], scalars["episode/m1_max"]) == (5.0, 4.0, 2.0)
    assert scalars["custom/own63"] == 63.0
    exported = {sample.metric.prometheus: sample.value for sample in samples(status)}
    assert exported["apexrl_episode_m0_mean"] == 5.0
    assert exported["apexrl_custom_own1"] == 1.0
    ledger.close()


def test_a_callback_can_stop_with_a_reason(tmp_path: Path) -> None:
    class Enough(Callback):
        def on_evaluation(self, evaluation: EvaluationReport) -> str:
            return f"{evaluation.mean:g} is enough"

    ledger = ledger_of(tmp_path, Enough())
    ledger.hear("evaluation", {"mean": 9.0, "std": 0.0, "returns": [9.0], "episodes": 1, "final": False})
    assert ledger.stop_reason == "9 is enough"
    ledger.close()


@pytest.mark.parametrize("word", ["interrupted", "error"])
def test_a_callback_cannot_stop_as_a_run_that_would_be_resumed(word: str, tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, lambda status: word)
    ledger.show()
    assert isinstance(ledger.failure, CallbackError)
    assert f"a callback cannot stop a run as {word!r}" in str(ledger.failure)
    ledger.close()


@pytest.mark.parametrize("word", ["interrupted", "error", "", {"a": 1}])
def test_nor_by_the_run_that_it_is_given(word: Any, tmp_path: Path) -> None:
    class Stops(Callback):
        def on_evaluation(self, evaluation: EvaluationReport) -> None:
            self.run.stop(word)

    ledger = ledger_of(tmp_path, Stops())
    ledger.hear("evaluation", {"mean": 9.0, "std": 0.0, "returns": [9.0], "episodes": 1, "final": False})
    assert isinstance(ledger.failure, CallbackError)
    assert f"a callback cannot stop a run as {word!r}" in str(ledger.failure)
    ledger.close()


@pytest.mark.parametrize("answer", [True, np.float32(9.0) > 8.0, False, np.float32(9.0) > 10.0, None, "", 1])
def test_true_stops_also_as_a_comparison_of_numpy_has_it(answer: Any, tmp_path: Path) -> None:
    class Answering(Callback):
        def on_checkpoint(self, checkpoint: CheckpointReport) -> Any:
            return answer

    stops = type(answer) is not int and bool(answer)
    ledgers = []
    for number, callback in enumerate((Answering(), lambda status: answer)):
        (tmp_path / str(number)).mkdir()
        ledgers.append(ledger_of(tmp_path / str(number), callback))
    ledgers[0].hear("checkpoint", {"path": "x", "updates": 1})
    ledgers[1].show()
    for ledger in ledgers:
        assert ledger.stop_reason == ("callback" if stops else None)
        ledger.close()


def test_ctrl_c_interrupts_a_callback_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback_observer, "INTERRUPTIBLE_SECONDS", 0.1)

    calls = []

    def forever(status: RunStatus) -> None:
        calls.append(status)
        time.sleep(60.0)

    ledger = ledger_of(tmp_path, forever)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with Interrupts() as interrupts:
        timer.start()
        ledger.show()
        assert interrupts.count == 1
    ledger.show()  # not called again: it would hang
    assert len(calls) == 1
    ledger.close()


def test_an_interrupt_of_its_own_stops_the_run(tmp_path: Path) -> None:
    def leaves(status: RunStatus) -> None:
        raise KeyboardInterrupt

    class LeavesAtOnce(Callback):
        def on_start(self) -> None:
            raise KeyboardInterrupt

    for number, callback in enumerate((leaves, LeavesAtOnce())):
        ledger = ledger_of(tmp_path / str(number), callback)
        ledger.show()
        assert ledger.stop_reason == "callback"
        ledger.close()


def test_an_error_in_our_code_names_the_line_that_called_it(tmp_path: Path) -> None:
    class Wrong(Callback):
        def on_status(self, status: RunStatus) -> None:
            self.run.record(mood="good")  # type: ignore[arg-type]

    ledger = ledger_of(tmp_path, Wrong())
    ledger.show()
    said = r"on_status raised ValueError: record\(mood='good'\): a metric must be a number \(.*test_callbacks.py:\d+\)"
    with pytest.raises(CallbackError, match=said):
        ledger.check()
    ledger.close()


def test_a_callback_that_takes_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(callback_observer, "INTERRUPTIBLE_SECONDS", 0.02)
    monkeypatch.setattr(callback_observer, "LONG_SECONDS", 0.1)
    said = []

    def slow(status: RunStatus) -> None:
        deadline = time.monotonic() + 30.0
        while not said and time.monotonic() < deadline:
            time.sleep(0.02)
            said.extend(capsys.readouterr().err.splitlines())

    ledger = ledger_of(tmp_path, Callback(), slow)
    ledger.show()
    ledger.close()
    (text,) = said  # once, and of the one that it is
    assert "slow has been at work for 0.1 s" in text


def test_one_callback_needs_no_list() -> None:
    def once(status: Any) -> None: ...

    assert len(callback_observers(once)) == len(callback_observers(Remembering())) == 1
    assert len(callback_observers([once, Remembering()])) == 2
    with pytest.raises(ConfigError, match="write Remembering\\(\\)"):
        callback_observers(Remembering)  # type: ignore[arg-type]


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(ConfigError, match="write Remembering\\(\\)"):
        CallbackObserver(Remembering)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="3 is no callback"):
        CallbackObserver(3)  # type: ignore[arg-type]
