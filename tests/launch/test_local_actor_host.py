"""The actor host beside a learner, from the learner's end: what is started in its place does as it is told."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recording_observer import gone

from apexrl.config import Config
from apexrl.errors import WorkerError
from apexrl.launch import local_actor_host
from apexrl.launch.local_actor_host import LocalActorHost
from apexrl.launch.redis_run import Identity
from apexrl.run.status import RunStatus

BEATS = "import sys, time, threading\nfrom apexrl.launch.local_actor_host import _beat\n"
LIVES = BEATS + "threading.Thread(target=_beat, args=({beats},), daemon=True).start()\nsys.stdin.readline()\n"


class Stage:
    """A companion, what it told, and its generations' process ids."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.pids: list[int] = []
        self.answer: str | None = None
        self.one = LocalActorHost("redis://nowhere", Identity("run", "id", True), Config(stall_timeout=1.0))
        self.log = b""
        self.one.announce(lambda text, level: self.texts.append(text), self.keep)

    def keep(self, role: str, data: bytes) -> None:
        assert role == "actor-host"
        self.log += data

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> bool:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            self.answer = self.one.update(RunStatus())
            if self.one._process.pid not in self.pids:
                self.pids.append(self.one._process.pid)
            time.sleep(0.05)
        return condition()

    def beats(self) -> bool:
        return self.one._beaten > 0


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Stage]:
    code: str = getattr(request, "param", LIVES + "sys.stdin.read()")

    def command(beats: int) -> list[str]:
        return [sys.executable, "-c", code.replace("{beats}", str(beats))]

    monkeypatch.setattr(local_actor_host, "_command", command)
    made = Stage()
    yield made
    made.one.close()
    assert all(gone(pid) for pid in made.pids)


def test_one_that_was_killed_is_started_again(stage: Stage) -> None:
    assert stage.until(stage.beats)
    os.kill(stage.pids[0], signal.SIGKILL)
    assert stage.until(lambda: len(stage.pids) == 2 and stage.beats())
    assert stage.texts == ["the actor host of this machine: it was killed by signal 9; starting it again"]
    assert stage.answer is None
    stage.one.check()


def test_one_that_was_stopped_is_killed_and_started_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage.until(stage.beats)
    os.kill(stage.pids[0], signal.SIGSTOP)
    assert stage.until(lambda: len(stage.pids) == 2 and stage.beats())
    assert "it stood still for 5 s (--stall-timeout): its process is stopped (SIGSTOP)" in stage.texts[0]
    assert gone(stage.pids[0])


@pytest.mark.parametrize("stage", ["print('no licence'); raise SystemExit(1)"], indirect=True)
def test_one_that_says_why_it_fails_ends_the_run(stage: Stage) -> None:
    assert stage.until(lambda: stage.answer == "actors failed")
    assert len(stage.pids) == 1
    with pytest.raises(WorkerError, match="no licence"):
        stage.one.check()


PRINTS = "for n in range(6): print(n, 'x' * 400_000, flush=True); sys.stdin.readline()\nsys.stdin.read()"


@pytest.mark.parametrize("stage", [LIVES + PRINTS], indirect=True)
def test_what_it_prints_goes_to_the_log_and_is_held_no_longer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_actor_host, "_OUTPUT_SECONDS", 0.0)
    printed = b"".join(b"%d %s\n" % (n, b"x" * 400_000) for n in range(6))
    assert stage.one._process.stdin is not None
    for n in range(6):
        line = len(b"%d " % n) + 400_001
        written = time.monotonic() + 60.0
        while os.fstat(stage.one._output.fileno()).st_size < stage.one._read + line and time.monotonic() < written:
            time.sleep(0.01)  # what is written while the file is emptied may be lost
        whole = sum(len(b"%d " % m) + 400_001 for m in range(n + 1))
        assert stage.until(lambda most=whole: len(stage.log) >= most)
        assert os.fstat(stage.one._output.fileno()).st_size <= local_actor_host._OUTPUT_BYTES + 400_003
        stage.one._process.stdin.write(b"\n")
        stage.one._process.stdin.flush()
    assert stage.log == printed  # nothing is lost here, as it waits while the file is emptied


TELLS_OPTIONS = """
from apexrl.launch import actor_host, local_actor_host
actor_host.join = lambda **options: print("gives way", options["gives_way"], flush=True)
local_actor_host.main({beats})
"""


@pytest.mark.parametrize("stage", [TELLS_OPTIONS], indirect=True)
def test_the_learner_beside_it_has_the_processors_first(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_actor_host, "_OUTPUT_SECONDS", 0.05)
    assert stage.until(lambda: b"gives way" in stage.log)
    assert stage.log.startswith(b"gives way True")


def test_it_is_found_by_its_command() -> None:
    assert Path(local_actor_host._command(7)[0]) == Path(sys.executable)
    assert local_actor_host._command(7)[-1].endswith("main(7)")


def test_one_that_cannot_be_started_again_at_once_is_later(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are too many processes for a moment."""
    assert stage.until(stage.beats)
    attempts = 0
    really = subprocess.Popen

    def refuse(*words: Any, **options: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return really(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", refuse)
    open_before = len(os.listdir("/proc/self/fd"))
    os.kill(stage.pids[0], signal.SIGKILL)
    assert stage.until(lambda: len(stage.pids) == 2 and stage.beats())
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert sum("cannot be started again" in text for text in stage.texts) == 2
    assert stage.answer is None
