"""Observers in trouble: the run goes on, somebody else is told, and it is counted."""

from __future__ import annotations

import errno
import json
import os
import pty
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from recording_observer import Watcher

from apexrl.config import Config
from apexrl.launch import contained_observers
from apexrl.launch.contained_observers import Contained, contained, pass_on_news
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.run.metrics import RunLog
from apexrl.run.status import RunStatus
from new_folders import new_folder


class Written(Watcher):
    """Writes somewhere that may fail, or not answer until ``go`` is set."""

    writes = "a file"
    error: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go = threading.Event(), threading.Event()
        self.go.set()

    def message(self, text: str, level: str = "info") -> None:
        self.inside.set()
        self.go.wait(60.0)
        if self.error is not None:
            raise self.error
        super().message(text, level)


def ledger_of(tmp_path: Path, *observers: Any) -> Ledger:
    config = Config(name="run", out=str(tmp_path))
    ledger = Ledger(config, new_folder(config), list(observers), Base(), began=100.0)
    ledger.open()
    return ledger


def tick(ledger: Ledger, now: float = 101.0) -> RunStatus:
    return ledger.tick(
        now, totals=lambda name: 0, replay={}, version=0, workers=[], restarts={}, dropped={"messages": 0}
    )


def until(true: Any) -> None:
    deadline = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_io_error_is_told_once_to_the_others_and_counted(tmp_path: Path) -> None:
    bad, other = Written(), Watcher()
    ledger = ledger_of(tmp_path, bad, other)
    bad.error = OSError(errno.EIO, os.strerror(errno.EIO))
    for number in range(5):
        ledger.tell(f"news {number}")
    until(lambda: tick(ledger).dropped.get("reports") == 5)
    ledger.show()
    ledger.show()
    told = [text for text in other.texts if "a file" in text]
    assert len(told) == 1
    assert "Input/output error" in told[0]
    bad.error = None
    ledger.tell("better")
    until(lambda: bad.texts == ["better"])
    summary = ledger.close()
    assert summary["dropped"] == {"messages": 0, "reports": 5}
    assert summary == other.summary == bad.summary


def test_it_is_said_when_it_works_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, other = Written(), Watcher()
    ledger = ledger_of(tmp_path, bad, other)
    bad.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    ledger.tell("lost")
    until(lambda: tick(ledger).dropped.get("reports") == 1)
    ledger.show()
    bad.error = None
    monkeypatch.setattr(contained_observers, "_WELL_SECONDS", 0.0)
    ledger.show()
    assert other.texts[-1] == "a file works again; 1 reports were lost"
    ledger.close()


def test_a_write_that_does_not_return_halts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, other = Written(), Watcher(lambda status: status.env_steps < 0)
    ledger = ledger_of(tmp_path, stuck, other)
    stuck.go.clear()
    monkeypatch.setattr(contained_observers, "MOST_WAITING", 10)
    ledger.tell("first")
    assert stuck.inside.wait(60.0)
    for number in range(30):
        ledger.tell(str(number))
        tick(ledger)
        ledger.show()
    assert tick(ledger).dropped["reports"] > 40  # of 60 calls
    monkeypatch.setattr(contained_observers, "_STUCK_SECONDS", 0.0)
    ledger.show()
    ledger.show()
    assert sum("a file: nothing was taken for" in text for text in other.texts) == 1
    assert len(other.statuses) == 32
    monkeypatch.setattr(contained_observers, "CLOSE_SECONDS", 0.1)
    assert ledger.close()["stopped_by"] == "interrupted"
    stuck.go.set()  # what was let go of ends by itself
    until(lambda: stuck.summary)
    until(lambda: "observer: a file" not in {thread.name for thread in threading.enumerate()})
    assert stuck.texts[:3] == ["first", "0", "1"]


def test_a_mistake_of_ours_is_told_and_one_of_the_users_ends_the_run(tmp_path: Path) -> None:
    def fail(status: RunStatus) -> bool:
        raise TypeError("no such thing")

    class Ours(Watcher):
        ours = True

    other = Watcher()
    ledger = ledger_of(tmp_path, Ours(fail), other)
    ledger.show()
    ledger.show()
    (told,) = other.texts
    assert "no such thing" in told
    assert "test_contained_observers.py:" in told
    with pytest.raises(TypeError, match="no such thing"):
        ledger_of(tmp_path, Watcher(fail)).show()


def test_an_io_error_of_a_users_callback_ends_no_run(tmp_path: Path) -> None:
    def fail(status: RunStatus) -> bool:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    ledger = ledger_of(tmp_path, Watcher(fail), other := Watcher())
    ledger.show()
    ledger.show()
    assert "Broken pipe" in other.texts[0]
    assert tick(ledger).dropped["reports"] == 2


