"""The command where nobody reads what it prints, or a terminal cannot show it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(closed: str) -> None:
    ended = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m apexrl.cli list {closed}'], capture_output=True, check=False
    )
    assert (ended.returncode, b"Traceback" in ended.stderr) == (0, False)


def test_a_reader_who_leaves_changes_no_exit_code() -> None:
    """As of ``apexrl list | head -1``."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe:
        command = [sys.executable, "-m", "apexrl.cli"]
        listed = subprocess.run([*command, "list"], stdout=pipe, stderr=subprocess.PIPE, check=False)
        failed = subprocess.run([*command, "eval", "/nowhere"], stderr=pipe, check=False)
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert failed.returncode == 2


def test_a_terminal_without_unicode_is_shown_the_rest() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "apexrl.cli", "list"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (ended.returncode, b"cartpole" in ended.stdout) == (0, True), ended.stderr
