"""Runs and who holds their folders: one process at a time, and the same command until a run is done."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from recording_observer import Watcher, small

import apexrl
from apexrl import api
from apexrl.cli.main import main
from apexrl.config import Config, EnvConfig, StopConfig, convert
from apexrl.errors import ConfigError, EnvError, FencedError, HeldError, SnapshotError
from apexrl.launch import launch, run_claim
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import Generations, RunLock
from apexrl.run.status import RunStatus
from new_folders import new_folder

ENDLESS = StopConfig(env_steps=0)


@pytest.fixture
def no_pictures() -> None:
    """Here they are looked for."""


def command(config: Config, tmp_path: Path, *words: str) -> subprocess.Popen[bytes]:
    """``apexrl train FILE --name run`` with these settings, in a process of its own."""
    file = tmp_path / "given.toml"
    file.write_text(convert.to_toml(config))
    with (tmp_path / "command.out").open("ab") as output:
        line = [sys.executable, "-m", "apexrl.cli", "train", str(file), "--out", config.out, "--name", "run", *words]
        return subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for(what: Any, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 300.0
    while not what():
        assert time.monotonic() < deadline, "it did not come to pass"
        assert process is None or process.poll() is None, "the command ended"
        time.sleep(0.05)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_is_trained_is_not_resumed_and_is_named_by_its_holder(tmp_path: Path) -> None:
    config = small(tmp_path, stop=ENDLESS)
    process = command(config, tmp_path)
    try:
        generations_file = tmp_path / "run" / "generations.json"
        # the learner's last word in that file, after its first checkpoint; then only the supervisor writes it
        wait_for(lambda: generations_file.exists() and b'"kept"' in generations_file.read_bytes(), process)
        os.killpg(process.pid, signal.SIGSTOP)  # the supervisor: nobody writes what is compared below
        generations, text = (
            (tmp_path / "run" / "generations.json").read_bytes(),
            (tmp_path / "run" / "config.toml").read_bytes(),
        )
        with pytest.raises(HeldError, match=rf"is being trained by process {process.pid} on host .*apexrl.* train"):
            launch(config, resume=tmp_path / "run")
        with pytest.raises(HeldError):
            run_claim.resume_or_start(config, lambda text: None, wait_seconds=0.2)
        resume = [sys.executable, "-m", "apexrl.cli", "resume", str(tmp_path / "run")]
        assert subprocess.run(resume, check=False, capture_output=True).returncode == os.EX_TEMPFAIL
        assert (tmp_path / "run" / "generations.json").read_bytes() == generations
        assert (tmp_path / "run" / "config.toml").read_bytes() == text
        assert api.load(tmp_path / "run", "latest").checkpoint is not None  # who reads needs no lock
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    more = replace(config, stop=StopConfig(env_steps=1))
    assert launch(more, resume=tmp_path / "run")["generation"] > 1  # a killed holder holds nothing


def test_of_two_resumes_at_once_one_runs(tmp_path: Path) -> None:
    first = launch(small(tmp_path, stop=StopConfig(env_steps=1500)))
    more = small(tmp_path, stop=StopConfig(env_steps=first["env_steps"] + 1500))
    ended: list[Any] = []

    def resume() -> None:
        try:
            ended.append(launch(more, resume=tmp_path / "run"))
        except HeldError as error:
            ended.append(error)

    threads = [threading.Thread(target=resume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300.0)
    assert sorted(type(one).__name__ for one in ended) == ["HeldError", "dict"]


def test_a_new_run_takes_no_held_folder(tmp_path: Path) -> None:
    config = replace(small(tmp_path, stop=StopConfig(env_steps=300)), serial=True)
    launch(config)
    lock = RunLock(tmp_path / "run")
    assert launch(config)["generation"] == 1  # in run-2
    lock.close()
    assert RunFolder.open(tmp_path / "run-2").summary()["generation"] == 1


def test_every_life_of_a_writer_has_a_number_of_its_own(tmp_path: Path) -> None:
    """A killed learner's successor writes under a higher one, and the evaluator goes on under its own."""
    killed: list[int] = []

    def act(status: RunStatus) -> bool:
        learner = next(worker for worker in status.workers if worker.role == "learner")
        if not killed and learner.pid and checkpoint.latest(tmp_path / "run" / "checkpoints"):
            killed.append(learner.pid)
            os.kill(learner.pid, signal.SIGKILL)
        return bool(killed) and status.restarts["learner"] == 1 and status.env_steps > 4000

    summary = launch(small(tmp_path, stop=ENDLESS), [Watcher(act)])
    generations = json.loads((tmp_path / "run" / "generations.json").read_text())
    assert (generations["run"], summary["generation"]) == (1, 1)
    assert (
        sorted(generations[name] for name in ("learner-0", "evaluator-0")) == [3, 4] or generations["evaluator-0"] < 4
    )
    newest = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert newest.metadata["generation"] == generations["learner-0"] > generations["evaluator-0"]
    best = checkpoint.best(tmp_path / "run" / "checkpoints")
    assert best is not None
    assert checkpoint.load(best).metadata["generation"] == generations["evaluator-0"]