def test_where_nothing_can_be_written_standard_error_has_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    bad = Written()
    bad.error = OSError(errno.EIO, os.strerror(errno.EIO))
    observers = contained([bad])
    assert contained(observers) == observers
    assert isinstance(observers[0], Contained)
    contained_observers.tell(observers, "first", "warning")
    pass_on_news(observers, time.monotonic())
    contained_observers.tell(observers, "the disk is full", "warning")
    contained_observers.tell(observers, "nothing to fear", "info")
    said = capfd.readouterr().err
    assert "the disk is full" in said
    assert "nothing to fear" not in said


def test_a_summary_that_cannot_be_written_is_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.launch.run_ledger.SUMMARY_SECONDS", 0.0)
    ledger = ledger_of(tmp_path, other := Watcher())
    ledger.stop("minutes")
    (tmp_path / "run" / "config.toml").unlink()
    (tmp_path / "run").rmdir()
    summary = ledger.close()
    assert summary["stopped_by"] == "minutes"
    assert other.summary == summary
    assert json.loads(other.texts[-1].partition("The summary: ")[2])["stopped_by"] == "minutes"


def test_a_note_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, other := Watcher())
    (tmp_path / "run").rename(tmp_path / "away")
    place, now = tmp_path / "run" / "hosts.json", 102.0

    def told(text: str, step: float = 0.0) -> bool:
        nonlocal now
        now += step
        tick(ledger, now)
        return any(text in one for one in other.texts)

    ledger.note("hosts.json", lambda: place.write_text("{}"))
    until(lambda: told("hosts.json could not be written"))
    (tmp_path / "away").rename(tmp_path / "run")
    until(lambda: told("hosts.json could be written again", 10.0))
    assert place.read_text() == "{}"
    assert sum("hosts.json could not be written" in text for text in other.texts) == 1
    assert tick(ledger, now).dropped["reports"] >= 1
    ledger.close()


def test_a_run_folder_that_hangs_halts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.launch.run_ledger.SUMMARY_SECONDS", 0.1)
    ledger = ledger_of(tmp_path)
    go, inside, returned = threading.Event(), threading.Event(), []

    def hang() -> None:
        inside.set()
        returned.append(go.wait(0.0 if returned else 20.0))

    monkeypatch.setattr(ledger.folder.generations, "keep", hang)
    ledger.hear("checkpoint", {"path": "x", "updates": 1})
    for number in range(1000):
        ledger.note(f"{number}", hang)
        ledger.hear("checkpoint", {"path": "x", "updates": 1})
        tick(ledger, 102.0 + number)
    until(inside.is_set)
    summary = ledger.close()
    assert returned == []
    assert summary["dropped"]["reports"] > 1000  # what waits is bounded
    go.set()


def test_a_run_log_goes_on_when_its_folder_has_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    log = RunLog(folder)
    log.started(Config(), folder)
    log.message("one")
    folder.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        log.message("two")
    (tmp_path / "away").rename(folder)
    log.message("three")
    log.update(RunStatus())
    log.close()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("text", row["kind"]) for row in rows] == ["one", "three", "status"]


def test_a_line_that_a_full_disk_cut_short_is_taken_away(tmp_path: Path) -> None:
    """As large as a file may be, but for a few bytes: the next line comes down in part."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _fill(tmp_path)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert texts[0] == "one"
    assert texts[-1] == "room again"
    assert "x" * 5000 not in texts


def _fill(folder: Path) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = RunLog(folder)
    log.message("one")
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    for _ in range(3):
        with pytest.raises(OSError, match="File too large"):
            log.message("x" * 5000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log.message("room again")
    log.close()


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_that_goes_away_is_an_io_error_and_no_more(live: bool) -> None:
    from rich.console import Console

    from apexrl.cli.main import _forget as forget
    from apexrl.report.live_panel import LivePanel
    from apexrl.report.plain_lines import PlainLines

    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        console = Console(file=terminal, force_terminal=True, width=100)
        shown = LivePanel(console) if live else PlainLines(console)
        shown.started(Config(), Path("runs/x"))
        shown.message("well")
        os.close(master)
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                shown.message("lost", "warning")
        if live:
            console._force_terminal = None  # as where nobody says that it is one
            with pytest.raises(OSError, match="it is closed"):
                shown.update(RunStatus())
        with pytest.raises(OSError, match="Input/output error"):
            shown.finished({"stopped_by": "minutes"})
        forget(terminal)
