"""What ``apexrl sweep`` refuses, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.trial import TrialState

from apexrl import presets
from apexrl.cli.main import main
from apexrl.config.convert import override, to_toml
from apexrl.sweep.plan import Plan
from apexrl.sweep.search_space import search_space
from apexrl.sweep.study import Study


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cartpole"], "give the length of a trial's runs: --env-steps N"),
        (["cartpole", "--env-steps", "100", "--trials", "0"], "--trials must be at least 1"),
        (["cartpole", "--env-steps", "100", "--parallel", "0"], "--parallel must be at least 1"),
        (["cartpole", "--env-steps", "100", "--name", "mine"], "runs are called by their trials"),
        (["cartpole", "--env-steps", "100", "--redis", "redis://h"], "start the command on other hosts too"),
        (["cartpole", "--env-steps", "100", "--tracker", "wandb"], "--tracker means nothing to apexrl sweep"),
        (["cartpole", "--env-steps", "100", "--trust", "my_sim"], "--trust is for a FILE.toml of somebody else"),
        (["cartpole", "--env-steps", "100", "--over", "gama"], "did you mean 'gamma'"),
        (["cartpole", "--env-steps", "100", "--envs", "CartPole-v1"], "leave that out"),
        (["--envs", "my_sim:Plant-v0", "--env-steps", "100"], "its returns are not known"),
        (["--envs", "CartPole-v1=1..b", "--env-steps", "100"], "is not RANDOM..GOOD"),
        (["cartpole", "--env-steps", "100", "--population", "1"], "--population must be at least 2"),
        (["cartpole", "--env-steps", "100", "--population", "4", "--trials", "9"], "mean nothing with it"),
        (["cartpole", "--env-steps", "100", "--population", "4", "--over", "hidden"], "cannot change while a member"),
        (
            ["cartpole", "--env-steps", "100", "--population", "4", "--pruner", "none"],
            "leave out --objective, --pruner",
        ),
        (["cartpole", "--env-steps", "100", "--rounds", "4"], "say --population"),
        (["--resume", "nowhere"], "is not a study"),
        (["--resume", "nowhere", "--over", "gamma"], "has the study's own settings"),
        (["cartpole", "--resume", "nowhere"], "leave out cartpole"),
        (["show", "nowhere"], "is not a study"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_name_code_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = override(presets.preset("cartpole").config, {"env": "my_sim:Plant-v0", "env_steps": 100})
    (tmp_path / "mine.toml").write_text(to_toml(config))
    for trusted, said in (((), "--trust my_sim"), (("--trust", "my_sim"), "did you mean 'gamma'")):
        assert main(["sweep", "mine.toml", "--over", "gama", *trusted]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_study_of_somebody_else_runs_no_code_that_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_sim.py").write_text("raise SystemExit('it was imported')")
    config = override(presets.preset("cartpole").config, {"env": "their_sim:Plant-v0", "env_steps": 100})
    Plan((config,), search_space(config, ["gamma"]), 2).write(tmp_path)
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert "--trust their_sim" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "trial-0").exists()


def test_a_study_of_somebody_else_is_shown_without_code_that_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_agent.py").write_text("from apexrl.agents.dqn import DQN\nprint('it was imported')\n")
    config = override(presets.preset("cartpole").config, {"agent": "their_agent:DQN", "env_steps": 100})
    plan = Plan((config,), search_space(config, ["gamma"]), 1)
    plan.write(tmp_path)
    study = Study(tmp_path, plan)
    claimed = study.next()
    assert claimed is not None
    study.tell(claimed, TrialState.COMPLETE, 1.0)
    assert main(["sweep", "show", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert f"apexrl sweep show {tmp_path} --trust their_agent" in " ".join(told.err.split())
    assert "it was imported" not in told.out
    assert main(["sweep", "show", str(tmp_path), "--trust", "their_agent"]) == 0
    assert "best: trial 0" in " ".join(capsys.readouterr().out.split())