@pytest.mark.parametrize("serial", [False, True])
def test_a_run_that_was_taken_over_ends_and_writes_nothing_more(tmp_path: Path, serial: bool) -> None:
    """As if its lock had been lost: the successor's number is what stops the writers."""
    folder = tmp_path / "run"
    taken: list[dict[str, bytes]] = []

    def act(status: RunStatus) -> None:
        if not taken and checkpoint.latest(folder / "checkpoints"):
            Generations(folder).begin()
            time.sleep(0.2)  # for a file that was being put in place
            taken.append(written())

    def written() -> dict[str, bytes]:
        """Without what roles print, and who holds the lock."""
        return {name: data for name, data in everything(folder).items() if not name.endswith((".log", "/lock"))}

    config = replace(small(tmp_path, stop=ENDLESS), serial=serial)
    with pytest.raises(FencedError, match=r"newer generation|taken over"):
        api.run(config, observers=[watcher := Watcher(act)])
    assert written() == taken[0]  # no rows, no pictures, no summary
    assert any("has been taken over by another process" in text for text in watcher.texts)


def again(config: Config, **changes: Any) -> apexrl.Run:
    """The command that a supervisor repeats."""
    return api.run(convert.override(config, changes), observers=[Watcher()], resume_or_start=True)


def test_the_same_call_starts_goes_on_and_is_done(tmp_path: Path) -> None:
    config = replace(small(tmp_path, stop=StopConfig(env_steps=600)), serial=True)
    first = again(config)
    assert first.path == tmp_path / "run"
    watcher = Watcher()
    done = api.run(config, observers=[watcher], resume_or_start=True)
    assert (done.path, done.summary) == (first.path, first.summary)
    assert any("is done: env_steps was reached" in text for text in watcher.texts)
    second = again(config, env_steps=1200)  # what ends it may change
    assert second.summary["env_steps"] >= 1200
    assert second.summary["updates"] > first.summary["updates"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_that_has_had_its_updates_goes_on_with_more(tmp_path: Path) -> None:
    config = replace(small(tmp_path, stop=StopConfig(updates=4)), serial=True)
    first = again(config)
    assert first.summary["stopped_by"] == "updates"
    assert again(config).summary == first.summary
    assert again(config, updates=8).summary["updates"] >= 8


def test_a_run_with_defaults_goes_on_to_a_later_end(tmp_path: Path) -> None:
    """They derive from it for how many steps ε falls."""
    words = (
        "train --env CartPole-v1 --agent dqn --topology apex --serial --resume-or-start --eval-episodes 1 --name run"
    )
    for env_steps in (400, 800):
        assert main([*words.split(), "--out", str(tmp_path), "--min-size", "50", "--env-steps", str(env_steps)]) == 0
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] >= env_steps
    assert main([*words.split(), "--out", str(tmp_path), "--min-size", "60", "--env-steps", "900"]) == 2


