"""A terminal that is closed while a run goes on, as by a dropped ssh: with ``nohup`` and without."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from apexrl.launch.interrupts import ONCE_SECONDS, Interrupts
from apexrl.run import checkpoint
from apexrl.run.metrics import read_rows

ON_A_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if sys.argv[1] == "full":
    os.set_blocking(1, False)
    try:
        while True:
            os.write(1, b"x" * 1000)
    except BlockingIOError:
        os.set_blocking(1, True)
os.execv(sys.executable, [sys.executable, "-m", "apexrl.cli", *sys.argv[2:]])
"""
SMALL = "--actors 1 --envs-per-actor 2 --min-size 200 --batch-size 16 --eval-episodes 2 --checkpoint-seconds 1000"


def on_a_terminal(how: str, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """The command as the leader of a session, with a terminal of its own; returns the other end of that too."""
    master, slave = pty.openpty()
    try:
        command = [sys.executable, "-c", ON_A_TERMINAL, how, *words]
        environment = {**os.environ, "TERM": "xterm"}
        process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment
        )
    finally:
        os.close(slave)
    return process, master


def read_until(master: int, true: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    said = b""
    while not true():
        assert time.monotonic() < deadline, said[-3000:].decode(errors="replace")
        if select.select([master], [], [], 0.1)[0]:
            with suppress(OSError):  # its last writer has gone
                said += os.read(master, 65536)


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return read_rows(path) if path.exists() else []


def learns(folder: Path) -> bool:
    return any(row["updates"] > 20 for row in rows(folder))


@pytest.mark.parametrize("how", ["plain", pytest.param("nohup", marks=pytest.mark.long)])
def test_a_closed_terminal(how: str, tmp_path: Path) -> None:
    goal = ["--minutes", "10"] if how == "plain" else ["--minutes", "0.5"]
    words = ["train", "--env", "CartPole-v1", *SMALL.split(), *goal, "--out", str(tmp_path), "--name", "run"]
    process, master = on_a_terminal(how, *words)
    folder = tmp_path / "run"
    try:
        read_until(master, lambda: learns(folder))
        os.close(master)  # the kernel sends SIGHUP, and nothing can be written there any more
        then = rows(folder)[-1]["env_steps"]
        code = process.wait(240)
    finally:
        process.kill()
        process.wait()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stopped_by"] == ("interrupted" if how == "plain" else "minutes")
    assert code == (130 if how == "plain" else 0)
    assert summary["restarts"] == {"actor": 0, "learner": 0, "evaluator": 0}
    assert summary["dropped"]["reports"] > 0
    final = checkpoint.latest(folder / "checkpoints")
    assert final is not None
    assert final.name.endswith(f"update-{summary['updates']:09d}.safetensors")
    messages = [row for row in rows(folder) if row["kind"] == "message"]
    assert any("the terminal" in row["text"] for row in messages)
    if how == "nohup":
        assert summary["env_steps"] > then


def test_signals_that_are_ignored_stay_so() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        with Interrupts() as interrupts:
            for number in before:
                os.kill(os.getpid(), number)
                assert signal.getsignal(number) is signal.SIG_IGN
            assert interrupts.count == 0
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupts.count == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_closed_terminal_is_one_wish_however_often_it_is_said() -> None:
    """The shell says it, and the kernel when the shell has ended: a second wish would kill the final checkpoint."""
    with Interrupts() as interrupts:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.count == 1
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.count == 2


def test_a_signal_that_is_passed_on_at_once_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """``timeout`` signals its command and then the process group."""
    now = [100.0]
    monkeypatch.setattr("apexrl.launch.interrupts.time.monotonic", lambda: now[0])
    with Interrupts() as interrupts:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.count == 1
        now[0] += ONCE_SECONDS
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.count == 2


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "interrupted: saving (Ctrl-C again ends at once)"),
        (signal.SIGTERM, "told to end by SIGTERM: saving (a second SIGTERM ends at once)"),
        (signal.SIGHUP, "the terminal was closed: saving (SIGTERM ends at once)"),
    ],
)
def test_the_first_signal_is_named(number: signal.Signals, said: str) -> None:
    """Nobody can press Ctrl-C in a terminal that was closed."""
    with Interrupts() as interrupts:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.heeded("saving") == said


def test_a_terminal_that_nobody_reads_halts_nobody(tmp_path: Path) -> None:
    """As one that was stopped with Ctrl-S: its buffer is full. A preset, which says nothing before the run."""
    words = ["train", "cartpole", *SMALL.split(), "--env-steps", "1500", "--out", str(tmp_path)]
    process, master = on_a_terminal("full", *words, "--name", "run")
    path = tmp_path / "run" / "summary.json"
    try:
        deadline = time.monotonic() + 240.0
        while not path.exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
        summary = json.loads(path.read_text())
        read_until(master, lambda: process.poll() is not None)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert process.returncode == 0
    assert summary["stopped_by"] == "env_steps"
    assert summary["updates"] > 20
