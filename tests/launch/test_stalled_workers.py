"""Workers that stand still: real processes, with idle roles."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from idle_roles import CheckpointWriter, Evaluator, Learner
from recording_observer import Watcher, all_gone
from test_supervisor import supervise

from apexrl.config import StopConfig
from apexrl.errors import WorkerError
from apexrl.launch import supervisor
from apexrl.links.local.stall_detector import StallDetector

LIMIT = 1.5  # seconds; three times that for a beginning


def log_of(tmp_path: Path, worker: str) -> str:
    return (tmp_path / "run" / "logs" / f"{worker}.log").read_text()


def born(watcher: Watcher) -> list[int]:
    return [int(text.split()[2]) for text in watcher.texts if text.startswith("born")]


@pytest.mark.parametrize("deed", ["stand still", "keep the interpreter"])
def test_a_loop_that_stands_still_is_killed_and_its_stacks_are_in_the_log(tmp_path: Path, deed: str) -> None:
    watcher = supervise(tmp_path, {"0.0": deed}, role=Learner, count=1, stall_timeout=LIMIT)
    assert watcher.summary["restarts"] == {"learner": 1}
    (told,) = [text for text in watcher.texts if "learner-0: it stood still for 1.5 s (--stall-timeout)" in text]
    assert "idle_roles.py" in told
    assert "in step" in log_of(tmp_path, "learner-0")
    assert watcher.summary["dropped"]["hung_env_calls"] == 0
    assert all_gone(born(watcher))


def test_a_process_that_was_stopped_is_killed_and_restarted(tmp_path: Path) -> None:
    stop = StopConfig(minutes=5.0)

    def act(status: Any) -> bool:
        return status.workers[0].restarts == 1 and status.workers[0].state == "acting"

    watcher = supervise(tmp_path, {"0.0": "stop"}, count=2, stall_timeout=LIMIT, stop=stop, act=act)
    assert watcher.summary["restarts"] == {"actor": 1}
    assert any("its process is stopped (SIGSTOP)" in text for text in watcher.texts)
    assert all_gone(born(watcher))


def test_standing_still_always_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"learner-0 failed 3 times in a row: it did not begin to work within 1.2 s"):
        supervise(tmp_path, {"*": "never begin"}, role=Learner, count=1, stall_timeout=0.4)


def test_a_slow_beginning_has_more_time(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {"*": "begin slowly"}, count=1, stall_timeout=LIMIT)
    assert watcher.summary["restarts"] == {"actor": 0}


def test_an_environment_call_has_a_limit_of_its_own(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {"*": "step for long"}, count=1, stall_timeout=LIMIT, env_timeout=30.0)
    assert watcher.summary["restarts"] == {"actor": 0}


def test_what_is_written_at_the_end_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """A replay may take half an hour."""
    watcher = supervise(tmp_path, {"*": "write for long"}, role=CheckpointWriter, count=1, stall_timeout=LIMIT)
    assert "closed learner-0 " in watcher.texts
    assert watcher.summary["stopped_by"] == "env_steps"


def test_who_has_no_limit_at_the_end_does_not_stand_still_for_ever(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {"*": "never stops"}, role=Evaluator, count=1, stall_timeout=LIMIT)
    assert any("evaluator-0 did not stop cleanly: it stood still" in text for text in watcher.texts)
    assert all_gone(born(watcher))


@pytest.mark.long
def test_it_can_be_off(tmp_path: Path) -> None:
    began = time.monotonic()
    watcher = supervise(
        tmp_path,
        {"0.0": "stop"},
        count=2,
        stall_timeout=0.0,
        stop=StopConfig(minutes=5.0),
        act=lambda status: time.monotonic() > began + 6.0,
    )
    assert watcher.summary["restarts"] == {"actor": 0}


def test_time_in_which_nobody_looked_does_not_count() -> None:
    still = StallDetector()
    assert still.look(1.0, 100.0) == 0.0
    assert still.look(1.0, 100.1) == pytest.approx(0.1)
    assert still.look(1.0, 5000.0) == pytest.approx(0.6)  # whoever looks was asleep
    assert still.look(1.0, 5000.2, counts=False) == pytest.approx(0.6)
    assert still.look(2.0, 5000.3) == 0.0
    assert still.look(2.0, 5000.5) == pytest.approx(0.2)


def starter_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_starter_that_stands_still_ends_the_run_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    told: set[str] = set()
    message = Watcher.message
    monkeypatch.setattr(Watcher, "message", lambda self, text, *more: (told.add(text), message(self, text, *more))[1])

    def act(status: Any) -> None:
        if not pids and status.env_steps > 10 and all(worker.pid for worker in status.workers):
            pids.extend(worker.pid for worker in status.workers)
            pids.append(starter_of(pids[0]))
            os.kill(pids[-1], signal.SIGSTOP)

    stop = StopConfig(minutes=5.0)
    with pytest.raises(WorkerError, match=r"the process that starts workers stood still for \d+ s \(--stall-timeout\)"):
        supervise(tmp_path, {}, role=Learner, stall_timeout=6.0, stop=stop, act=act)
    assert {"closed learner-0 hurried", "closed learner-1 hurried"} <= told
    assert all_gone(pids)


def test_a_starter_that_goes_on_again_is_forgiven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile a worker dies; it is followed by another when the starter is back."""
    monkeypatch.setattr(supervisor, "_STARTER_SECONDS", 1.0)
    pids: list[int] = []

    def act(status: Any) -> bool:
        if not pids and status.env_steps > 10 and all(worker.pid for worker in status.workers):
            pids.extend(worker.pid for worker in status.workers)
            pids.append(starter_of(pids[0]))
            os.kill(pids[-1], signal.SIGSTOP)
            os.kill(pids[0], signal.SIGKILL)
            threading.Timer(3.0, os.kill, (pids[-1], signal.SIGCONT)).start()
        return status.workers[0].restarts == 1 and status.workers[0].state == "acting"

    watcher = supervise(tmp_path, {}, stall_timeout=60.0, stop=StopConfig(minutes=5.0), act=act)
    assert watcher.summary["stopped_by"] == "callback"
    assert all_gone(pids)