def test_a_killed_command_goes_on_when_it_is_repeated(tmp_path: Path) -> None:
    config = small(tmp_path, stop=ENDLESS)
    process = command(config, tmp_path, "--resume-or-start")
    try:
        wait_for(lambda: checkpoint.latest(tmp_path / "run" / "checkpoints"), process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    newest = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    steps = newest.metadata["env_steps"] + 300
    for _ in range(2):  # it goes on; then it is done
        process = command(config, tmp_path, "--resume-or-start", "--env-steps", str(steps))
        assert process.wait(300.0) == 0, (tmp_path / "command.out").read_text()
    said = (tmp_path / "command.out").read_text()
    assert "learner-0 restored generation-" in said
    assert said.count("is done: env_steps was reached") == 1
    assert RunFolder.open(tmp_path / "run").summary()["env_steps"] >= steps


def test_a_run_that_never_wrote_a_checkpoint_begins_again_in_its_folder(tmp_path: Path) -> None:
    config = replace(small(tmp_path, stop=StopConfig(env_steps=600)), serial=True)
    folder = new_folder(replace(config, seed=5))
    row = {"kind": "status", "env_steps": 10**6, "updates": 500, "wall_seconds": 9.0}
    folder.metrics_path.write_text(json.dumps(row) + "\n")
    run = again(config)
    assert run.path == folder.path
    assert 600 <= run.summary["env_steps"] < 10**6
    assert folder.config().seed == config.seed


def test_a_run_whose_checkpoints_are_missing_does_not_begin_anew(tmp_path: Path) -> None:
    config = replace(small(tmp_path, stop=StopConfig(env_steps=600)), serial=True)
    run = again(config)
    shutil.rmtree(run.path / "checkpoints")
    before = everything(run.path)
    with pytest.raises(SnapshotError, match="put them back"):
        again(config, env_steps=1200)
    after = everything(run.path)
    assert after == before


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    config = replace(small(tmp_path, stop=StopConfig(env_steps=600)), serial=True)
    again(config)
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match=r"learning_rate is 0\.\d+ there, 0\.5 here; seed is 1 there, 2 here"):
        again(config, learning_rate=0.5, seed=2)
    assert everything(tmp_path) == before


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"is not a run folder: it holds thesis\.tex"):
        again(small(tmp_path))
    with pytest.raises(ConfigError, match="say --name"):
        again(replace(small(tmp_path), name=""))


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(EnvError):
        again(replace(small(tmp_path, env="NoSuchEnvironment-v0"), serial=True))
    assert list(tmp_path.iterdir()) == []


def test_one_that_was_stopped_by_hand_is_done_and_one_that_was_interrupted_is_not(tmp_path: Path) -> None:
    config = replace(small(tmp_path, stop=ENDLESS), serial=True)
    once = api.run(config, observers=[Watcher(lambda status: status.updates > 3)], resume_or_start=True)
    assert once.summary["stopped_by"] == "callback"
    assert again(config).summary == once.summary
    folder = RunFolder.open(once.path)
    folder.generations.run = once.summary["generation"]
    folder.write_summary({**once.summary, "stopped_by": "interrupted"})
    assert again(config, env_steps=once.summary["env_steps"] + 200).summary["generation"] > once.summary["generation"]


class Wanders(CartPoleEnv):
    def __init__(self) -> None:
        super().__init__()
        os.chdir(tempfile.gettempdir())


@pytest.mark.parametrize("serial", [True, False])
def test_a_run_stays_in_its_folder_whoever_leaves_the_working_folder(
    tmp_path: Path, serial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = replace(small(tmp_path), serial=serial, out="runs", env=EnvConfig(env=Wanders))
    run = api.run(replace(config, stop=StopConfig(env_steps=300)))
    assert run.path.parent == tmp_path / "runs"
    assert not run.summary["not_saved"]
    os.chdir(tempfile.gettempdir())
    assert run.agent.spec.action.n == 2
    assert sorted(path.name for path in (run.path / "checkpoints").glob("*.safetensors"))[0] == "best.safetensors"


def test_a_module_that_leaves_the_working_folder_where_it_is_imported_moves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leaving.py").write_text(
        "import os\nimport tempfile\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "os.chdir(tempfile.gettempdir())\nclass Left(CartPoleEnv): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["train", "--env", "leaving:Left", "--agent", "dqn", "--env-steps", "300", "--serial", "--name", "run"]
    try:
        assert main(words) == 0
    finally:
        sys.modules.pop("leaving", None)
    assert capsys.readouterr().out.splitlines()[-1] == "runs/run"
    folder = RunFolder.open(tmp_path / "runs" / "run")
    assert folder.config().out == "runs"
    assert folder.out(folder.config()) == str(tmp_path / "runs")  # which it no longer is from here
