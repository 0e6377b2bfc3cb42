"""Sweeps with real runs: to their end, and killed on the way."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from optuna.trial import TrialState
from whole_sweeps import WORDS, checkpoints, ended, holder, kill, processes_at, started, wait_until

from apexrl.cli.main import main
from apexrl.config.convert import from_toml
from apexrl.sweep.plan import Plan
from apexrl.sweep.study import Study

TINY = (*WORDS, "--serial", "--env-steps", "400", "--over", "learning_rate", "gamma")


def study_in(folder: Path) -> Study:
    return Study(folder, Plan.read(folder))


def test_a_sweep_of_two_trials_from_the_command_to_its_best_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = ended(started(tmp_path, *TINY, "--trials", "2", "--parallel", "2", "--study", "tiny"))
    folder = tmp_path / "sweeps" / "tiny"
    study = study_in(folder)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 2
    assert study.settings(study.trials[0]) == {"learning_rate": 2.3e-3, "gamma": 0.99}  # the preset's own first
    assert study.settings(study.trials[1]) != study.settings(study.trials[0])
    for trial in study.trials:
        run = folder / f"trial-{trial.number}"
        assert trial.value == json.loads((run / "summary.json").read_text())["final_eval_return"]
        of_run = from_toml((run / "config.toml").read_text())
        assert of_run.agent.learning_rate == study.settings(trial)["learning_rate"]
    assert output.splitlines()[-1] == "sweeps/tiny/best.toml"
    winner = max(study.trials, key=lambda trial: (trial.value, trial.user_attrs["area"]))
    best = from_toml((folder / "best.toml").read_text())
    assert best.agent.learning_rate == study.settings(winner)["learning_rate"]

    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "show", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("complete") == 2
    assert "apexrl train" in shown
    assert main(["sweep", "--resume", "tiny"]) == 0  # there is nothing left to do
    assert "2 begun" in capsys.readouterr().out
    assert main(["sweep", *TINY, "--study", "tiny", "--objective", "area"]) == 2
    assert "objective is best there and area here" in " ".join(capsys.readouterr().err.split())


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_sweep_killed_three_times_ends_with_every_trial_resumed(tmp_path: Path) -> None:
    """First the sweep itself, then a run's own process, then the sweep again; at last Ctrl-C."""
    words = (*WORDS, "--env-steps", "8000", "--over", "learning_rate", "--trials", "3", "--pruner", "none",
             "--study", "killed")  # fmt: skip
    folder = tmp_path / "sweeps" / "killed"

    def resumed(number: int) -> bool:
        log = folder / "logs" / f"trial-{number}.log"
        return log.exists() and "learner-0 restored generation-" in log.read_text()

    first = started(tmp_path, *words)
    wait_until(lambda: checkpoints(folder / "trial-0"), "a checkpoint of trial 0")
    kill(first)
    wait_until(lambda: not processes_at(folder), "the end of the run without its sweep")
    assert not (folder / "trial-1").exists()

    second = started(tmp_path, *words)
    wait_until(lambda: checkpoints(folder / "trial-1"), "a checkpoint of trial 1")
    assert resumed(0)
    os.kill(holder(folder / "trial-1"), signal.SIGKILL)
    wait_until(lambda: resumed(1), "the resume of trial 1")
    kill(second)

    third = started(tmp_path, "--resume", "killed", "--parallel", "2")
    wait_until(lambda: checkpoints(folder / "trial-2"), "a checkpoint of trial 2")
    third.send_signal(signal.SIGINT)
    output, _ = third.communicate(timeout=120)
    assert third.returncode == 130, output
    assert not processes_at(folder)

    ended(started(tmp_path, "--resume", "killed"))
    study = study_in(folder)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 3
    for trial in study.trials:
        summary = json.loads((folder / f"trial-{trial.number}" / "summary.json").read_text())
        assert summary["env_steps"] >= 8000
        assert trial.value is not None
    assert sorted(path.name for path in folder.glob("trial-*")) == ["trial-0", "trial-1", "trial-2"]
    assert resumed(2)
    assert not processes_at(folder)
