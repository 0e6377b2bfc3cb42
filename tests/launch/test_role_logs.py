"""Logs of roles that print for ever."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from test_supervisor import supervise

from apexrl.config import Config, StopConfig
from apexrl.launch import role_logs
from apexrl.launch.folder_upkeep import Upkeep
from apexrl.launch.role_logs import bound
from apexrl.links.printable import host_name
from apexrl.run.status import RunStatus
from new_folders import new_folder

MOST = 100_000


def test_a_log_that_is_written_for_ever_keeps_its_newest_end_and_no_more(tmp_path: Path) -> None:
    log = tmp_path / "actor-0.log"
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # as a slot opens it
    for turn in range(12):
        program = f"for n in range(100): print({turn} * 100 + n, 'x' * 200)"
        subprocess.run([sys.executable, "-c", program], stdout=output, check=True, timeout=60)
        bound(log, MOST)
        assert log.stat().st_size <= MOST
    os.close(output)
    before, now = (path.read_text() for path in (tmp_path / "actor-0.log.1", log))
    assert len(before) == MOST
    assert before.splitlines()[-1].startswith("999 ")
    assert [line.split()[0] for line in now.splitlines()] == [str(n) for n in range(1000, 1200)]  # no hole before them


def test_a_short_log_stays(tmp_path: Path) -> None:
    log = tmp_path / "actor-0.log"
    bound(log, MOST)  # there is none yet
    log.write_text("hello\n")
    bound(log, MOST)
    assert log.read_text() == "hello\n"
    assert not (tmp_path / "actor-0.log.1").exists()


def test_a_full_disk_gets_its_room_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "actor-0.log"
    log.write_bytes(bytes(2 * MOST))
    really = Path.open

    def full(self: Path, mode: str = "r", *more: Any) -> Any:
        if "w" in mode:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(self, mode, *more)

    monkeypatch.setattr(Path, "open", full)
    bound(log, MOST)
    assert log.stat().st_size == 0


def test_the_logs_of_roles_as_json_say_who_speaks(tmp_path: Path) -> None:
    watcher = supervise(tmp_path, {"0.0": "exit", "1.0": "raise"}, log_format="json")
    assert watcher.summary["restarts"] == {"actor": 2}
    logs = tmp_path / "run" / "logs"
    (exited,) = [json.loads(line) for line in (logs / "actor-0.log").read_text().splitlines()]
    who = {"run": "run", "host": host_name(), "role": "actor", "index": 0, "generation": 0}
    assert exited == {"time": exited["time"], "level": "info", **who, "text": "last words"}
    (raised,) = [json.loads(line) for line in (logs / "actor-1.log").read_text().splitlines()]
    assert (raised["level"], raised["index"]) == ("error", 1)
    assert raised["text"].startswith("Traceback (most recent call last)")
    assert raised["text"].endswith("EnvError: broken in actor-1")


def test_the_log_of_metrics_is_never_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resuming, curves and apexrl doctor read all of it."""
    folder = new_folder(Config(name="run", out=str(tmp_path)))
    (folder.path / "logs").mkdir()
    for path in (folder.metrics_path, folder.path / "logs" / "actor-0.log"):
        path.write_bytes(bytes(MOST))
    monkeypatch.setattr(role_logs.bound, "__defaults__", (100,))
    Upkeep(folder).update(RunStatus())
    assert folder.metrics_path.stat().st_size == MOST
    assert (folder.path / "logs" / "actor-0.log").stat().st_size == 0


def test_a_log_that_cannot_be_looked_at_does_not_halt_supervision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system whose server is away."""
    monkeypatch.setattr("apexrl.launch.run_ledger.SUMMARY_SECONDS", 0.1)
    looked, go = [], threading.Event()
    returned = []

    def hang(log: Path) -> None:
        looked.append(log.name)
        if len(looked) == 1:
            returned.append(go.wait(30.0))

    monkeypatch.setattr(role_logs, "bound", hang)
    watcher = supervise(tmp_path, {}, stop=StopConfig(minutes=5.0), act=lambda status: bool(looked))
    assert watcher.summary["stopped_by"] == "callback"
    assert looked in (["actor-0.log"], ["actor-1.log"])
    assert returned == []
    go.set()
