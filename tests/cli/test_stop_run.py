"""``apexrl stop RUN``: who is told to end, who is not, and what is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apexrl.cli.main import main
from apexrl.config import Config
from apexrl.run.ownership import LOCK_FILE, RunLock, held
from new_folders import new_folder

HOLDER = """
import signal, sys
from pathlib import Path
from apexrl.run.ownership import RunLock
lock = RunLock(Path(sys.argv[1]))
number = signal.SIGTERM if sys.argv[2] == "ends" else signal.SIGINT
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
print("held", flush=True)
signal.sigwait({number})
lock.close()
"""
HANGING = """
import time
from pathlib import Path
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
class Hangs(CartPoleEnv):
    def step(self, action):
        if Path("run").is_dir():
            print("it hangs", flush=True)
            time.sleep(600.0)
        return super().step(action)
gym.register("Hangs-v0", Hangs)
"""
SMALL = "--actors 1 --envs-per-actor 2 --min-size 100 --batch-size 16 --minutes 10 --eval-episodes 2"
Holds = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_folder(Config(name="run", out=str(tmp_path))).path


@pytest.fixture
def holder(folder: Path) -> Iterator[Holds]:
    """Starts a process that holds the folder, and ``ends`` at SIGTERM, or ``stays``."""
    made: list[subprocess.Popen[bytes]] = []

    def start(how: str) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), how], stdout=subprocess.PIPE))
        assert made[-1].stdout is not None
        assert made[-1].stdout.readline() == b"held\n"
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_a_run_that_nobody_trains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", str(folder)]) == 0
    assert capsys.readouterr().out == f"no process trains {folder} now\n"
    RunLock(folder).close()
    (folder / "summary.json").write_text('{"stopped_by": "env_steps"}')
    assert main(["stop", str(folder)]) == 0
    assert "now (it ended: env_steps)" in capsys.readouterr().out


def test_its_process_is_told_to_end_and_waited_for(
    folder: Path, holder: Holds, capsys: pytest.CaptureFixture[str]
) -> None:
    process = holder("ends")
    assert held(folder)
    assert main(["stop", str(folder)]) == 0
    assert not held(folder)
    assert process.wait(30.0) == 0
    told, ended = capsys.readouterr().out.splitlines()
    assert told == f"process {process.pid}, which trains {folder}, was told to end"
    assert ended == f"{folder} has ended"


@pytest.mark.parametrize(("seconds", "code"), [("0", 0), ("0.3", 1)])
def test_it_is_not_waited_for_longer_than_is_said(
    seconds: str, code: int, folder: Path, holder: Holds, capsys: pytest.CaptureFixture[str]
) -> None:
    process = holder("stays")
    assert main(["stop", str(folder), "--wait-seconds", seconds]) == code
    assert process.poll() is None
    assert ("The same command again ends it at once" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize("words", [["stop", "runs/cp"], ["drain", "gpu-9", "--redis", "redis://h", "--run", "r"]])
@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_how_long_is_waited_has_an_end(seconds: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--wait-seconds", seconds]) == 2
    assert f"--wait-seconds must be at least 0 and finite, not {seconds}" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["another host", "another process", "nobody"])
def test_nobody_else_is_told(named: str, folder: Path, holder: Holds, capsys: pytest.CaptureFixture[str]) -> None:
    """A container may have this machine's name, and count its processes by itself."""
    process = holder("ends")
    who = json.loads((folder / LOCK_FILE).read_text())
    stranger = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        texts = {
            "another host": json.dumps(who | {"host": "gpu-9"}),
            "another process": json.dumps(who | {"pid": stranger.pid}),
            "nobody": "",
        }
        (folder / LOCK_FILE).write_text(texts[named])
        assert main(["stop", str(folder)]) == 1
        assert "no process of yours on this machine: give the command there" in capsys.readouterr().out
        assert process.poll() is None
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


def test_a_file_system_without_locks_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lockf(*_: object) -> None:
        raise OSError(37, "No locks available")

    RunLock(folder).close()
    monkeypatch.setattr("apexrl.run.ownership.fcntl.lockf", lockf)
    assert main(["stop", str(folder)]) == 2
    assert "cannot be seen (No locks available)" in capsys.readouterr().err.replace("\n", " ")


def test_the_second_one_ends_a_run_in_one_process_whose_environment_hangs(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    words = ["train", "--env", "hanging:Hangs-v0", *SMALL.split(), "--out", str(tmp_path), "--name", "run", "--serial"]
    process = subprocess.Popen(
        [sys.executable, "-m", "apexrl.cli", *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert process.stdout is not None
        assert any("it hangs" in line for line in process.stdout)
        assert main(["stop", str(tmp_path / "run"), "--wait-seconds", "0.3"]) == 1
        # A signal that comes before the process has seen the last one is lost: it is given again.
        again = (main(["stop", str(tmp_path / "run"), "--wait-seconds", "10"]) for _ in range(6))
        assert 0 in again
        assert process.wait(60.0) == 130
    finally:
        process.kill()
        process.communicate()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped_by"] == "interrupted"


def test_a_whole_run_ends_in_good_order(tmp_path: Path) -> None:
    words = ["train", "--env", "CartPole-v1", *SMALL.split(), "--out", str(tmp_path), "--name", "run", "--serial"]
    process = subprocess.Popen([sys.executable, "-m", "apexrl.cli", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "updates/s" in line:
                break
        assert main(["stop", str(tmp_path / "run")]) == 0
        process.stdout.read()
        assert process.wait(60.0) == 130
    finally:
        process.kill()
        process.communicate()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped_by"] == "interrupted"
    assert list((tmp_path / "run" / "checkpoints").glob("generation-*.safetensors"))
