"""Logs of roles that print for ever."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apexrl.launch.role_logs import bound

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
